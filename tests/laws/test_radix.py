"""The laws for SGLang's radix tree: what holds of any prefix cache, and what is known when."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.memory.radix_cache import PLACES, RadixCache
from simulator.plan import Policy
from simulator.policies.sglang import Sglang
from simulator.queues.lpm import IN_BATCH_TOKENS, Lpm
from simulator.request import Request
from simulator.results.records import Status
from simulator.simulate import Run
from simulator.timing.formula_cost import Linear
from tests.examples import examples
from tests.laws.caching import caching_scenarios, common_prefix, mixed, run_cached, sequence_of, with_contents
from tests.laws.scenarios import Memory, Scenario, make_workload
from tests.laws.test_caching import account_for_tokens, steps_of, with_memory_for_all
from tests.laws.test_caching_purity import Watched

Dump = list[Any]


@st.composite
def radix_scenarios(draw: st.DrawFn, *, max_requests: int = 12) -> Scenario:
    """A scenario for sglang with content that requests share, half of the time in the order lpm."""
    scenario = draw(caching_scenarios(policy="sglang", max_requests=max_requests))
    policy: Any = scenario.policy
    return replace(scenario, policy=replace(policy, order="lpm")) if draw(st.booleans()) else scenario


def synchronous(scenario: Scenario) -> Scenario:
    """The same without overlap, so that what a step computed is known to the next plan; answers may end early."""
    policy: Any = scenario.policy
    return replace(scenario, policy=replace(policy, async_scheduling=False, ignore_eos=False))


def fixed_scenario(order: str = "lpm") -> Scenario:
    """Everything at once: content of every kind, chunks, two replicas, and hardly any memory."""
    rng = np.random.default_rng(5)
    count = 150
    lengths = list(zip(rng.integers(1, 40, count).tolist(), rng.integers(1, 120, count).tolist(), strict=True))
    workload = make_workload(np.cumsum(rng.choice([0.0, 0.0, 0.005, 0.03], count)).tolist(), lengths)
    workload = replace(workload, max_tokens=workload.output_tokens)
    policy = Sglang(16, 32, schedule_conservativeness=0.0, order=order)
    scenario = Scenario(workload, policy, Memory(90, 4), Linear(0.005, 2e-5, 5e-7), replicas=2)
    return with_contents(scenario, mixed(random.Random(4), workload, 4))


def run_keeping(
    scenario: Scenario, *, fast_forward: bool = True, make_policy: Callable[[], Policy] | None = None
) -> tuple[Run, list[Dump]]:
    """A run, and what its trees hold in the end, with the time of every node's last use."""
    caches: list[RadixCache] = []

    def make_cache(num_blocks: int, num_host_blocks: int, block_size: int) -> RadixCache:
        caches.append(RadixCache(num_blocks, num_host_blocks, block_size))
        return caches[-1]

    run = run_cached(scenario, fast_forward=fast_forward, make_cache=make_cache, make_policy=make_policy)
    return run, [dump(cache) for cache in caches]


