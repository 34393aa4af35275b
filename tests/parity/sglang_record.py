"""Records what SGLang decides with its PrefillDelayer on small random cases, for machines that have no SGLang.

usage: BATCHLAB_SGLANG_PYTHON=PYTHON python -m tests.parity.sglang_record FOLDER_OF_THE_HARNESS
"""

import gzip
import io
import json
import sys
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from tests.parity.sglang_live import answers
from tests.parity.sglang_random import drawn

DELAYER_FILE = Path(__file__).with_name("data") / "recorded_sglang_delayer.jsonl.gz"
DELAYING = {"enable_prefill_delayer": True, "overlap": True}
PLAIN = {"enable_prefill_delayer": False, "prefill_max_requests": None}
KINDS: dict[str, dict[str, Any]] = {
    "no radix": {"disable_radix_cache": True},
    "lpm": {"disable_radix_cache": False, "schedule_policy": "lpm"},
    "mixed": {"enable_mixed_chunk": True},
    "page 16": {"page_size": 16},
    "ignore_eos": {"ignore_eos": True, "disable_radix_cache": True},
    "retractions": {"schedule_conservativeness": 0.05, "eos_share": 0.0},
}
OF_EACH = 5
KEPT = ("scheduled", "preempted", "admitted", "waiting", "free", "free_end", "finished", "t_end")
MOST_PROMPT_TOKENS = 500  # of a case
MOST_SCHEDULED = 250  # entries of `scheduled` in all steps of a case: larger ones tell little more
BATCH = 100


def telling(kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    """For ever: small cases of a kind, with SGLang's answers, that it decides otherwise without the delayer."""
    for first in count(0, BATCH):
        drawn_cases = [(seed, drawn(seed, **DELAYING, **KINDS[kind])) for seed in range(first, first + BATCH)]
        small = [item for item in drawn_cases if _prompt_tokens(item[1]) <= MOST_PROMPT_TOKENS]
        seeds, cases = [seed for seed, _ in small], [case for _, case in small]
        without = [{**case, "config": {**case["config"], **PLAIN}} for case in cases]
        for seed, case, steps, others in zip(seeds, cases, _told(cases, folder), _told(without, folder), strict=True):
            is_over = not any("failed" in step for step in steps)
            if is_over and steps != others and sum(len(step["scheduled"]) for step in steps) <= MOST_SCHEDULED:
                yield {"seed": seed, "case": case, "records": [{key: step[key] for key in KEPT} for step in steps]}


def _prompt_tokens(case: dict[str, Any]) -> int:
    return sum(request["prompt_len"] for request in case["requests"])


def _told(cases: list[dict[str, Any]], folder: Path) -> list[list[dict[str, Any]]]:
    return [list(steps) for steps in answers(cases, folder)]


def main() -> None:
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        for kind in KINDS:
            for item in islice(telling(kind, Path(sys.argv[1])), OF_EACH):
                file.write(json.dumps(item, separators=(",", ":")).encode() + b"\n")
    DELAYER_FILE.write_bytes(packed.getvalue())


if __name__ == "__main__":
    main()
