"""Records vLLM's answers to small cases with drafts, for machines that have no vLLM.

usage: BATCHLAB_VLLM_PYTHON=PYTHON python -m tests.parity.record_drafts FOLDER_OF_THE_FEATURES
"""

import sys
from pathlib import Path

from tests.parity import draft_cases, live

WANTED = {
    "spec_cadence": 10, "spec_cadence_async": 5, "spec_passed": 4, "spec_dp": 8, "spec_slots": 4, "spec_longest": 6,
    "spec_lora": 4, "spec_lora_async": 4,
}  # fmt: skip
MOST_SCHEDULED = 450  # entries of `scheduled` in all steps of a case: larger ones tell little more
FIRST = {  # seeds of cases that tell a rule apart which few others do
    "spec_passed": [11, 37, 66, 140],
    "spec_dp": [50, 56],
    "spec_slots": [112, 39],
}


def main() -> None:
    found = []
    for kind, wanted in WANTED.items():
        seeds = [*FIRST.get(kind, ()), *range(1, 26)]
        kept = 0
        for seed, case, records in live.drafted(kind, seeds, Path(sys.argv[1])):
            parts = [part for step in records for part in step.get("ranks", [step])]
            is_small = sum(len(part["scheduled"]) for part in parts) <= MOST_SCHEDULED
            if kept < wanted and (is_small or seed in FIRST.get(kind, ())):
                kept += 1
                found.append({"kind": kind, "seed": seed, "case": case, "records": records})
    draft_cases.write(live.version(), found)
    print(f"{len(found)} cases, {draft_cases.FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
