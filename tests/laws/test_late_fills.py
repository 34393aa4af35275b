"""Blocks that decoding fills enter the cache late: what is found and forgotten is what it would be if they did not.

`PrefixCache` enters each block as it is filled; `PrefixLedger` lets them enter when a request first looks for them.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest

from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.policies import load_policy
from simulator.request import PromptContent
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.columns import workload_of
from tests.laws.scenarios import Memory

SIZE = 4


def telling(rng: np.random.Generator, requests: int) -> Workload:
    """Requests whose answers others may find: conversations, and token ids of few values, so that answers agree."""
    prompts, answers, content = [], [], []
    said: dict[int, tuple[int, ...]] = {}
    for _ in range(requests):
        prompt, answer, name = (int(drawn) for drawn in (rng.integers(1, 60), rng.integers(1, 60), rng.integers(4)))
        if rng.random() < 0.5:
            group = f"group {name % 2}" if name < 3 else None
            known = PromptContent(conversation=f"talk {name}", prefix_group=group, prefix_tokens=12 * (name < 3))
        else:
            before = said.get(name, tuple(range(40)))
            prompt = len(before) + int(rng.integers(1, 10))
            asked = (*before, *rng.integers(0, 2, prompt - len(before)).tolist())
            answered = tuple(rng.integers(0, 2, answer).tolist())
            said[name] = (*asked, *answered)[:100]
            known = PromptContent(prompt_token_ids=asked, output_token_ids=answered)
        prompts.append(prompt)
        answers.append(answer)
        content.append(known)
    arrivals = np.cumsum(rng.exponential(1 / rng.choice([5, 30, 200]), requests))
    lengths = np.array(answers)
    caps, priority = lengths + rng.integers(0, 5, requests), rng.integers(0, 3, requests)
    return workload_of(arrivals - arrivals[0], prompts, lengths, caps, priority, content=content)


def times_and_hits(workload: Workload, options: dict[str, Any], kind: Any, num_blocks: int, *, fast: bool) -> list[Any]:
    """What a run of `chunked_prefill` comes to, request by request."""
    records = simulate(
        workload,
        make_policy=lambda: load_policy("chunked_prefill", options),
        kv=Memory(num_blocks + 1, SIZE),
        cost=Linear(0.01, 2e-4, 1e-6),
        make_blocks=partial(kind, block_size=SIZE),
        fast_forward=fast,
    ).records
    rows = records.requests
    return [rows.first_token_s.tolist(), rows.last_token_s.tolist(), rows.cached_tokens.tolist()]


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("num_blocks", [46, 90, 300])
@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_late_entry_changes_nothing(overlaps: bool, num_blocks: int, order: str) -> None:
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "order": order, "async_scheduling": overlaps}
    for seed in range(4):
        workload = telling(np.random.default_rng(100 * num_blocks + seed), 30)
        expected = times_and_hits(workload, options, PrefixCache, num_blocks, fast=True)
        assert sum(expected[2]) > 0
        assert times_and_hits(workload, options, PrefixLedger, num_blocks, fast=True) == expected
        assert times_and_hits(workload, options, PrefixLedger, num_blocks, fast=False) == expected
