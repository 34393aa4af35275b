"""Records vLLM's answers to rare cases and to small random ones, for machines that have no vLLM.

usage: BATCHLAB_VLLM_PYTHON=PYTHON python -m tests.parity.record FOLDER_OF_THE_ORACLE
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from tests.parity import live, recorded
from tests.parity.cases import Case
from tests.parity.random_cases import (
    aborted,
    random_async_caching_case,
    random_async_case,
    random_caching_case,
    random_case,
)
from tests.parity.rare_cases import RARE_CACHING_CASES, RARE_CASES

# How many small cases of each kind: those that preempt, and those that do not.
WANTED = {True: 96, False: 24}
WANTED_CACHING = {True: 32, False: 24}
WANTED_ASYNC = {True: 24, False: 4}
WANTED_ABORTS = {True: 8, False: 8}
MOST_SCHEDULED = 220  # entries of `scheduled` in all steps of a case: larger ones tell little more
BATCH = 200

Draw = Callable[[int], Case]


def small_cases(draw: Draw, oracle: Path) -> Iterator[tuple[Case, live.Steps]]:
    """For ever: random cases that are over soon, with vLLM's answers. Of those with a prefix cache, such as use it."""
    for first in count(0, BATCH):
        cases = [draw(seed) for seed in range(first, first + BATCH)]
        for case, steps in zip(cases, live.answers(cases, oracle), strict=True):
            idle = case["config"].get("enable_prefix_caching") and not live.hit_tokens(steps)
            abortless = any("abort_time" in r for r in case["requests"]) and not any("aborted" in s for s in steps)
            if not idle and not abortless and sum(len(step["scheduled"]) for step in steps) <= MOST_SCHEDULED:
                yield case, steps


def choose(rare: Sequence[Case], draw: Draw, wanted: dict[bool, int], oracle: Path) -> recorded.Recorded:
    """The rare cases and the first small ones of each kind."""
    left = dict(wanted)
    found = recorded.Recorded(live.version(), [*rare], live.answers(rare, oracle))
    for case, steps in small_cases(draw, oracle):
        preempts = any(step["preempted"] for step in steps)
        if left[preempts]:
            left[preempts] -= 1
            found.cases.append(case)
            found.answers.append(steps)
        if not any(left.values()):
            break
    return found


def keep(found: recorded.Recorded, path: Path) -> None:
    recorded.write(found, path)
    steps = sum(len(answer) for answer in found.answers)
    size = path.stat().st_size
    print(f"{path}: {len(found.cases)} cases, {steps} steps, {size} bytes, vLLM {found.version}")


def main() -> None:
    reason = live.missing()
    if reason is not None or len(sys.argv) != 2:
        raise SystemExit(reason or __doc__)
    oracle = Path(sys.argv[1])
    keep(choose(RARE_CASES, random_case, WANTED, oracle), recorded.FILE)
    keep(choose(RARE_CACHING_CASES, random_caching_case, WANTED_CACHING, oracle), recorded.CACHING_FILE)
    found = choose((), random_async_case, WANTED_ASYNC, oracle)
    caching = choose((), random_async_caching_case, WANTED_ASYNC, oracle)
    found.cases.extend(caching.cases)
    found.answers.extend(caching.answers)
    keep(found, recorded.ASYNC_FILE)
    found = recorded.Recorded(live.version(), [], [])
    for draw in (random_case, random_caching_case, random_async_case, random_async_caching_case):
        more = choose((), partial(aborted, draw), WANTED_ABORTS, oracle)
        found.cases.extend(more.cases)
        found.answers.extend(more.answers)
    keep(found, recorded.ABORTS_FILE)


if __name__ == "__main__":
    main()
