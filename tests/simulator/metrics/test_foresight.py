"""Hits of caches that know the future: against all that could be kept, all evictions, and what runs find."""

import random
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
from simulator.memory.ledger import PrefixLedger
from simulator.memory.radix_cache import RadixCache
from simulator.metrics.part_metrics import Foresight, Stretch, foresight, most_hits
from simulator.metrics.summary import summarize
from simulator.request import PromptContent
from simulator.results.records import Records
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.examples import examples
from tests.laws.caching import run_cached
from tests.laws.fleets import Fleet, fleets
from tests.laws.scenarios import Memory, Scenario, make_policy, make_workload
from tests.laws.test_radix import radix_scenarios
from tests.scenarios.runs.test_runner import small

SIZE = 4
BOUNDS = ("belady_hit_rate", "belady_pooled_hit_rate", "unlimited_hit_rate")


def bounds(records: Records, workload: Workload) -> Foresight | None:
    requests = {request.request_id: request for request in workload.requests()}
    return foresight(records, requests, np.ones(len(workload), bool))


def fits(stretches: list[Stretch], capacity: int) -> bool:
    """No moment, each just after a start, lies in more of them than there are blocks."""
    return all(sum(start <= at < stop for start, stop, _ in stretches) <= capacity for at, _, _ in stretches)


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_most_of_all_choices(seed: int) -> None:
    rng = random.Random(seed)
    drawn = [sorted((rng.randint(0, 9), rng.randint(0, 9))) for _ in range(8)]
    stretches: list[Stretch] = [(float(start), float(stop), 1) for start, stop in drawn]
    capacity = rng.randint(0, 3)
    choices = (list(some) for many in range(9) for some in combinations(stretches, many))
    most = max(len(some) for some in choices if fits(some, capacity))
    assert most_hits(stretches, capacity) == most
    together: dict[tuple[float, float], int] = {}
    for start, stop, _ in stretches:
        together[start, stop] = together.get((start, stop), 0) + 1
    assert most_hits([(*ends, many) for ends, many in together.items()], capacity) == most


def best_evictions(chains: list[tuple[int, ...]], memory: int) -> int:
    """The most blocks that any order of evictions finds, where one request after another uses its chain and a block."""

    @cache
    def most(place: int, kept: frozenset[tuple[int, ...]]) -> int:
        if place == len(chains):
            return 0
        blocks = [chains[place][: depth + 1] for depth in range(len(chains[place]))]
        found = next((depth for depth, block in enumerate(blocks) if block not in kept), len(blocks))
        others = sorted(kept - set(blocks))
        room = min(len(others), memory - len(blocks) - 1)
        later = (most(place + 1, frozenset(blocks) | set(some)) for some in combinations(others, room))
        # An end may be evicted as the next comes; so may any of what is kept, which the next choice decides.
        return found + max(later)

    return most(0, frozenset())


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_evictions_finds_more(seed: int) -> None:
    """Chains of blocks, each of use only behind all before it: every choice of what to keep, tried out."""
    rng = random.Random(seed)
    memory = rng.randint(5, 7)
    chains = [tuple(rng.randint(0, 1 + place) for place in range(rng.randint(1, 3))) for _ in range(8)]
    numbers = {chain[: place + 1]: 0 for chain in chains for place in range(len(chain))}
    numbers = {prefix: number for number, prefix in enumerate(numbers, 1)}
    workload = make_workload([float(row) for row in range(8)], [(len(chain) * SIZE + 1, 1) for chain in chains])
    told = [tuple(numbers[chain[: place + 1]] for place in range(len(chain))) for chain in chains]
    contents = [PromptContent(block_hashes=(*each, 1000 + row), hash_block_size=SIZE) for row, each in enumerate(told)]
    workload = replace(workload, content=contents)
    run = simulate(
        workload, make_policy=lambda: make_policy("chunked_prefill", 4, 64), kv=Memory(memory + 1, SIZE, 0),
        cost=Linear(0.01, 0.0, 0.0), make_blocks=partial(PrefixLedger, block_size=SIZE),
    )  # fmt: skip
    asked = int(workload.input_tokens.sum())
    found, most = int(run.records.requests.cached_tokens.sum()), SIZE * best_evictions(chains, memory)
    bound = bounds(run.records, workload)
    assert bound is not None
    assert bound.unlimited is not None
    assert found <= most <= round(bound.own * asked)
    assert bound.own <= bound.unlimited


