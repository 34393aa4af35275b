"""The seam between deciding and doing."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from scenarios.check.law_trial import differences
from simulator.errors import InputError
from simulator.lockstep.lockstep_run import StepLog
from simulator.memory.blocks import BlockManager
from simulator.plan import StepPlan
from simulator.request import Request
from simulator.request_state import RequestState, ScheduledChunk
from simulator.simulate import Run, simulate
from simulator.timing.cost import StepShape
from simulator.timing.executor import Executor, ExecutorTraits, Lockstep, Predicted, Replay, Step
from simulator.timing.formula_cost import Linear
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
    decoders: tuple[RequestState, ...] = ()
    prefill: tuple[ScheduledChunk, ...] = ()
    block_tables: None = None
    requests: dict[int, Request] = field(default_factory=dict)


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
    assert predicted.traits.decode_run_s is not None
    assert predicted.traits.decode_run_s(StepShape(2, 40), 3) == COST.decode_run_s(StepShape(2, 40), 3)


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


def test_a_replay_gives_one_duration_a_step() -> None:
    replay = Replay([1.0, 2.0])
    assert replay.traits == ExecutorTraits()
    assert [replay.execute(AStep(SHAPE)) for _ in range(2)] == [1.0, 2.0]


def test_lockstep_follows_the_clock_and_shows_the_shadow_every_step() -> None:
    slow = Linear(2.0, 1.0, 0.5)
    clock, shadow = StepLog(Predicted(COST)), StepLog(Predicted(slow))
    lockstep = Lockstep(clock, shadow)
    together, alone = serve(lockstep), serve(Predicted(COST), fast_forward=False)
    assert differences(together.records, alone.records) == []
    assert together.decisions == alone.decisions
    assert len(clock.steps) == together.records.num_steps
    for priced, shadowed in zip(clock.steps, shadow.steps, strict=True):
        assert priced.shape == shadowed.shape
        assert priced.seconds == COST.step_s(priced.shape)
        assert shadowed.seconds == slow.step_s(priced.shape) == 2 * priced.seconds
    assert sum(step.shape.tokens for step in clock.steps) == sum((5 + 6, 12 + 2, 2 + 8))


def test_a_lockstep_does_not_run_ahead() -> None:
    assert Lockstep(clock=Predicted(COST), shadow=Predicted(COST)).traits.decode_run_s is None


@dataclass(frozen=True, slots=True)
class Wanting:
    """An executor with the traits given."""

    traits: ExecutorTraits

    def execute(self, step: Step) -> float:
        return 1.0


@pytest.mark.parametrize("wants", [ExecutorTraits(wants_context_stats=True), ExecutorTraits(wants_block_ids=True)])
def test_a_lockstep_wants_what_either_side_wants(wants: ExecutorTraits) -> None:
    plain, wanting = Wanting(ExecutorTraits()), Wanting(wants)
    assert Lockstep(wanting, plain).traits == Lockstep(plain, wanting).traits == wants
    assert Lockstep(plain, plain).traits == ExecutorTraits()


def test_an_executor_that_wants_block_ids_is_not_given_counts() -> None:
    with pytest.raises(InputError, match="blocks with ids, which BlockLedger does not have"):
        serve(Wanting(ExecutorTraits(wants_block_ids=True)))


def test_a_step_says_who_decodes_and_in_which_blocks() -> None:
    """One request of 6 and 4 tokens, blocks of 4: its decodes have 6 to 8 tokens before them, and their blocks."""
    told: list[tuple[list[tuple[int, int]], list[int]]] = []

    class Listening:
        traits = ExecutorTraits(wants_block_ids=True)

        def execute(self, step: Step) -> float:
            assert step.block_tables is not None
            assert step.requests[0].output_tokens == 4
            decodes = [(live.row, live.num_computed_tokens) for live in step.decoders]
            told.append((decodes, list(step.block_tables.tables[0])))
            return 1.0

    simulate(
        make_workload([0.0], [(6, 4)]),
        make_policy=lambda: make_policy("chunked_prefill", 4, 16),
        kv=MEMORY,
        make_executor=Listening,
        make_blocks=BlockManager,
    )
    assert told == [([], [1, 2]), ([(0, 6)], [1, 2]), ([(0, 7)], [1, 2]), ([(0, 8)], [1, 2, 3])]


def test_a_step_as_executors_are_told_of_it() -> None:
    """Each step's counts are those of its row, and the plan is the policy's."""
    told: list[tuple[int, int, int]] = []

    @dataclass(frozen=True, slots=True)
    class Listening:
        traits: ClassVar[ExecutorTraits] = ExecutorTraits()

        def execute(self, step: Step) -> float:
            assert isinstance(step.plan, StepPlan)
            told.append((step.shape.tokens, step.shape.context, step.shape.prefill_tokens))
            return 1.0

    rows = serve(Listening()).records.rows
    firsts = [told[step] for step in rows.first_step.tolist()]
    assert firsts == list(
        zip(rows.tokens.tolist(), rows.context_tokens.tolist(), rows.prefill_tokens.tolist(), strict=True)
    )
