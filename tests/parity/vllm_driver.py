"""Runs in an environment that has vLLM: cases on stdin, a line each; the scheduler's records on stdout, a line each.

usage: python vllm_driver.py FOLDER_OF_THE_ORACLE

The harness ends every answer at its `max_tokens`. Here a request may have larger `max_tokens` than `output_len`: its
last token is then a stop token, as when a model ends its answer by itself.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

STOP = 1 << 50  # stop tokens count from here, so that no two requests have the same


class Requests(dict[str, Any]):
    """The scheduler's requests. Of one that has ended the harness asks what comes next, for a token thrown away."""

    def __missing__(self, request_id: str) -> SimpleNamespace:
        return SimpleNamespace(_output_token_ids=())


def let_answers_end(oracle: Any) -> None:
    """Teach the harness requests that stop before their `max_tokens`."""
    build, make = oracle.build_scheduler, oracle.make_requests

    def build_scheduler(config: dict[str, Any]) -> Any:
        scheduler = build(config)
        scheduler.requests = Requests(scheduler.requests)
        return scheduler

    def make_requests(case: dict[str, Any], config: dict[str, Any], timed: bool) -> list[Any]:
        made = make(case, config, timed)
        for _, place, request, outputs in made:
            most = case["requests"][place].get("max_tokens", len(outputs))
            if most > len(outputs):
                request.max_tokens = request.sampling_params.max_tokens = most
                request.sampling_params.stop_token_ids = [STOP + place]
                outputs[-1] = STOP + place
        return list(made)

    oracle.build_scheduler, oracle.make_requests = build_scheduler, make_requests


def answer_to(oracle: Any, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The harness's records; who has finished is named once, though a step more may have been computed for it."""
    finished: set[str] = set()
    for record in oracle.run(case):
        record["finished"] = [request_id for request_id in record["finished"] if request_id not in finished]
        finished.update(record["finished"])
        yield record


def main() -> None:
    sys.path[0] = sys.argv[1]  # instead of this folder, whose modules are not meant
    oracle = importlib.import_module("vllm_oracle")
    let_answers_end(oracle)
    answer: list[dict[str, Any]] | dict[str, str]
    for line in sys.stdin:
        try:
            answer = list(answer_to(oracle, json.loads(line)))
        except Exception as error:
            answer = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