def dump(cache: RadixCache) -> Dump:
    """The tree from its root on, with texts by their names: their numbers say only which was asked for first."""
    names = {number: str(name) for name, number in cache._symbols.items()}

    def named(page: int) -> tuple[str, int]:
        return (names[page // PLACES], page % PLACES) if page > 0 else ("its request's own", page)

    told: Dump = [cache.num_free]
    rest = [(0, cache.tree.root)]
    while rest:
        depth, node = rest.pop()
        told.append((depth, list(map(named, node.pages)), node.locks, node.used_at))
        rest.extend((depth + 1, node.children[page]) for page in sorted(node.children, key=named))
    return told


def same_with_and_without(scenario: Scenario) -> None:
    fast, left = run_keeping(scenario)
    stepwise, also_left = run_keeping(scenario, fast_forward=False)
    assert differences(fast.records, stepwise.records) == []
    assert fast.decisions == stepwise.decisions
    assert left == also_left


@given(scenario=radix_scenarios())
@examples(300)
def test_fast_forward_equals_stepwise(scenario: Scenario) -> None:
    same_with_and_without(scenario)


@pytest.mark.slow
@given(scenario=radix_scenarios(max_requests=30))
@settings(max_examples=5_000)
def test_fast_forward_equals_stepwise_very_often(scenario: Scenario) -> None:
    same_with_and_without(scenario)


@pytest.mark.parametrize("order", ["fcfs", "lpm"])
def test_the_fixed_scenario_has_everything(order: str) -> None:
    """What the laws would miss if it did not happen."""
    scenario = fixed_scenario(order)
    run, _ = run_keeping(scenario)
    assert sum(sum(step["admitted"].values()) for step in steps_of(run)) > 100
    assert sum(bool(step["preempted"]) for step in steps_of(run)) > 10
    same_with_and_without(scenario)
    run_checked(scenario)


class CheckingRadix(RadixCache):
    """Checks its whole state after every operation, and that the operation took or freed what it should."""

    def _checked(self, free: int) -> None:
        assert self.num_free == free
        self.check()

    def take_hits(self, request: Request, blocks: int) -> None:
        found, unused = self.hits(request, blocks * self.block_size + 1)
        assert found == blocks
        before = self.num_free
        super().take_hits(request, blocks)
        self._checked(before - unused)

    def grow(self, num_blocks: int, rows: Iterable[int]) -> None:
        before = self.num_free
        super().grow(num_blocks, rows)
        self._checked(before - num_blocks)

    def settle(self, rows: Iterable[int]) -> None:
        before = self.num_free
        super().settle(rows)
        self.check()
        assert self.num_free >= before, "what was computed twice comes free"

    def free(self, row: int, num_blocks: int) -> None:
        before, alone = self.num_free, self.freed_with({row: num_blocks})
        super().free(row, num_blocks)
        self._checked(before + alone)

    def lose(self, row: int, num_blocks: int) -> None:
        before, alone = self.num_free, self.freed_with({row: num_blocks})
        super().lose(row, num_blocks)
        self._checked(before + alone)

    @property
    def is_empty(self) -> bool:
        """Nobody owns anything, and nothing is kept about anybody but the tree."""
        return not self._holders and not self._keys and self._own == 0 and self.num_free == self.num_blocks


def run_checked(scenario: Scenario) -> None:
    caches: list[CheckingRadix] = []

    def make_cache(num_blocks: int, num_host_blocks: int, block_size: int) -> CheckingRadix:
        caches.append(CheckingRadix(num_blocks, num_host_blocks, block_size))
        return caches[-1]

    checked, plain = run_cached(scenario, make_cache=make_cache), run_cached(scenario, make_cache=RadixCache)
    assert differences(checked.records, plain.records) == []
    assert (checked.records.requests.status != Status.UNFINISHED).all()
    assert all(cache.is_empty for cache in caches), "pages leaked"


@given(scenario=radix_scenarios())
@examples(100)
def test_pages_are_conserved(scenario: Scenario) -> None:
    run_checked(scenario)


@given(scenario=radix_scenarios().map(synchronous))
@examples(100)
def test_tokens_add_up(scenario: Scenario) -> None:
    account_for_tokens(run_cached(scenario, make_cache=RadixCache), scenario.memory.block_size)


@given(scenario=radix_scenarios().map(synchronous))
@examples(60)
def test_free_and_used_pages_agree(scenario: Scenario) -> None:
    one = replace(scenario, replicas=1)
    run = run_cached(one, make_cache=RadixCache)
    usable = one.memory.num_gpu_blocks - 1
    assert [usable - step["num_free_blocks"] for step in steps_of(run)] == run.records.step_used_blocks.tolist()
    for step in steps_of(run):
        assert step["num_free_blocks_end"] >= step["num_free_blocks"]
        if set(step["finished"]) == set(step["running"]):
            assert step["num_free_blocks_end"] == usable


@given(scenario=radix_scenarios(max_requests=8))
@examples(60)
def test_every_instalment_is_pure(scenario: Scenario) -> None:
    parts: list[Any] = []
    watched = run_cached(scenario, make_cache=RadixCache, make_policy=lambda: Watched(scenario.policy, parts))
    plain = run_cached(scenario, make_cache=RadixCache)
    assert watched.decisions == plain.decisions
    assert len(parts) >= len([step for step in steps_of(plain) if step["admitted"]])


def known_hits(scenario: Scenario, steps: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """(hits, those of a tree that forgets nothing) of each admission, from the tokens themselves.

    What earlier steps computed of prompts is known, and all of a request that has ended; not what the same step
    computes, nor what a running request has decoded.
    """
    workload, size = scenario.workload, scenario.memory.block_size
    contents = workload.content or [None] * len(workload)
    inputs, outputs = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    sequences = [
        sequence_of(row, inputs[row], content)[: inputs[row] + outputs[row]] for row, content in enumerate(contents)
    ]
    longest: dict[int, int] = {}  # leading tokens of each request that are known
    computed: dict[int, int] = {}
    target: dict[int, int] = {}
    sampled: Counter[int] = Counter()
    found = []
    for step in steps:
        for request_id, hits in step["admitted"].items():
            row = int(request_id)
            mine: list[Hashable] = sequences[row]
            target[row] = inputs[row] + sampled[row]
            most = (target[row] - 1) // size * size
            shared = [common_prefix(mine, sequences[r], min(most, there)) for r, there in longest.items()]
            found.append((hits, max((tokens // size * size for tokens in shared), default=0)))
            computed[row] = hits
        for request_id, tokens in step["scheduled"].items():
            row = int(request_id)
            is_prompt = computed[row] < target[row]
            computed[row] += tokens
            if is_prompt:
                longest[row] = max(longest.get(row, 0), computed[row] // size * size)
            if computed[row] >= target[row]:
                sampled[row] += 1
        for request_id in step["finished"]:
            longest[int(request_id)] = computed[int(request_id)] // size * size
    return found


@given(scenario=radix_scenarios().map(synchronous))
@examples(100)
def test_with_memory_for_all_everything_known_is_hit(scenario: Scenario) -> None:
    plenty = with_memory_for_all(scenario)
    found = known_hits(plenty, steps_of(run_cached(plenty, make_cache=RadixCache)))
    assert len(found) == len(plenty.workload)
    assert [hits for hits, _ in found] == [known for _, known in found]


@given(scenario=radix_scenarios().map(synchronous))
@examples(100)
def test_nothing_unknown_is_hit(scenario: Scenario) -> None:
    one = replace(scenario, replicas=1)
    assert all(hits <= known for hits, known in known_hits(one, steps_of(run_cached(one, make_cache=RadixCache))))


@given(scenario=caching_scenarios(policy="sglang").map(synchronous))
@examples(200)
def test_without_anything_to_hit_the_tree_changes_nothing(scenario: Scenario) -> None:
    """No shared content and no retraction, after which a request would find its own prompt."""
    alone = with_contents(scenario, [None] * len(scenario.workload))
    off = alone.run(log_decisions=True)
    assume(not off.records.requests.preemptions.any())
    on = run_cached(alone, make_cache=RadixCache)
    assert differences(on.records, off.records) == []
    assert on.decisions == off.decisions


@given(scenario=caching_scenarios(policy="sglang"))
@examples(60)
def test_lpm_is_first_come_first_served_where_nothing_is_shared(scenario: Scenario) -> None:
    policy: Any = scenario.policy
    alone = with_contents(scenario, [None] * len(scenario.workload))
    fcfs = replace(alone, policy=replace(policy, order="fcfs"))
    one = run_cached(fcfs, make_cache=RadixCache)
    assume(not one.records.requests.preemptions.any())
    lpm = replace(alone, policy=replace(policy, order="lpm"))
    assert run_cached(lpm, make_cache=RadixCache).decisions == one.decisions


@given(scenario=radix_scenarios())
@examples(60)
def test_the_longest_prefix_comes_first(scenario: Scenario) -> None:
    """Of those that find much, the first in the queue of a plan finds at least what any other would."""
    policy: Any = scenario.policy
    lpm = replace(scenario, policy=replace(policy, order="lpm"))
    looks: list[list[int]] = []

    class Listening(Watched):
        __slots__ = ()

        def plan(self, view: Any) -> Any:
            assert isinstance(view.waiting, Lpm)
            if view.step_tokens is None:
                looks.append([view.prefix_hits(request)[0] for request in view.waiting])
            return self.inner.plan(view)

    run_cached(lpm, make_cache=RadixCache, make_policy=lambda: Listening(lpm.policy, []))
    size = scenario.memory.block_size
    # One that finds little may be put off behind others, in the hope that it will find more.
    looks = [[found for found in hits if found * size > IN_BATCH_TOKENS] for hits in looks]
    assert all(hits == sorted(hits, reverse=True) for hits in looks)
