"""Our policies beside the references: random cases of each kind, and what of a step is compared."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from simulator.plan import Policy
from simulator.policies.tensorrt_llm import TensorrtLlm
from simulator.policies.tgi import Tgi
from tests.parity.reference_cases import (
    ReferenceCase,
    Told,
    first_difference,
    ours,
    random_blocks,
    random_requests,
)
from tests.parity.tensorrt_llm_reference import Executor
from tests.parity.tgi_reference import Router

CAPACITY = {
    "guaranteed_no_evict": "GUARANTEED_NO_EVICT",
    "max_utilization": "MAX_UTILIZATION",
    "static_batch": "STATIC_BATCH",
}


def tensorrt_llm_case(seed: int, capacity: str) -> tuple[ReferenceCase, Policy]:
    """Chunks of both kinds and none; a step has a token for each slot and is no shorter than a block."""
    rng = random.Random(f"tensorrt_llm {capacity} {seed}")
    chunking = rng.choice([None, "first_come_first_served", "first_come_first_served", "equal_progress"])
    requests = random_requests(rng, longest_prompt=90)
    size = rng.choice([1, 2, 4, 8, 16])
    slots = rng.choice([1, 2, 4, 8, 16])
    most = max(r.input_tokens + r.max_tokens for r in requests)
    limit = max(slots, size) + rng.choice([0, 1, 3, 8, 30, 100])
    if chunking is None:
        limit = max(limit, most)
    config = {
        "capacity_scheduler_policy": CAPACITY[capacity],
        "context_chunking_policy": chunking,
        "max_batch_size": slots,
        "max_num_tokens": limit,
    }
    case = ReferenceCase(seed, config, random_blocks(rng, requests, size, slots), size, requests)
    options: dict[str, Any] = {} if chunking is None else {"context_chunking_policy": chunking}
    return case, TensorrtLlm(slots, limit, capacity, chunking is not None, **options)  # type: ignore[arg-type] # a name


def tgi_case(seed: int, chunked: bool) -> tuple[ReferenceCase, Policy]:
    """Ratios and waits of all sizes; no prompt is longer than a prefill, or there are chunks and slots for all."""
    rng = random.Random(f"tgi {chunked} {seed}")
    requests = random_requests(rng, longest_prompt=90)
    size = rng.choice([1, 1, 2, 4, 16])
    slots = rng.choice([1, 2, 4, 8, 16, 64])
    prefill = max(r.input_tokens for r in requests) + rng.choice([0, 0, 1, 5, 40, 200])
    if chunked:
        slots, prefill = 64, rng.choice([1, 3, 8, 20, 50, 200])
    blocks = random_blocks(rng, requests, size, slots)
    total = (blocks + 1) * size + rng.randrange(size)
    config: dict[str, Any] = {
        "waiting_served_ratio": rng.choice([0.0, 0.1, 0.28, 0.3, 0.5, 1.2, 3.0, round(rng.random(), 2)]),
        "max_waiting_tokens": rng.choice([0, 1, 2, 3, 5, 20, 1000]),
        "max_batch_prefill_tokens": prefill,
        "max_batch_total_tokens": total,
        "max_batch_size": slots,
        "support_chunking": chunked,
    }
    given = blocks if rng.random() < 0.5 else blocks + rng.choice([0, 3, 100])
    case = ReferenceCase(seed, config, given, size, requests)
    policy = Tgi(
        slots,
        100_000,
        waiting_served_ratio=config["waiting_served_ratio"],
        max_waiting_tokens=config["max_waiting_tokens"],
        max_batch_prefill_tokens=prefill,
        max_batch_total_tokens=None if given == blocks and rng.random() < 0.5 else total,
        enable_chunked_prefill=chunked,
    )
    return case, policy


def overlapped_case(seed: int, capacity: str) -> tuple[ReferenceCase, Policy]:
    """The same cases under the overlap scheduler."""
    case, policy = tensorrt_llm_case(seed, capacity)
    assert isinstance(policy, TensorrtLlm)
    return case, replace(policy, async_scheduling=True)


@dataclass(frozen=True, slots=True)
class Kind:
    """Random cases by seed, the reference for them, and what of a step is compared."""

    make: Callable[[int], tuple[ReferenceCase, Policy]]
    reference: Callable[[ReferenceCase], list[Told]]
    fields: tuple[str, ...]


_STEP = ("start_s", "scheduled", "preempted", "finished")
KINDS = {
    **{
        name: Kind(
            partial(tgi_case, chunked=chunked),
            lambda case: Router(case).serve(),
            (*_STEP, "waiting", "used_blocks"),
        )
        for name, chunked in (("tgi", False), ("tgi chunked", True))
    },
    "tensorrt_llm max_utilization": Kind(
        partial(tensorrt_llm_case, capacity="max_utilization"),
        lambda case: Executor(case).serve(),
        (*_STEP, "used_blocks"),
    ),
    # Ours grants at once the blocks that TensorRT-LLM reserves in its reckoning and takes later.
    **{
        f"tensorrt_llm {capacity}": Kind(
            partial(tensorrt_llm_case, capacity=capacity), lambda case: Executor(case).serve(), _STEP
        )
        for capacity in ("guaranteed_no_evict", "static_batch")
    },
    **{
        f"tensorrt_llm {capacity} overlapped": Kind(
            partial(overlapped_case, capacity=capacity), lambda case: Executor(case).serve_overlapped(), _STEP
        )
        for capacity in ("guaranteed_no_evict", "static_batch")
    },
}


def compare(kind: str, seeds: Iterable[int]) -> str:
    """Hold our decisions against the reference's; AssertionError names the first case that differs."""
    cases = steps = preemptions = 0
    for seed in seeds:
        different, told = compare_case(kind, seed)
        assert different is None, f"{kind}, case {seed}: {different}"
        cases, steps = cases + 1, steps + len(told)
        preemptions += sum(len(step.preempted) for step in told)
    return f"{kind}: {cases} cases, {steps} steps, {preemptions} preemptions, all equal"


def compare_case(kind: str, seed: int) -> tuple[str | None, list[Told]]:
    """The first difference in a case, and what the reference did."""
    case, policy = KINDS[kind].make(seed)
    theirs = KINDS[kind].reference(case)
    return first_difference(ours(case, policy), theirs, KINDS[kind].fields), theirs
