"""Steps in execution: what the engine launches, and what the records keep of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.engine.state import ReplicaState, ScheduledChunk
from simulator.plan import StepPlan
from simulator.results.recorder import ReplicaRecorder
from simulator.timing.cost import StepShape


@dataclass(slots=True)
class InFlight:
    """A step in execution, or a run of decode steps: an `executor.Step`.

    `ends_s` are their ends, of which an arrival may cut the later ones off.
    """

    plan: StepPlan
    start_s: float
    shape: StepShape  # of the first step
    decode_seqs: int  # as in the shape
    held: int  # of these, finished requests that compute along
    prefill: Sequence[ScheduledChunk]
    is_run: bool
    is_odd: bool  # somebody was preempted or came back
    until_arrival: bool  # a run that an arrival may cut
    taken: bool  # the blocks of the first step's decodes were taken when it was planned
    waiting: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    ends_s: list[float]

    def look_s(self) -> float:
        """When steps overlap, the next plan is made as the last of these steps begins."""
        ends = self.ends_s
        return ends[-2] if len(ends) > 1 else self.start_s

    def steps_until(self, at_s: float) -> int:
        """When steps overlap, how many of these are planned before an arrival at `at_s` is seen."""
        return 1 if at_s <= self.start_s else bisect_left(self.ends_s, at_s) + 2


def shape_of(
    prefill: Sequence[ScheduledChunk], decode_seqs: int, decode_context: int, decode_contexts: tuple[int, int] = (0, 0)
) -> StepShape:
    """The counts of a step that decodes so many requests and computes these chunks."""
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
    return StepShape(decode_seqs, decode_context, seqs, tokens, context, pairs, *decode_contexts, longest)


def record_row(flight: InFlight, state: ReplicaState, records: ReplicaRecorder) -> None:
    """Begin a row of the records with the flight's first step; the state is still that before the step's end."""
    decode_seqs = flight.decode_seqs
    shape = flight.shape
    late = 0
    if decode_seqs and state.traits.streams:
        for gap in state.batch.late_gaps(flight.start_s, flight.ends_s[0]):
            late += gap[1]
            records.late_gaps.add(gap)
    records.row(flight.start_s, flight.waiting, late, shape)
    padding = 0
    prefill_seqs = 0
    if flight.prefill:
        prefill_seqs = shape.prefill_seqs
        for _, _, padded in flight.prefill:
            padding += padded
    # Those held are no longer running, but for those of whom nobody knows yet that they have finished.
    idle_slots = len(state.running) - decode_seqs - prefill_seqs
    held = flight.held
    if state.held:
        idle_slots += held
        held = len(state.held)
    if state.paused:  # of these, as many hold a slot as there are slots
        idle_slots -= max(0, len(state.running) + len(state.held) - state.policy.max_num_seqs)
    if idle_slots or padding or held or state.num_swapped or flight.is_odd:
        records.odd(
            idle_slots,
            held,
            state.num_swapped,
            flight.held + padding,
            len(flight.plan.preempt),
            flight.swapped_out_blocks,
            flight.swapped_in_blocks,
        )
