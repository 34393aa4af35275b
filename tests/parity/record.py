"""Records vLLM's answers to rare cases and to small random ones, for machines that have no vLLM.

usage: BATCHLAB_VLLM_PYTHON=PYTHON python -m tests.parity.record FOLDER_OF_THE_ORACLE
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.parity import live, recorded
from tests.parity.cases import Case
from tests.parity.random_cases import random_case
from tests.parity.rare_cases import RARE_CASES

PLAIN = 24  # cases without a preemption
PREEMPTING = 96
MOST_SCHEDULED = 220  # entries of `scheduled` in all steps of a case: larger ones tell little more
BATCH = 200


def small_cases(oracle: Path) -> Iterator[tuple[Case, live.Steps]]:
    """For ever: random cases that are over soon, with vLLM's answers."""
    for first in count(0, BATCH):
        cases = [random_case(seed) for seed in range(first, first + BATCH)]
        for case, steps in zip(cases, live.answers(cases, oracle), strict=True):
            if sum(len(step["scheduled"]) for step in steps) <= MOST_SCHEDULED:
                yield case, steps


def choose(oracle: Path) -> recorded.Recorded:
    """The rare cases and the first small ones of each kind."""
    wanted = {True: PREEMPTING, False: PLAIN}
    found = recorded.Recorded(live.version(), [*RARE_CASES], live.answers(RARE_CASES, oracle))
    for case, steps in small_cases(oracle):
        preempts = any(step["preempted"] for step in steps)
        if wanted[preempts]:
            wanted[preempts] -= 1
            found.cases.append(case)
            found.answers.append(steps)
        if not any(wanted.values()):
            break
    return found


def main() -> None:
    reason = live.missing()
    if reason is not None or len(sys.argv) != 2:
        raise SystemExit(reason or __doc__)
    found = choose(Path(sys.argv[1]))
    recorded.write(found)
    steps = sum(len(answer) for answer in found.answers)
    size = recorded.FILE.stat().st_size
    print(f"{recorded.FILE}: {len(found.cases)} cases, {steps} steps, {size} bytes, vLLM {found.version}")


if __name__ == "__main__":
    main()
