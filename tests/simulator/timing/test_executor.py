"""The seam between deciding and doing."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from simulator.engine.state import ScheduledChunk
from simulator.plan import StepPlan
from simulator.simulate import Run, simulate
from simulator.timing.cost import StepShape
from simulator.timing.executor import Executor, Lockstep, Predicted, Replay, StepPair
from simulator.timing.linear import Linear
from tests.laws.compare import differences
from tests.laws.scenarios import Memory, make_policy, make_workload

COST = Linear(1.0, 0.5, 0.25)
MEMORY = Memory(100, 4, 10)
WORKLOAD = make_workload([0.0, 0.5, 9.0], [(5, 7), (12, 3), (2, 9)])


@dataclass(frozen=True, slots=True)
class AStep:
    """A step without an engine."""

    shape: StepShape
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    plan: StepPlan = field(default_factory=StepPlan)
    prefill: tuple[ScheduledChunk, ...] = ()


SHAPE = StepShape(decode_seqs=2, decode_context=40, prefill_seqs=1, prefill_tokens=4, prefill_context=8)


def serve(executor: Executor, *, fast_forward: bool = True) -> Run:
    return simulate(
        WORKLOAD,
        make_policy=lambda: make_policy("chunked_prefill", 4, 16),
        kv=MEMORY,
        make_executor=lambda: executor,
        fast_forward=fast_forward,
        log_decisions=True,
    )


def test_predicted_seconds_are_those_of_the_cost_model() -> None:
    predicted = Predicted(COST)
    assert predicted.execute(AStep(SHAPE)) == COST.step_s(SHAPE) == 1.0 + 0.5 * 6 + 0.25 * 48
    assert predicted.execute(AStep(SHAPE, 3, 4)) == COST.step_s(SHAPE), "swapping is free unless it has a price"
    assert predicted.decode_run_s(StepShape(2, 40), 3) == COST.decode_run_s(StepShape(2, 40), 3)
    assert predicted.foresees


def test_every_swapped_block_stalls_the_step() -> None:
    predicted = Predicted(COST, swap_s_per_block=0.5)
    assert predicted.execute(AStep(SHAPE, 3, 4)) == COST.step_s(SHAPE) + 3.5
    assert predicted.execute(AStep(StepShape(0, 0), 2, 0)) == 1.0, "a step that only swaps takes that long"


def test_a_replayed_run_is_the_run() -> None:
    """The durations of a run, played back, give its very records."""
    once = serve(Predicted(COST))
    ends, rows = once.records.step_end_s.tolist(), once.records.rows
    starts = [0.0, *ends[:-1]]
    for first_step, start_s in zip(rows.first_step.tolist(), rows.start_s.tolist(), strict=True):
        starts[first_step] = start_s
    replay = Replay([end_s - start_s for start_s, end_s in zip(starts, ends, strict=True)])
    again = serve(replay)
    # These times are sums of quarters: a difference of ends is the duration itself.
    assert differences(once.records, again.records) == []
    assert once.decisions == again.decisions
    with pytest.raises(ValueError, match="no more steps"):
        replay.execute(AStep(SHAPE))


def test_a_replay_that_runs_out_says_so() -> None:
    with pytest.raises(ValueError, match="the plans differ from those recorded"):
        serve(Replay([1.0, 1.0, 1.0]))


def test_a_replay_gives_what_is_left() -> None:
    replay = Replay([1.0, 2.0, 3.0, 4.0])
    assert not replay.foresees
    assert replay.decode_run_s(StepShape(1, 1), 2) == [1.0, 2.0]
    assert replay.execute(AStep(SHAPE)) == 3.0


def test_lockstep_follows_the_clock_and_notes_the_shadow() -> None:
    slow = Linear(2.0, 1.0, 0.5)
    lockstep = Lockstep(clock=Predicted(COST), shadow=Predicted(slow))
    together, alone = serve(lockstep), serve(Predicted(COST), fast_forward=False)
    assert differences(together.records, alone.records) == []
    assert together.decisions == alone.decisions
    assert len(lockstep.pairs) == together.records.num_steps
    for pair in lockstep.pairs:
        assert pair == StepPair(pair.shape, COST.step_s(pair.shape), slow.step_s(pair.shape))
        assert pair.shadow_s == 2 * pair.clock_s
    assert sum(pair.shape.tokens for pair in lockstep.pairs) == sum((5 + 6, 12 + 2, 2 + 8))


def test_a_lockstep_does_not_run_ahead() -> None:
    lockstep = Lockstep(clock=Predicted(COST), shadow=Predicted(COST))
    assert not lockstep.foresees
    with pytest.raises(NotImplementedError, match="one step at a time"):
        lockstep.decode_run_s(StepShape(1, 1), 2)


def test_a_step_as_executors_are_told_of_it() -> None:
    """Each step's counts are those of its row, and the plan is the policy's."""
    told: list[tuple[int, int, int]] = []

    @dataclass(frozen=True, slots=True)
    class Listening:
        foresees: bool = False

        def execute(self, step: AStep) -> float:
            assert isinstance(step.plan, StepPlan)
            told.append((step.shape.tokens, step.shape.context, step.shape.prefill_tokens))
            return 1.0

        def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
            raise AssertionError("does not foresee")

    executor: Executor = Listening()  # type: ignore[assignment] # its step is one of ours, with the same members
    rows = serve(executor).records.rows
    firsts = [told[step] for step in rows.first_step.tolist()]
    assert firsts == list(
        zip(rows.tokens.tolist(), rows.context_tokens.tolist(), rows.prefill_tokens.tolist(), strict=True)
    )
