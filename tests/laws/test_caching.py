"""The laws with a prefix cache: it changes what is computed, and nothing about what is counted, kept or decided how."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings

from scenarios.check.law_trial import differences
from simulator.memory.block_keys import HASHED, NUMBER
from simulator.memory.prefix_cache import PrefixCache
from simulator.metrics.summary import summarize
from simulator.results.records import Status
from simulator.simulate import Run
from simulator.timing.formula_cost import Linear
from tests.examples import examples
from tests.laws.caching import (
    CheckingCache,
    caching_scenarios,
    common_prefix,
    mixed,
    run_cached,
    sequence_of,
    with_contents,
)
from tests.laws.scenarios import Memory, Scenario, make_policy, make_workload

Decisions = list[dict[str, Any]]


def steps_of(run: Run) -> Decisions:
    assert run.decisions is not None
    return run.decisions


def fixed_scenario() -> Scenario:
    """Everything at once: content of every kind, priorities, chunks, two replicas, and hardly any memory."""
    rng = np.random.default_rng(3)
    count = 150
    lengths = list(zip(rng.integers(1, 60, count).tolist(), rng.integers(1, 40, count).tolist(), strict=True))
    arrivals = np.cumsum(rng.choice([0.0, 0.0, 0.01, 0.05], count)).tolist()
    workload = make_workload(arrivals, lengths, priority=rng.integers(0, 3, count).tolist())
    options: dict[str, Any] = {"order": "priority", "long_prefill_token_threshold": 9, "reserve_full_isl": False}
    policy = make_policy("chunked_prefill", 8, 64, **options)
    scenario = Scenario(workload, policy, Memory(60, 4), Linear(0.005, 2e-5, 5e-7), replicas=2)
    return with_contents(scenario, mixed(random.Random(4), workload, 4))


# -------------------------------------------------------------------------------------------------- one step at a time


def run_keeping(scenario: Scenario, *, fast_forward: bool) -> tuple[Run, list[object]]:
    """A run, and what its caches hold in the end: the free queues, and which blocks serve each content in turn."""
    caches: list[PrefixCache] = []

    def make_cache(num_blocks: int, num_host_blocks: int, block_size: int) -> PrefixCache:
        caches.append(PrefixCache(num_blocks, num_host_blocks, block_size))
        return caches[-1]

    run = run_cached(scenario, fast_forward=fast_forward, make_cache=make_cache)
    return run, [(list(cache._free), named(cache)) for cache in caches]


def named(cache: PrefixCache) -> dict[Hashable, list[int]]:
    """The blocks that serve each content. Numbers are given in the order of looking, which fast-forward changes."""
    chains, size = cache.keys._chains, cache.block_size
    names: dict[int, Hashable] = {number: name for name, number in chains._names.items()}
    texts = {number: (before, told + said) for (before, _), (number, _, (told, said), *_) in chains.texts.items()}
    numbers = sorted([*names, *texts])

    def text_of(key: Hashable) -> tuple[Hashable, tuple[Hashable, ...]]:
        """The adapter, and the tokens up to and including this block."""
        if not isinstance(key, int) or not key:
            return key, ()
        number = numbers[bisect_right(numbers, key) - 1]
        before, tokens = texts[number]
        lora, above = text_of(before)
        return lora, tokens[: len(above) + (key - number + 1) * size]

    def name(key: Hashable) -> Hashable:
        if not isinstance(key, int) or key % NUMBER >= HASHED or key < NUMBER:
            return key
        number = numbers[bisect_right(numbers, key) - 1]
        return text_of(key) if number in texts else (names[number], key - number)

    return {name(key): list(same) for key, same in cache._blocks.items()}


def same_with_and_without(scenario: Scenario) -> None:
    fast, left = run_keeping(scenario, fast_forward=True)
    stepwise, also_left = run_keeping(scenario, fast_forward=False)
    assert differences(fast.records, stepwise.records) == []
    assert fast.decisions == stepwise.decisions
    assert left == also_left, "the same blocks hold the same, and go in the same order"


@given(scenario=caching_scenarios())
@examples(500)
def test_fast_forward_equals_stepwise(scenario: Scenario) -> None:
    same_with_and_without(scenario)


@given(scenario=caching_scenarios(policy="chunked_prefill async"))
@examples(300)
def test_fast_forward_equals_stepwise_where_steps_overlap(scenario: Scenario) -> None:
    same_with_and_without(scenario)


@pytest.mark.slow
@given(scenario=caching_scenarios(max_requests=30))
@settings(max_examples=10_000)
def test_fast_forward_equals_stepwise_very_often(scenario: Scenario) -> None:
    same_with_and_without(scenario)


def test_the_fixed_scenario_has_everything() -> None:
    """What the laws below would miss if it did not happen."""
    scenario = fixed_scenario()
    run = run_cached(scenario)
    steps = steps_of(run)
    assert sum(sum(step["admitted"].values()) for step in steps) > 500
    assert sum(bool(step["preempted"]) for step in steps) > 50
    assert (run.records.requests.recomputed_tokens < 0).sum() == 0
    same_with_and_without(scenario)


# ------------------------------------------------------------------------------------------------------- conservation


def run_checked(scenario: Scenario) -> None:
    caches: list[CheckingCache] = []

    def make_cache(num_blocks: int, num_host_blocks: int, block_size: int) -> CheckingCache:
        caches.append(CheckingCache(num_blocks, num_host_blocks, block_size))
        return caches[-1]

    checked, plain = run_cached(scenario, make_cache=make_cache), run_cached(scenario)
    assert differences(checked.records, plain.records) == []
    assert checked.decisions == plain.decisions
    requests = checked.records.requests
    assert (requests.status != Status.UNFINISHED).all()
    for index, cache in enumerate(caches):
        assert cache.is_empty, "blocks leaked"
        served = (requests.replica == index) & (requests.status == Status.FINISHED)
        assert bool(cache.operations) == bool(served.any())


@given(scenario=caching_scenarios())
@examples(150)
def test_blocks_are_conserved(scenario: Scenario) -> None:
    run_checked(scenario)


@given(scenario=caching_scenarios(policy="chunked_prefill async"))
@examples(100)
def test_blocks_are_conserved_where_steps_overlap(scenario: Scenario) -> None:
    run_checked(scenario)


def test_blocks_are_conserved_for_long() -> None:
    run_checked(fixed_scenario())


@given(scenario=caching_scenarios())
@examples(150)
def test_tokens_add_up(scenario: Scenario) -> None:
    """Scheduled and found in the cache account for every token: from the log alone, then against the columns."""
    account_for_tokens(run_cached(scenario), scenario.memory.block_size)


def account_for_tokens(run: Run, size: int) -> None:
    requests = run.records.requests
    computed: dict[str, int] = {}
    lost: Counter[str] = Counter()
    cached: Counter[str] = Counter()
    again: Counter[str] = Counter()
    for step in sorted(steps_of(run), key=lambda step: (step["replica"], step["step"])):
        for request_id in step["preempted"]:
            lost[request_id] = computed.pop(request_id)
            again[request_id] += lost[request_id]
        for request_id, hits in step["admitted"].items():
            assert hits % size == 0
            computed[request_id] = hits
            cached[request_id] += min(hits, int(requests.input_tokens[int(request_id)]))
            again[request_id] -= min(hits, lost.pop(request_id, 0))
        for request_id, tokens in step["scheduled"].items():
            assert tokens > 0, "a token at least is computed, however much is cached"
            computed[request_id] += tokens
        for request_id in step["finished"]:
            row = int(request_id)
            assert computed.pop(request_id) == requests.input_tokens[row] + requests.output_tokens[row] - 1
    assert not computed
    rows = range(len(requests.row))
    assert requests.cached_tokens.tolist() == [cached[str(row)] for row in rows]
    assert requests.recomputed_tokens.tolist() == [again[str(row)] for row in rows]
    prefilled = run.records.rows.prefill_tokens * run.records.rows.repeat
    scheduled = sum(sum(step["scheduled"].values()) for step in steps_of(run))
    assert scheduled == int(prefilled.sum() + (run.records.rows.decoding * run.records.rows.repeat).sum())


@given(scenario=caching_scenarios())
@examples(100)
def test_free_and_used_blocks_agree(scenario: Scenario) -> None:
    """The log counts free blocks after a decision, the columns those used during the step."""
    one = replace(scenario, replicas=1)
    run = run_cached(one)
    usable = one.memory.num_gpu_blocks - 1
    assert [usable - step["num_free_blocks"] for step in steps_of(run)] == run.records.step_used_blocks.tolist()
    for step in steps_of(run):
        assert step["num_free_blocks_end"] >= step["num_free_blocks"]
        if not step["running"] or set(step["finished"]) == set(step["running"]):
            assert step["num_free_blocks_end"] == usable


# --------------------------------------------------------------------------------------------- what there is to hit


def ideal_hits(scenario: Scenario, steps: Decisions) -> list[tuple[str, int, int]]:
    """(request, hits, hits that a cache which forgets nothing would give), from the tokens themselves.

    Whatever was scheduled before is there, as far as it fills blocks; so is what the same step schedules earlier.
    """
    workload, size = scenario.workload, scenario.memory.block_size
    contents = workload.content or [None] * len(workload)
    inputs, outputs = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    sequences = [
        sequence_of(row, inputs[row], content)[: inputs[row] + outputs[row]] for row, content in enumerate(contents)
    ]
    longest: dict[int, int] = {}  # tokens of each request that have ever been scheduled
    computed: dict[int, int] = {}
    sampled: Counter[int] = Counter()
    found = []
    for step in steps:
        for request_id, tokens in step["scheduled"].items():
            row = int(request_id)
            if request_id in step["admitted"]:
                hits = step["admitted"][request_id]
                mine: list[Hashable] = sequences[row]
                most = (inputs[row] + sampled[row] - 1) // size * size
                shared = (common_prefix(mine, sequences[r], min(most, there)) for r, there in longest.items())
                found.append((request_id, hits, max((tokens // size * size for tokens in shared), default=0)))
                computed[row] = hits
            computed[row] += tokens
            longest[row] = max(longest.get(row, 0), computed[row] // size * size)
            if computed[row] == inputs[row] + sampled[row]:
                sampled[row] += 1
    return found


def with_memory_for_all(scenario: Scenario) -> Scenario:
    workload, size = scenario.workload, scenario.memory.block_size
    blocks = int((-(-(workload.input_tokens + workload.output_tokens) // size)).sum())
    return replace(scenario, replicas=1, memory=Memory(4 * blocks + 10, size))


@given(scenario=caching_scenarios())
@examples(150)
def test_with_memory_for_all_everything_known_is_hit(scenario: Scenario) -> None:
    plenty = with_memory_for_all(scenario)
    run = run_cached(plenty)
    found = ideal_hits(plenty, steps_of(run))
    assert len(found) == len(plenty.workload)
    assert [(request_id, hits) for request_id, hits, _ in found] == [(name, ideal) for name, _, ideal in found]
    tokens = int(plenty.workload.input_tokens.sum())
    rate = summarize(run.records)["prefix_cache_hit_rate"]
    assert rate == sum(hits for _, hits, _ in found) / tokens


@given(scenario=caching_scenarios())
@examples(150)
def test_nothing_unknown_is_hit(scenario: Scenario) -> None:
    """However short of memory. (By priority, a victim leaves blocks in the cache that it never computed.)"""
    policy: Any = scenario.policy
    fcfs = replace(scenario, replicas=1, policy=replace(policy, order="fcfs"))
    for _, hits, ideal in ideal_hits(fcfs, steps_of(run_cached(fcfs))):
        assert hits <= ideal


@given(scenario=caching_scenarios())
@examples(200)
def test_without_anything_to_hit_the_cache_changes_nothing(scenario: Scenario) -> None:
    """No shared content and no preemption, after which a request would find its own blocks."""
    alone = with_contents(scenario, [None] * len(scenario.workload))
    off = alone.run(log_decisions=True)
    assume(not off.records.requests.preemptions.any())
    on = run_cached(alone)
    assert differences(on.records, off.records) == []
    assert on.decisions == off.decisions


@given(scenario=caching_scenarios())
@examples(60)
def test_preempted_requests_find_their_own(scenario: Scenario) -> None:
    """Without shared content, whatever is found was lost: nothing is saved that was not computed before."""
    policy: Any = scenario.policy
    alone = with_contents(scenario, [None] * len(scenario.workload))
    alone = replace(alone, policy=replace(policy, order="fcfs"))
    requests = run_cached(alone).records.requests
    assert (requests.cached_tokens[requests.preemptions == 0] == 0).all()
    assert (requests.recomputed_tokens >= 0).all()
