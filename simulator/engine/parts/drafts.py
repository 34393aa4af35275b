"""Runs of verify steps in which nothing changes, worked out at once: fast-forward with drafts.

A plan that holds lets every running request verify its drafts, step after step, until one finishes or lacks blocks, or
an arrival matters. What is accepted is known to the engine beforehand. So it works out the steps in one loop, and when
they have ended it counts them for each request at once. The last of them is launched like any other: a request may
finish with it, and aborts come before its results.

With asynchronous scheduling a step is planned before the results of the one before it are there; so the last two of a
run are launched like any other. Runs are for memory in which no other request can find what a decode fills.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import add
from typing import Final

from simulator.division import cdiv
from simulator.engine.in_flight import InFlight
from simulator.engine.itemized_apply import DraftedPlans
from simulator.engine.itemized_step import VerifyRun, VerifyStep
from simulator.engine.state import ReplicaState
from simulator.speculative.speculation import Speculation
from simulator.timing.cost import StepShape

_LONGEST_RUN: Final = 256  # as of decode steps: what an arrival cuts off is wasted
_NONE: Final = (-1, -1)  # drafts and accepted ones where there is no result: not even one token


class Runs:
    """Works out and commits the runs of one replica. `arrived_s`: of requests that came since the last plan."""

    __slots__ = ("_budget", "_execute", "_plans", "_speculation", "_state", "arrived_s")

    def __init__(
        self,
        state: ReplicaState,
        plans: DraftedPlans,
        speculation: Speculation,
        execute: Callable[[VerifyStep], float],
        budget: float,
    ) -> None:
        self._state = state
        self._plans = plans
        self._speculation = speculation
        self._execute = execute
        self._budget = budget
        self.arrived_s: list[float] = []

    def can_follow(self, step: VerifyStep, before: VerifyStep | None) -> bool:
        """Whether further steps like this one may follow without a plan; `before` is the step in flight, if any."""
        state, config, drafts = self._state, self._speculation.config, step.next_drafts
        cache = state.cache
        if step.skips_drafts or config.has_varying_drafts or len(step.scheduled) < len(state.running):
            return False
        if len(step.scheduled) * (1 + drafts + config.draft_slots) > self._budget:
            return False
        if before is not None and not {part.live for part in before.scheduled} <= state.running.keys():
            return False  # its results may change the queue
        return cache is None or (cache.keys is not None and not cache.keys.num_telling)

    def work_out(self, step: VerifyStep, before: VerifyStep | None, due_s: float, hold_steps: int | None) -> None:
        """Append to the step's ends those of the steps that follow it, and note what happens in them.

        No step is planned at `due_s` or later, when something arrives that matters; there are `hold_steps` at most.
        With asynchronous scheduling a plan knows the results of all steps but the last, those of `before` included.
        """
        state, (config, acceptance, longest, _) = self._state, self._speculation
        size, drafts, lookahead = state.batch.block_size, step.next_drafts, config.num_lookahead_tokens
        tokens, overlaps = 1 + drafts, step.overlaps
        lives = [part.live for part in step.scheduled]
        run = VerifyRun(lives)
        late = [(part.drafts, part.accepted) for part in step.scheduled]  # results that are still to come
        told = late  # those that the next plan knows
        if overlaps:
            known = {} if before is None else {part.live: part for part in before.scheduled if part.samples}
            told = [(known[live].drafts, known[live].accepted) if live in known else _NONE for live in lives]
        computed = [live.base_computed - made + kept for live, (made, kept) in zip(lives, told, strict=True)]
        left = [state.tokens_left(live) - 1 - kept for live, (_, kept) in zip(lives, told, strict=True)]
        if min(left) <= (1 + overlaps) * tokens or any(live.stale_tokens for live in lives):
            return  # some request may finish so soon that the run would not pay
        spare = [live.max_tokens - state.requests[live.row].output_tokens for live in lives]
        reserved = [live.reserved_tokens for live in lives]
        verified = [live.verify_steps for live in lives]
        rows = [live.row for live in lives]
        free, used = state.blocks.num_free, state.blocks.num_blocks - state.blocks.num_free
        first, ends = step.shape, step.ends_s
        accepts = acceptance.accepted
        is_last = False
        most = _LONGEST_RUN if hold_steps is None else min(hold_steps, _LONGEST_RUN)
        while not is_last and len(ends) < most and step.planned_s(len(ends)) < due_s:
            if max(computed) + tokens >= longest:
                break
            if config.can_skip_drafts and max(map(add, left, spare)) <= 1 + overlaps:
                break
            if overlaps and min(map(add, left, spare)) <= 1:
                break  # its last token is sure to be in flight
            growing, grown = _grow([min(at + tokens + lookahead, longest) for at in computed], reserved, size)
            taken = sum([more for _, more in growing])
            if taken > free:
                break
            free -= taken
            used += taken
            reserved = grown
            step.shape = shape = _shape(computed, tokens)
            start_s = ends[-1]
            ends.append(start_s + self._execute(step))
            run.shapes.append(shape)
            run.growing.append(growing)
            run.used.append(used)
            run.reserved.append(reserved)
            made = []
            for place, row in enumerate(rows):
                accepted = accepts(row, verified[place]) if drafts else 0
                if accepted > drafts:
                    accepted = drafts
                verified[place] += drafts > 0
                run.accepted[place].append(accepted)
                made.append((drafts, accepted))
            told, late = (late if overlaps else made), made
            for place, (asked, kept) in enumerate(told):
                computed[place] += tokens - asked + kept
                left[place] -= 1 + kept
                if left[place] <= 0:
                    is_last = True
        step.shape = first
        if run.shapes:
            step.run = run

    def waiting_at(self, step: VerifyStep, planned_s: float) -> int:
        """Requests that wait when a step of the run is planned."""
        return step.waiting + bisect_right(self.arrived_s, planned_s)

    def take_blocks(self, run: VerifyRun, steps: int) -> None:
        """Take the blocks of the first steps of the run, in their order."""
        blocks = self._state.blocks
        for growing in run.growing[:steps]:
            for place, more in growing:
                blocks.allocate(run.lives[place].row, more)
        for live, reserved in zip(run.lives, run.reserved[steps - 1], strict=True):
            live.reserved_tokens = reserved

    def pass_over(self, run: VerifyRun, ends: Sequence[float], steps: int, drafts: int) -> None:
        """Count the first steps of the run, whose blocks are taken; no request finishes with them.

        `ends` begins with the end of the step before; that step's results have been taken in.
        """
        state = self._state
        last_s = ends[steps]
        for live, accepted in zip(run.lives, run.accepted, strict=True):
            counted = accepted[:steps]
            total = sum(counted)
            live.base_outputs += steps + total
            live.base_computed += steps + total
            live.sampling_steps += steps
            if drafts:
                live.verify_steps += steps
                for value in range(drafts + 1):
                    live.verified(drafts, value, counted.count(value))
            live.last_token_s = last_s
            self._plans.enter(live, live.base_computed)
        if state.streams:
            for number in range(1, steps + 1):
                end_s = ends[number]
                gaps = {end_s - ends[number - 1]: len(run.lives)}
                extra = sum([accepted[number - 1] for accepted in run.accepted])
                if extra:
                    gaps[0.0] = gaps.get(0.0, 0) + extra
                for gap_s, count in gaps.items():
                    state.records.late_gaps.add((gap_s, count, end_s))


def _grow(rooms: Sequence[int], reserved: Sequence[int], size: int) -> tuple[list[tuple[int, int]], list[int]]:
    """The places that take blocks for this room, with how many, and the room that all have then."""
    growing, grown = [], []
    for place, (room, had) in enumerate(zip(rooms, reserved, strict=True)):
        if room > had:
            more = cdiv(room, size) - cdiv(had, size)
            if more > 0:
                growing.append((place, more))
        grown.append(max(room, had))
    return growing, grown


def _shape(computed: Sequence[int], tokens: int) -> StepShape:
    """The shape of a step in which all requests compute so many tokens, behind those computed."""
    seqs, drafts = len(computed), tokens - 1
    after = [before + tokens for before in computed]
    squares = sum([context * context for context in after])
    return StepShape(
        seqs, sum(after), 0, 0, 0, 0, max(after), squares, 0,
        seqs if drafts else 0, drafts * seqs, drafts * seqs,
    )  # fmt: skip


# Drafts of data-parallel ranks that step together.
# As in vLLM 0.33 (`sync_cudagraph_and_dp_padding` in vllm/v1/worker/gpu/dp_utils.py, `execute_dummy_batch` in
# vllm/v1/worker/gpu_worker.py): ranks leave drafting out together or not at all, and a rank with nothing to
# compute, which computes a batch of one request's verify step, does not agree to it.


def dummy_verify(drafts: int) -> StepShape:
    """The shape of an idle rank's batch: a request without context verifies so many drafts, and is given as many."""
    return StepShape(1, 1 + drafts, draft_seqs=1, draft_tokens=drafts, drafted_tokens=drafts)


def draft_together(steps: Sequence[InFlight | None]) -> None:
    """Let all ranks draft at the end of their common step, unless all of them agree to leave it out."""
    drafting = [step for step in steps if isinstance(step, VerifyStep) and step.scheduled]
    if len(drafting) == len(steps) and all(step.skips_drafts for step in drafting):
        return
    for step in drafting:
        if step.skips_drafts:
            step.shape = step.shape._replace(drafted_tokens=step.next_drafts * len(step.scheduled))
