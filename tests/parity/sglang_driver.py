"""Runs in an environment that has SGLang: cases on stdin, a line each; its scheduler's records on stdout.

A line says "case"; the records of the case follow, a line each, and null. Where the scheduler ends in an error of its
own (overlap and little memory: its estimate counts too little), the last record is {"failed": its words}.

usage: python sglang_driver.py FOLDER_OF_THE_HARNESS

A request may name its tokens by `block_hashes` of `hash_block_size` tokens, as traces do, instead of one by one; the
harness gives those of an answer, and of a prompt of which nothing is said, to that request alone. Answers that end
before their `max_tokens` end with the same stop token there; those of which nothing is said end here with their own.
"""

import importlib
import json
import os
import sys
from itertools import chain
from typing import Any

HASHED = 3 << 40  # where the ids of hashed tokens begin: beyond those of the harness
STOP = 1 << 50  # where the ids of stop tokens begin


def tokens(hashes: list[int], size: int, count: int) -> list[int]:
    """The first `count` tokens of these blocks: a block's content follows from its hash."""
    blocks = [range(HASHED + block * size, HASHED + (block + 1) * size) for block in hashes]
    return list(chain.from_iterable(blocks))[:count]


def let_answers_end(harness: Any) -> None:
    """Give every answer that is not spelled out a stop token of its own."""
    make = harness.make

    def made(case: dict[str, Any], timed: bool) -> Any:
        requests = make(case, timed)
        spelled = {request["id"] for request in case["requests"] if "output_token_ids" in request}
        for place, (_, request, answer) in enumerate(requests):
            if answer[-1] == harness.STOP and request.rid not in spelled:
                answer[-1] = STOP + place
                request.sampling_params.stop_token_ids = {answer[-1]}
        return requests

    harness.make = made


def main() -> None:
    sys.path[0] = sys.argv[1]  # instead of this folder, whose modules are not meant
    harness = importlib.import_module("sglang_harness")
    let_answers_end(harness)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where memory runs out, SGLang prints its tree
    for line in sys.stdin:
        case = json.loads(line)
        for request in case["requests"]:
            if hashes := request.pop("block_hashes", None):
                size = request.pop("hash_block_size")
                request["prompt_token_ids"] = tokens(hashes, size, request["prompt_len"])
        print('"case"', file=out)
        try:
            for record in harness.run(case):
                print(json.dumps(record), file=out)
        except RuntimeError as error:
            print(json.dumps({"failed": str(error)}), file=out)
        print("null", file=out, flush=True)


if __name__ == "__main__":
    main()
