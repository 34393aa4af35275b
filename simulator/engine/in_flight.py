"""Steps in execution, and the row of the records that they begin."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from simulator.engine.state import ReplicaState
from simulator.memory.blocks import BlockTables
from simulator.plan import Preemption, StepPlan
from simulator.request import Request
from simulator.request_state import RequestState, ScheduledChunk
from simulator.results.buffers import ReplicaRecorder
from simulator.timing.cost import StepShape

# One is made for every step: without the call of its own constructor.
_new: Final = tuple.__new__
_SHAPE: Final = StepShape


class InFlight:
    """A step in execution, or a run of decode steps: a `simulator.timing.executor.Step`.

    `shape` and `start_s` are those of the first step. What most steps do not have is set by name where they do.
    `ends_s` are the steps' ends, set when it is executed; an arrival may cut the later ones off.
    """

    __slots__ = (
        "decode_seqs", "ends_s", "held", "is_odd", "is_run", "is_wait", "plan", "preempted_before", "prefill",
        "shape", "start_s", "state", "swapped_in_blocks", "swapped_out_blocks", "until_arrival", "waiting",
    )  # fmt: skip

    def __init__(
        self, state: ReplicaState, plan: StepPlan, start_s: float, shape: StepShape, decode_seqs: int, waiting: int
    ) -> None:
        self.state = state
        self.plan = plan
        self.start_s = start_s
        self.shape = shape
        self.decode_seqs = decode_seqs
        self.waiting = waiting
        self.held = 0  # of the shape's decodes, those of finished requests
        self.prefill: Sequence[ScheduledChunk] = ()
        self.is_run = False
        self.is_odd = False  # requests were preempted or resumed
        self.until_arrival = False  # a run that an arrival may cut
        self.is_wait = False  # no step: the wait for the running one's results
        self.swapped_out_blocks = 0
        self.swapped_in_blocks = 0
        self.preempted_before: tuple[Preemption, ...] = ()  # by plans just before, which computed nothing
        self.ends_s: list[float]

    @property
    def decoders(self) -> Sequence[RequestState]:
        state = self.state
        return [*state.decoders(), *state.held] if self.decode_seqs else []

    @property
    def block_tables(self) -> BlockTables | None:
        return self.state.blocks.by_id

    @property
    def requests(self) -> Mapping[int, Request]:
        return self.state.requests

    def look_s(self) -> float:
        """When the next plan is made: at the end of the last step."""
        return self.ends_s[-1]

    def steps_planned_by(self, at_s: float) -> int:
        """How many of the steps are planned before an arrival at `at_s` is seen."""
        return bisect_left(self.ends_s, at_s) + 1


class OverlappedInFlight(InFlight):
    """Steps of a replica with asynchronous scheduling."""

    __slots__ = ()

    def look_s(self) -> float:
        """When the next plan is made: at the start of the last step."""
        ends = self.ends_s
        return ends[-2] if len(ends) > 1 else self.start_s

    def steps_planned_by(self, at_s: float) -> int:
        return 1 if at_s <= self.start_s else bisect_left(self.ends_s, at_s) + 2


def shape_of(
    prefill: Sequence[ScheduledChunk], decode_seqs: int, decode_context: int, decode_contexts: tuple[int, int]
) -> StepShape:
    """The counts of a step that computes these chunks and decodes so many requests.

    `decode_contexts` are the longest of their contexts and the sum of squares (`ContextStats`).
    """
    seqs = tokens = context = pairs = longest = 0
    for live, n, _ in prefill:
        if n:
            before = live.base_computed
            seqs += 1
            tokens += n
            context += before + n
            if before + n > longest:
                longest = before + n
            pairs += n * before + n * (n + 1) // 2
    most, squares = decode_contexts
    return _new(
        _SHAPE, (decode_seqs, decode_context, seqs, tokens, context, pairs, most, squares, longest, 0, 0, 0, 0, 0, 0, 0)
    )


def decodes(seqs: int, context: int, contexts: tuple[int, int]) -> StepShape:
    """The counts of a step that only decodes; `contexts` as in `shape_of`."""
    most, squares = contexts
    return _new(_SHAPE, (seqs, context, 0, 0, 0, 0, most, squares, 0, 0, 0, 0, 0, 0, 0, 0))


def record_row(step: InFlight, records: ReplicaRecorder) -> None:
    """Begin a row of the records with the first of these steps; the state is still that before their end."""
    state = step.state
    decode_seqs = step.decode_seqs
    late = 0
    if decode_seqs and state.streams:
        for gap in state.batch.late_gaps(step.start_s, step.ends_s[0]):
            late += gap[1]
            records.late_gaps.add(gap)
    records.row(step.start_s, step.waiting, late, step.shape)
    padding = 0
    prefill_seqs = 0
    if step.prefill:
        for _, tokens, padded in step.prefill:
            prefill_seqs += tokens > 0
            padding += padded
    # Held requests no longer run, except where asynchronous scheduling has not yet learnt that they finished.
    idle_slots = len(state.running) - decode_seqs - prefill_seqs
    held = step.held
    if state.held:
        idle_slots += held
        held = len(state.held)
    if state.paused or state.slots_by_step:  # only as many of them hold a slot as there are slots
        idle_slots -= max(0, len(state.running) + len(state.held) - state.policy.max_num_seqs)
    if idle_slots or padding or held or state.num_swapped or step.is_odd:
        records.odd(
            idle_slots,
            held,
            state.num_swapped,
            step.held + padding,
            len(step.plan.preempt) + len(step.preempted_before),
            step.swapped_out_blocks,
            step.swapped_in_blocks,
            0,
        )
