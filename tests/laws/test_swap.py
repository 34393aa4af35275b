"""Law 11: swapping moves blocks from one side to the other and loses nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import CheckingBlocks
from simulator.results.records import Status
from simulator.simulate import simulate
from simulator.timing.cost import StepShape
from simulator.timing.executor import ExecutorTraits, Predicted, Step
from simulator.timing.formula_cost import Linear
from tests.examples import examples
from tests.laws.scenarios import SWAPPING, Memory, Scenario, make_policy, make_workload, scenarios
from tests.laws.test_memory import is_empty


def swapping(scenario: Scenario, *, num_host_blocks: int, mode: str = "swap") -> Scenario:
    policy: Any = scenario.policy
    if hasattr(policy, "preemption_mode"):
        policy = replace(policy, preemption_mode=mode)
    return replace(scenario, policy=policy, memory=replace(scenario.memory, num_host_blocks=num_host_blocks))


@pytest.mark.parametrize("policy", SWAPPING)
@given(data=st.data(), mode=st.sampled_from(["swap", "auto"]), host=st.sampled_from([0, 3, 10, 10_000]))
@examples(100)
def test_both_sides_are_conserved(policy: str, data: st.DataObject, mode: str, host: int) -> None:
    """Checked at every operation; at the end both are as they were, and everything out has come in."""
    scenario = swapping(data.draw(scenarios(policy)), num_host_blocks=host, mode=mode)
    managers: list[CheckingBlocks] = []

    def make_blocks(num_blocks: int, num_host_blocks: int) -> CheckingBlocks:
        managers.append(CheckingBlocks(num_blocks, num_host_blocks))
        return managers[-1]

    records = scenario.run(make_blocks=make_blocks).records
    assert all(is_empty(manager) and manager.num_free_host == host for manager in managers)
    requests, rows = records.requests, records.rows
    assert (requests.swapped_out_blocks == requests.swapped_in_blocks).all()
    assert rows.swapped_out_blocks.sum() == rows.swapped_in_blocks.sum() == requests.swapped_out_blocks.sum()
    assert (rows.swapped <= rows.waiting).all()
    assert (requests.status != Status.UNFINISHED).all()


@given(scenario=scenarios("preemptive"))
@examples(150)
def test_nothing_that_was_swapped_is_computed_again(scenario: Scenario) -> None:
    """With room for everybody on the host, only prompts under way are thrown away."""
    run = swapping(scenario, num_host_blocks=10_000).run(log_decisions=True)
    assert run.decisions is not None
    requests = run.records.requests
    kv: dict[str, int] = {}
    decoding: set[str] = set()
    lost: dict[str, int] = {}
    for step in sorted(run.decisions, key=lambda step: (step["replica"], step["step"])):
        for request_id in step["preempted"]:
            assert (request_id in step["swapped_out"]) == (request_id in decoding)
            if request_id not in decoding:
                lost[request_id] = lost.get(request_id, 0) + kv[request_id]
                kv[request_id] = 0
        assert set(step["swapped_in"]) <= decoding
        for request_id, tokens in step["scheduled"].items():
            kv[request_id] = kv.get(request_id, 0) + tokens
            assert tokens == 1 or request_id not in decoding
            if kv[request_id] >= requests.input_tokens[int(request_id)]:
                decoding.add(request_id)
    expected = [lost.get(str(row), 0) for row in range(len(requests.row))]
    assert requests.recomputed_tokens.tolist() == expected


@dataclass(slots=True)
class Watching:
    """Predicts, and keeps what it was told."""

    inner: Predicted
    told: list[tuple[StepShape, int, int, float]] = field(default_factory=list)
    traits: ClassVar[ExecutorTraits] = ExecutorTraits()

    def execute(self, step: Step) -> float:
        seconds = self.inner.execute(step)
        self.told.append((step.shape, step.swapped_out_blocks, step.swapped_in_blocks, seconds))
        return seconds


@given(scenario=scenarios("preemptive"), overlap=st.booleans())
@examples(100)
def test_a_step_is_stalled_by_every_block_that_moves(scenario: Scenario, overlap: bool) -> None:
    """Blocks add so much each to the time of what the step computes, or where they overlap, take it if it is longer."""
    s_per_block = 0.25 if not overlap else 0.003
    scenario = replace(swapping(scenario, num_host_blocks=10_000), replicas=1)
    executor = Watching(Predicted(scenario.cost, s_per_block, swap_overlap=overlap))
    run = simulate(
        scenario.workload,
        make_policy=lambda: scenario.policy,
        kv=scenario.memory,
        make_executor=lambda: executor,
        log_decisions=True,
    )
    assert run.decisions is not None
    moved = 0
    for step, (shape, out, back, seconds) in zip(run.decisions, executor.told, strict=True):
        assert bool(out) == bool(step["swapped_out"])
        assert bool(back) == bool(step["swapped_in"])
        moving_s, computing_s = (out + back) * s_per_block, scenario.cost.step_s(shape)
        assert seconds == (max(computing_s, moving_s) if overlap else computing_s + moving_s)
        assert step["t_end_s"] == step["t_start_s"] + seconds
        moved += out + back
    assert moved == 2 * run.records.requests.swapped_out_blocks.sum()


def swapped_by_a_better_one() -> Mapping[str, Any]:
    """One slot: a request of 6 and 5 tokens, and after three of its tokens one of a higher priority."""
    workload = make_workload([0.0, 2.5], [(6, 5), (4, 2)], priority=[1, 0])
    policy = make_policy("preemptive", 1, 64, preemption_mode="swap")
    return {"workload": workload, "policy": policy, "memory": Memory(21, 4, 20), "cost": Linear(1.0)}


def test_out_and_back_by_hand() -> None:
    """Steps of 1 s, 0.25 s a block. Computed when it leaves: 6 + 2 tokens, 2 blocks; it comes back for its 9th."""
    scenario = Scenario(**swapped_by_a_better_one(), swap_s_per_block=0.25)
    run = scenario.run(log_decisions=True)
    records = run.records
    # Three tokens of the first; 2 blocks out and the other's prompt; its last token; 2 blocks in and a token; a token.
    assert records.step_end_s.tolist() == [1.0, 2.0, 3.0, 4.5, 5.5, 7.0, 8.0]
    requests = records.requests
    assert requests.last_token_s.tolist() == [8.0, 5.5]
    assert requests.scheduled_s.tolist() == [0.0, 3.0]
    assert requests.swapped_out_blocks.tolist() == requests.swapped_in_blocks.tolist() == [2, 0]
    assert requests.recomputed_tokens.tolist() == [0, 0]
    assert requests.requeued_s.tolist() == [2.5, 0.0]
    assert records.requeues.from_s.tolist() == [3.0]
    assert records.requeues.to_s.tolist() == [5.5]
    assert records.requeues.swapped.tolist() == [1]
    # In the step in which it leaves its blocks are free already; the third comes with the 9th token.
    assert records.step_used_blocks.tolist() == [2, 2, 2, 1, 2, 3, 3]
    assert np.repeat(records.rows.swapped, records.rows.repeat).tolist() == [0, 0, 0, 1, 1, 0, 0]


def test_without_room_on_the_host_it_is_recomputed() -> None:
    """One host block, and two are needed: thrown away, and 9 tokens prefilled again in one step."""
    parts = dict(swapped_by_a_better_one())
    parts["memory"] = Memory(21, 4, 1)
    records = Scenario(**parts, swap_s_per_block=0.25).run().records
    assert records.step_end_s.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert records.requests.recomputed_tokens.tolist() == [8, 0]
    assert records.requests.swapped_out_blocks.tolist() == [0, 0]
    assert records.rows.prefill_tokens.max() == 9


def test_a_small_host_takes_whom_it_can() -> None:
    """Two are displaced at once and the host has room for one: the other is recomputed."""
    workload = make_workload([0.0, 0.0, 2.5, 2.5], [(6, 9), (6, 9), (4, 3), (4, 3)], priority=[2, 1, 0, 0])
    policy = make_policy("preemptive", 2, 64, preemption_mode="swap")
    records = Scenario(workload, policy, Memory(41, 4, 2), Linear(1.0), 0.0).run().records
    assert records.requests.preemptions.tolist() == [1, 1, 0, 0]
    assert records.requests.swapped_out_blocks.tolist() == [2, 0, 0, 0]
    assert records.requests.recomputed_tokens.tolist() == [0, 8, 0, 0]
    assert (records.requests.output_tokens == [9, 9, 3, 3]).all()
