"""Aborts at any moment, in any state: nothing is lost, and fast-forward equals stepwise."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.law_trial import CheckingBlocks, differences
from scenarios.check.laws import blocks, clock, ends_once, one_place, same, tokens
from simulator.metrics.latency import itl
from simulator.policies.sglang import Sglang
from simulator.results.records import Cause, Status
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.examples import examples
from tests.laws.caching import CheckingCache, caching_scenarios
from tests.laws.reacting import End, Script, scripts
from tests.laws.scenarios import POLICIES, Memory, Scenario, scenarios
from tests.laws.test_radix import CheckingRadix, radix_scenarios

MANY = examples(100)
FEW = examples(30)
VERY_MANY = settings(max_examples=5_000)


def same_with_and_without(scenario: Scenario, script: Script, **more: Any) -> None:
    stepwise, told = script.run(scenario, fast_forward=False, **more)
    fast, also_told = script.run(scenario, **more)
    assert told == also_told
    assert same(stepwise, fast, (" step by step", " with fast-forward")) is None


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@MANY
def test_fast_forward_equals_stepwise_with_aborts(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    same_with_and_without(scenario, data.draw(scripts(scenario)))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@VERY_MANY
def test_fast_forward_equals_stepwise_with_aborts_very_often(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name, max_requests=30))
    same_with_and_without(scenario, data.draw(scripts(scenario)))


@given(data=st.data())
@MANY
def test_fast_forward_equals_stepwise_with_aborts_and_a_cache(data: st.DataObject) -> None:
    for draw, cache in ((caching_scenarios(), CheckingCache), (radix_scenarios(), CheckingRadix)):
        scenario = data.draw(draw)
        make_blocks = partial(cache, block_size=scenario.memory.block_size)
        same_with_and_without(scenario, data.draw(scripts(scenario)), make_blocks=make_blocks)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_nothing_is_lost_with_aborts(name: str, data: st.DataObject) -> None:
    """Requests, tokens, blocks and gaps between tokens; each end is told once, in order of time."""
    scenario = data.draw(scenarios(name))
    script = data.draw(scripts(scenario, follows=False))
    managers: list[CheckingBlocks] = []

    def make_blocks(num_blocks: int, num_host_blocks: int) -> CheckingBlocks:
        managers.append(CheckingBlocks(num_blocks, num_host_blocks))
        return managers[-1]

    run, ends = script.run(scenario, make_blocks=make_blocks)
    counted, also = script.run(scenario)
    assert differences(run.records, counted.records) == []
    assert (run.decisions, ends) == (counted.decisions, also)
    for law in (ends_once, one_place, tokens, blocks, clock):
        assert law(scenario, run) is None
    for manager in managers:
        assert not manager.tables
        assert not manager.host_tables
        assert manager.num_free == manager.num_blocks
    requests = run.records.requests
    assert (requests.status != Status.UNFINISHED).all()
    assert sorted((row, status) for row, status, _, _ in ends) == list(enumerate(requests.status.tolist()))
    assert [end_s for _, _, end_s, _ in ends] == sorted(end_s for _, _, end_s, _ in ends) or scenario.replicas > 1
    tell_of_ends(scenario, script, run.records, ends)


def tell_of_ends(scenario: Scenario, script: Script, records: Any, ends: list[End]) -> None:
    """Ends and records agree, no abort is before its time, and each gap between two tokens that were sent is kept."""
    requests = records.requests
    first_abort = dict(sorted(script.aborts, reverse=True))
    for row, status, end_s, cause in ends:
        if status is Status.FINISHED:
            assert end_s == requests.last_token_s[row]
        elif status is Status.ABORTED:
            assert end_s >= max(first_abort[row], requests.arrival_s[row])
            assert not requests.last_token_s[row] > end_s
            assert requests.released_s[row] >= end_s
        assert (cause is None) == (status is not Status.REJECTED)
        full = cause is Cause.QUEUE_FULL
        assert full == ("queue is full" in records.reject_reasons.get(row, ""))
    if records.streams:
        gaps = itl(records, ())
        sent = int(np.maximum(requests.output_tokens - 1, 0).sum())
        assert (0 if gaps is None else gaps.count) == sent
        known = requests.output_tokens > 0
        total_s = float((requests.last_token_s - requests.first_token_s)[known].sum())
        assert (0.0 if gaps is None else gaps.mean * gaps.count) == pytest.approx(total_s, abs=1e-9)


@pytest.mark.parametrize("asynchronous", [False, True])
@given(data=st.data())
@FEW
def test_one_rank_that_shares_experts_is_a_replica(asynchronous: bool, data: st.DataObject) -> None:
    name = "chunked_prefill async" if asynchronous else "chunked_prefill"
    scenario = data.draw(scenarios(name))
    script = data.draw(scripts(scenario))
    several, told = script.run(scenario, group_cost=_Slowest(scenario.cost))
    again, also = script.run(scenario, group_cost=_Slowest(scenario.cost), fast_forward=False)
    assert told == also
    assert same(several, again, ("", " again")) is None
    if scenario.replicas == 1:
        alone, alone_told = script.run(scenario, fast_forward=False)
        assert told == alone_told
        assert same(alone, several, (" of a replica", " of a rank")) is None


class _Slowest:
    def __init__(self, cost: Linear) -> None:
        self._cost = cost

    def group_step_s(self, shapes: Any) -> float:
        return max(self._cost.step_s(shape) for shape in shapes if isinstance(shape, StepShape))


@pytest.mark.parametrize("fast_forward", [True, False])
def test_an_answer_that_is_whole_as_its_client_gives_up_ends_once(fast_forward: bool) -> None:
    """A late result is taken in at the very moment of the abort."""
    one, zero = np.array([1]), np.array([0])
    scenario = Scenario(
        workload=Workload(np.array([0.0]), one, one, one, zero, zero, ("default",)),
        policy=Sglang(max_num_seqs=1, max_num_batched_tokens=4),
        memory=Memory(num_gpu_blocks=7, block_size=1, num_host_blocks=0),
        cost=Linear(base_s=0.005, per_token_s=0.0, per_context_token_s=5e-07),
        swap_s_per_block=0.0,
    )
    run, ends = Script(aborts=[(0, 0.0050005)]).run(scenario, fast_forward=fast_forward)
    assert ends_once(scenario, run) is None
    assert [status for _, status, _, _ in ends] == [Status.FINISHED]
