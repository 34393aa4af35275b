"""Runs of verify steps in which nothing changes, worked out at once: fast-forward with drafts.

A plan that holds lets every running request verify its drafts, step after step, until one finishes or lacks blocks, or
an arrival matters. What is accepted is known to the engine beforehand. So it works out the steps in one loop, and when
they have ended it counts them for each request at once. The last of them is launched like any other: a request may
finish with it, and aborts come before its results.

Runs are for steps that follow each other (no asynchronous scheduling), and for memory in which no other request can
find what a decode fills.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from simulator.division import cdiv
from simulator.engine.speculative.apply import DraftedPlans
from simulator.engine.speculative.step import VerifyRun, VerifyStep
from simulator.engine.state import ReplicaState
from simulator.speculative.speculation import Speculation
from simulator.timing.cost import StepShape

_LONGEST_RUN: Final = 256  # as of decode steps: what an arrival cuts off is wasted


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

    def can_follow(self, step: VerifyStep) -> bool:
        """Whether further steps like this one may follow without a plan."""
        state, config, drafts = self._state, self._speculation.config, step.next_drafts
        cache = state.cache
        if step.skips_drafts or config.has_varying_drafts or len(step.scheduled) < len(state.running):
            return False
        if len(step.scheduled) * (1 + drafts + config.draft_slots) > self._budget:
            return False
        return cache is None or (cache.keys is not None and not cache.keys.num_telling)

    def work_out(self, step: VerifyStep, due_s: float, hold_steps: int | None) -> None:
        """Append to the step's ends those of the steps that follow it, and note what happens in them.

        No step begins at `due_s` or later, when something arrives that matters; there are `hold_steps` at most.
        """
        state, (config, acceptance, longest, _) = self._state, self._speculation
        size, drafts, lookahead = state.batch.block_size, step.next_drafts, config.num_lookahead_tokens
        tokens = 1 + drafts
        lives = [part.live for part in step.scheduled]
        run = VerifyRun(lives)
        computed, left, reserved = [], [], []
        for part in step.scheduled:
            live, rejected = part.live, part.drafts - part.accepted
            computed.append(live.base_computed - rejected)
            left.append(state.tokens_left(live) - 1 - part.accepted)
            reserved.append(live.reserved_tokens)
        if min(left) <= 0:
            return
        verified = [live.verify_steps for live in lives]
        rows = [live.row for live in lives]
        free, used = state.blocks.num_free, state.blocks.num_blocks - state.blocks.num_free
        first, ends = step.shape, step.ends_s
        accepts = acceptance.accepted
        is_last = False
        may_skip = config.can_skip_drafts and all(
            live.max_tokens == state.requests[live.row].output_tokens for live in lives
        )
        most = _LONGEST_RUN if hold_steps is None else min(hold_steps, _LONGEST_RUN)
        while not is_last and len(ends) < most and ends[-1] < due_s:
            if max(computed) + tokens >= longest or (may_skip and max(left) == 1):
                break
            growing = []
            for place, before in enumerate(computed):
                room = before + tokens + lookahead
                if room > reserved[place]:
                    more = cdiv(min(room, longest), size) - cdiv(reserved[place], size)
                    if more > 0:
                        growing.append((place, more))
            taken = sum([more for _, more in growing])
            if taken > free:
                break
            free -= taken
            used += taken
            for place, before in enumerate(computed):
                room = min(before + tokens + lookahead, longest)
                if room > reserved[place]:
                    reserved[place] = room
            step.shape = shape = _shape(computed, tokens)
            start_s = ends[-1]
            ends.append(start_s + self._execute(step))
            run.shapes.append(shape)
            run.growing.append(growing)
            run.used.append(used)
            for place, row in enumerate(rows):
                accepted = accepts(row, verified[place]) if drafts else 0
                if accepted > drafts:
                    accepted = drafts
                verified[place] += drafts > 0
                run.accepted[place].append(accepted)
                computed[place] += 1 + accepted
                left[place] -= 1 + accepted
                if left[place] <= 0:
                    is_last = True
        step.shape = first
        if run.shapes:
            step.run = run

    def waiting_at(self, step: VerifyStep, planned_s: float) -> int:
        """Requests that wait when a step of the run is planned."""
        return step.waiting + bisect_right(self.arrived_s, planned_s)

    def pass_over(self, step: VerifyStep, run: VerifyRun, steps: int) -> None:
        """Count the next `steps` steps of the run, whose first has been committed; no request finishes with them."""
        state, config, drafts = self._state, self._speculation.config, step.next_drafts
        lookahead, longest = config.num_lookahead_tokens, self._speculation.max_model_len
        self._take_blocks(run, steps)
        last_s = step.ends_s[steps]
        for live, accepted in zip(run.lives, run.accepted, strict=True):
            counted = accepted[:steps]
            total = sum(counted)
            reach = live.base_computed + steps - 1 + total - counted[-1] + 1 + drafts  # that of the last step
            live.reserved_tokens = max(live.reserved_tokens, min(reach + lookahead, longest))
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
                end_s = step.ends_s[number]
                gaps = {end_s - step.ends_s[number - 1]: len(run.lives)}
                extra = sum([accepted[number - 1] for accepted in run.accepted])
                if extra:
                    gaps[0.0] = gaps.get(0.0, 0) + extra
                for gap_s, count in gaps.items():
                    state.records.late_gaps.add((gap_s, count, end_s))

    def _take_blocks(self, run: VerifyRun, steps: int) -> None:
        """Take the blocks of these steps, in their order."""
        blocks = self._state.blocks
        for growing in run.growing[:steps]:
            for place, more in growing:
                blocks.allocate(run.lives[place].row, more)


def _shape(computed: Sequence[int], tokens: int) -> StepShape:
    """The shape of a step in which all requests compute so many tokens, behind those computed."""
    seqs, drafts = len(computed), tokens - 1
    after = [before + tokens for before in computed]
    squares = sum([context * context for context in after])
    return StepShape(
        seqs, sum(after), 0, 0, 0, 0, max(after), squares, 0,
        seqs if drafts else 0, drafts * seqs, drafts * seqs,
    )  # fmt: skip
