"""Random cases through vLLM's own scheduler and through ours: every decision of every step is the same.

BATCHLAB_PARITY_CASES says how many of each kind; the first are always the same. Of a kind with drafts there are
a sixth as many.
"""

import json
import os
from collections.abc import Callable
from functools import partial

import pytest

from tests.parity import draft_cases, features, live
from tests.parity.cases import Case, decisions_of, first_difference
from tests.parity.random_cases import (
    aborted,
    random_async_caching_case,
    random_async_case,
    random_caching_case,
    random_case,
    weighted,
)
from tests.shared_data import shared

CASES = int(os.environ.get("BATCHLAB_PARITY_CASES", "300"))
BATCH = 150  # cases for one process of vLLM, whose start takes seconds

pytestmark = [pytest.mark.vllm, pytest.mark.shared]


KINDS: dict[str, Callable[[int], Case]] = {
    "plain": random_case,
    "caching": random_caching_case,
    "async": random_async_case,
    "async_caching": random_async_caching_case,
}
ABORTING: dict[str, Callable[[int], Case]] = {kind: partial(aborted, draw) for kind, draw in KINDS.items()}


WEIGHTED: dict[str, Callable[[int], Case]] = {kind: partial(weighted, draw) for kind, draw in KINDS.items()}


def difference(seed: int, case: Case, theirs: live.Steps) -> str | None:
    """Half of the cases with fast-forward, a third with blocks that have ids."""
    ours = decisions_of(case, fast_forward=seed % 2 == 0, by_id=seed % 3 == 0)
    return first_difference(case, ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_random_cases_are_scheduled_as_vllm_does(first: int, kind: str) -> None:
    seeds = range(first, min(first + BATCH, CASES))
    cases = [KINDS[kind](seed) for seed in seeds]
    answers = live.answers(cases, shared("oracle"))
    preemptions = [sum(len(step["preempted"]) for step in steps) for steps in answers]
    hits = [live.hit_tokens(steps) for steps in answers]
    print(
        f"{len(cases)} cases, {sum(map(len, answers))} steps, {sum(preemptions)} preemptions, "
        f"{sum(hits)} tokens found in the cache"
    )
    for seed, case, theirs in zip(seeds, cases, answers, strict=True):
        different = difference(seed, case, theirs)
        assert different is None, f"case {seed}: {different}\n{json.dumps(case)}"
    if len(cases) == BATCH:
        # Without a shortage of memory, or without content that is shared, nothing hard would have been compared.
        assert sum(count > 0 for count in preemptions) > 0.3 * BATCH
        assert sum(preemptions) > 2 * BATCH
        assert (sum(count > 0 for count in hits) > 0.5 * BATCH) == kind.endswith("caching")


@pytest.mark.parametrize("kind", WEIGHTED)
@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_vllm_with_our_scheduler_class_orders_as_the_order_weighted(first: int, kind: str) -> None:
    """The class is that of the file which a search writes, in vLLM's own scheduler."""
    seeds = range(first, min(first + BATCH, CASES))
    cases = [WEIGHTED[kind](seed) for seed in seeds]
    answers = live.answers(cases, shared("oracle"))
    moved = 0
    for seed, case, theirs in zip(seeds, cases, answers, strict=True):
        different = difference(seed, case, theirs)
        assert different is None, f"case {seed}: {different}\n{json.dumps(case)}"
        in_order = decisions_of({key: value for key, value in case.items() if key != "weights"})
        moved += first_difference(case, in_order, theirs) is not None
    print(f"{len(cases)} cases, {sum(map(len, answers))} steps, {moved} of them not as fcfs")
    assert moved > 0.2 * len(cases)


@pytest.mark.parametrize("kind", ABORTING)
@pytest.mark.parametrize("first", range(0, CASES, BATCH))
def test_random_cases_with_aborts_are_scheduled_as_vllm_does(first: int, kind: str) -> None:
    seeds = range(first, min(first + BATCH, CASES))
    cases = [ABORTING[kind](seed) for seed in seeds]
    answers = live.answers(cases, shared("oracle"))
    aborts = [sum(len(step.get("aborted", [])) for step in steps) for steps in answers]
    print(f"{len(cases)} cases, {sum(map(len, answers))} steps, {sum(aborts)} aborts")
    for seed, case, theirs in zip(seeds, cases, answers, strict=True):
        different = difference(seed, case, theirs)
        assert different is None, f"case {seed}: {different}\n{json.dumps(case)}"
    if len(cases) == BATCH:
        assert sum(count > 0 for count in aborts) > 0.5 * BATCH
        assert sum(len(step["preempted"]) for steps in answers for step in steps) > BATCH


DRAFTED = [kind + mode for kind in features.SPECULATIVE for mode in ("", "_async")]


@pytest.mark.parametrize("kind", [*DRAFTED, *draft_cases.TOGETHER])
def test_random_cases_with_drafts_are_scheduled_as_vllm_does(kind: str) -> None:
    seeds = range(5_000, 5_000 + CASES // 6)
    drafts = preemptions = 0
    for seed, case, theirs in live.drafted(kind, seeds, shared("oracle/features")):
        ours = features.decide(kind, case)
        different = draft_cases.first_difference(ours, theirs)
        assert different is None, f"case {seed}: {different}\n{json.dumps(case)}"
        for step in theirs:
            for part in step.get("ranks", [step]):
                drafts += sum(part.get("spec", {}).values())
                preemptions += len(part.get("preempted", []))
    print(f"{kind}: {drafts} drafts, {preemptions} preemptions")
    assert drafts > 10 * len(seeds)
