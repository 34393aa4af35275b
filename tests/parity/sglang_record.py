"""Records what SGLang decides on small random cases, for machines that have no SGLang.

usage: BATCHLAB_SGLANG_PYTHON=PYTHON python -m tests.parity.sglang_record FOLDER_OF_THE_HARNESS

The seeds are those of small cases that tell the rules apart.
"""

import gzip
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.parity.cases import Case
from tests.parity.sglang_live import answers
from tests.parity.sglang_random import drawn

Kinds = Mapping[str, dict[str, Any]]
DATA = Path(__file__).with_name("data")
DELAYER_FILE, DRAFTS_FILE = DATA / "recorded_sglang_delayer.jsonl.gz", DATA / "recorded_sglang_drafts.jsonl.gz"
RETRACTING = {"schedule_conservativeness": 0.05, "eos_share": 0.0}
DELAYING = {"enable_prefill_delayer": True, "overlap": True}
PATIENT = DELAYING | {
    "disable_radix_cache": True,
    "prefill_delayer_max_delay_passes": 30,
    "prefill_delayer_token_usage_low_watermark": None,
    "prefill_delayer_queue_min_ratio": 2.0,
    "prefill_max_requests": None,
}
DELAYED: Kinds = {
    "no radix": DELAYING | {"disable_radix_cache": True},
    "lpm": DELAYING | {"disable_radix_cache": False, "schedule_policy": "lpm"},
    "mixed": DELAYING | {"enable_mixed_chunk": True},
    "page 16": DELAYING | {"page_size": 16},
    "ignore_eos": DELAYING | {"ignore_eos": True, "disable_radix_cache": True},
    "retractions": DELAYING | RETRACTING,
    "watermark": PATIENT | {"prefill_delayer_token_usage_low_watermark": 0.25, "prefill_delayer_max_delay_ms": None},
    "patience": PATIENT | {"prefill_delayer_max_delay_ms": 15.625},
    "patience that ends with a pass": PATIENT | {"prefill_delayer_max_delay_ms": 10.422706604003906},
}
EAGLE = {"speculative_algorithm": "EAGLE", "overlap": True}
DRAFTED: Kinds = {
    "plain": EAGLE,
    "page 16": EAGLE | {"page_size": 16},
    "page 64": {"speculative_algorithm": "STANDALONE", "overlap": True, "page_size": 64},
    "no overlap": EAGLE | {"overlap": False},
    "n-gram": {"speculative_algorithm": "NGRAM", "overlap": True},
    "mixed": EAGLE | RETRACTING | {"enable_mixed_chunk": True},
    "mixed, no overlap": EAGLE | RETRACTING | {"enable_mixed_chunk": True, "overlap": False},
    "mixed, radix": EAGLE
    | {"enable_mixed_chunk": True, "disable_radix_cache": False, "eos_share": 0.0}
    | {"chunked_prefill_size": 16, "max_running_requests": 8},
    "pages of 4": EAGLE | {"page_size": 4, "disable_radix_cache": False, "schedule_policy": "lpm"},
    "retractions": EAGLE | RETRACTING | {"disable_radix_cache": False},
    "retractions, page 16": EAGLE | RETRACTING | {"page_size": 16},
    "lpm": EAGLE | {"disable_radix_cache": False, "schedule_policy": "lpm"},
    "ignore_eos": EAGLE | {"ignore_eos": True},
    "delayer": EAGLE | DELAYING,
}
DELAYS: Mapping[str, Sequence[int]] = {
    "no radix": (18, 22, 29, 42, 47, 210),
    "lpm": (10, 18, 19, 22, 29, 184, 119),
    "mixed": (18, 19, 22, 29, 42, 87, 54),
    "page 16": (19, 47, 52, 54, 59),
    "ignore_eos": (10, 18, 19, 22, 29),
    "retractions": (18, 19, 22, 29, 42),
    "watermark": (18,),
    "patience": (22,),
    "patience that ends with a pass": (22,),
}
DRAFTS: Mapping[str, Sequence[int]] = {
    "plain": (67, 180),
    "page 16": (67, 146),
    "page 64": (67,),
    "no overlap": (67, 180),
    "n-gram": (67,),
    "mixed": (55, 67, 90, 108),
    "mixed, no overlap": (67, 108),
    "mixed, radix": (141,),
    "pages of 4": (59,),
    "retractions": (180,),
    "retractions, page 16": (90, 108),
    "lpm": (180,),
    "ignore_eos": (67,),
    "delayer": (18, 67, 180),
}
KEPT = ("scheduled", "preempted", "admitted", "waiting", "free", "free_end", "finished", "t_end")


def cases(kinds: Kinds, seeds: Mapping[str, Sequence[int]]) -> list[tuple[int, Case]]:
    """The cases of these kinds and seeds."""
    return [(seed, drawn(seed, **kinds[kind])) for kind, chosen in seeds.items() for seed in chosen]


def record(file: Path, chosen: Sequence[tuple[int, Case]], folder: Path) -> None:
    """Write cases with SGLang's answers."""
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as out:
        for (seed, case), steps in zip(chosen, answers([case for _, case in chosen], folder), strict=True):
            item = {"seed": seed, "case": case, "records": [{key: step[key] for key in KEPT} for step in steps]}
            out.write(json.dumps(item, separators=(",", ":")).encode() + b"\n")
    file.write_bytes(packed.getvalue())


def main() -> None:
    folder = Path(sys.argv[1])
    record(DELAYER_FILE, cases(DELAYED, DELAYS), folder)
    record(DRAFTS_FILE, cases(DRAFTED, DRAFTS), folder)


if __name__ == "__main__":
    main()