def check(records: Records, workload: Workload) -> None:
    """No run finds more than its bounds, which stand in their order."""
    found, bound = summarize(records)["prefix_cache_hit_rate"], bounds(records, workload)
    if found is None:
        assert bound is None
        return
    assert bound is not None
    assert found <= bound.own + 1e-12
    if bound.pooled is not None:
        assert bound.unlimited is not None
        assert bound.own <= bound.pooled + 1e-12
        assert bound.pooled <= bound.unlimited + 1e-12


@given(data=st.data())
@examples(600)
def test_no_fleet_finds_more(data: st.DataObject) -> None:
    """Whatever is shared, preempted, swapped and evicted, under any router."""
    fleet: Fleet = data.draw(fleets(cached=True, max_requests=25))
    check(fleet.run().records, fleet.workload)


@given(scenario=radix_scenarios(max_requests=25))
@examples(200)
def test_no_tree_finds_more(scenario: Scenario) -> None:
    check(run_cached(scenario, make_cache=RadixCache).records, scenario.workload)


def conversations(**changes: Any) -> dict[str, Any]:
    chat = {
        "name": "chat", "arrival": {"process": "poisson", "rate": 4}, "prefix": {"tokens": 100},
        "input": {"dist": "uniform", "min": 50, "max": 300}, "output": {"dist": "uniform", "min": 20, "max": 100},
        "session": {"turns": {"dist": "uniform", "min": 1, "max": 5}},
    }  # fmt: skip
    workload = {"requests": 80, "classes": [chat]}
    changes = {"router": {"kind": "round_robin", "regret": True}, "engine__enable_prefix_caching": True, **changes}
    return small(replicas=2, workload=workload, **changes)


@pytest.mark.parametrize(("num_blocks", "preempts"), [(120, True), (300, False), (4000, False)])
@pytest.mark.parametrize("router", ["round_robin", "prefix_affinity"])
def test_the_summary_has_them_beside_the_regret(num_blocks: int, preempts: bool, router: str) -> None:
    asked = {"kind": router, "regret": True}
    summary = scenarios.run(conversations(router=asked, hardware__num_gpu_blocks=num_blocks)).summary
    assert (summary["preemptions"] > 0) == preempts
    own, pooled, unlimited = (summary[name] for name in BOUNDS)
    assert 0 < summary["prefix_cache_hit_rate"] <= own <= pooled <= unlimited < 1
    if num_blocks == 4000:  # nothing need be forgotten: what is lost is what came before an answer was there
        assert own < summary["prefix_cache_hit_rate"] + 0.01
        assert pooled == unlimited


CLIENT = {"max_attempts": 3, "backoff_s": 0.05, "timeout_s": 0.6}
USERS = {"process": "closed_loop", "concurrency": 4, "think_time_s": {"dist": "exponential", "mean_s": 0.1}}
FIXED = {"dist": "fixed", "value": 60}
LOOP = {"name": "a", "arrival": USERS, "input": FIXED, "output": FIXED, "session": {"turns": 3}}


@pytest.mark.parametrize(
    "changes",
    [
        {"workload__client": CLIENT, "engine__max_num_seqs": 2},
        {"workload__classes": [LOOP]},
        {"measure": {"warmup_s": 4.0}},
        {"engine__policy": "sglang"},
        {"fleet": [{"name": "a"}, {"name": "b", "engine": {"block_size": 32}}], "replicas": None},
    ],
    ids=["retries", "closed loop", "warm-up", "a tree", "unlike blocks"],
)
def test_whatever_the_traffic(changes: dict[str, Any]) -> None:
    scenario = conversations()
    for path, value in changes.items():
        *outer, last = path.split("__")
        holder = scenario
        for key in outer:
            holder = holder.setdefault(key, {})
        holder[last] = value
    scenario = {key: value for key, value in scenario.items() if value is not None}
    summary = scenarios.run(scenario).summary
    assert 0 < summary["prefix_cache_hit_rate"] <= summary["belady_hit_rate"] <= 1


@pytest.mark.parametrize("changes", [{"router": "round_robin"}, {"engine__enable_prefix_caching": False}])
def test_who_does_not_ask_is_not_told(changes: dict[str, Any]) -> None:
    assert not set(BOUNDS) & set(scenarios.run(conversations(**changes)).summary)
