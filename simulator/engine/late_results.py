"""The results of asynchronous scheduling, which arrive after the next step has been planned.

A plan sees the tokens of the running step as if they existed: their number is certain, only their content is not. So
counts advance as ever, and what needs the content is put off until the next plan has been made:

- A request that finishes with the step keeps slot and blocks for one more plan. With `max_tokens` reached nothing is
  planned for it; an answer that ends by itself, which no scheduler can foresee, is given one more token, which is
  thrown away.
- The token of a preempted request still arrives: if it was the last, the request ends while it waits.
- A block that holds a token of unknown content enters the prefix cache a step later.
"""

from collections.abc import Sequence

from simulator.engine.completion import Completion
from simulator.engine.in_flight import InFlight, OverlappedInFlight
from simulator.engine.state import ReplicaState, Unseen
from simulator.plan import StepPlan
from simulator.request_state import DECODING, LEAVING, WAITING, RequestState, place
from simulator.timing.cost import StepShape

# The results of asynchronous scheduling, which arrive after the next step has been planned.
# A plan sees the tokens of the running step as if they existed: their number is certain, only their content is not.
# So counts advance as ever, and what needs the content is put off until the next plan has been made:
#
# - A request that finishes with the step keeps slot and blocks for one more plan. With `max_tokens` reached nothing
# is   planned for it; an answer that ends by itself, which no scheduler can foresee, is given one more token, which
# is   thrown away.
# - The token of a preempted request still arrives: if it was the last, the request ends while it waits.
# - A block that holds a token of unknown content enters the prefix cache a step later.

_NONE: list[RequestState] = []
_NO_TOKENS = StepShape(0, 0)
_MANY_ENDS = 1024  # cut now and then: to cut each time costs more


class LateResults:
    """Requests whose last token comes with the running step, and when that step ends (`end_s`).

    `decode_ends_s` are the ends of the last decode steps, the running one included: four or more where there were.
    """

    __slots__ = ("_completion", "_done", "_state", "decode_ends_s", "end_s")

    def __init__(self, state: ReplicaState, completion: Completion) -> None:
        self._state = state
        self._completion = completion
        self._done = _NONE
        self.end_s = 0.0
        self.decode_ends_s: list[float] = []

    def behind(self, step: InFlight | None, plan: StepPlan, now_s: float) -> InFlight | None:
        """Let a step begin at the end of the running step. Without a step, wait for results if any are to come.

        Such a wait is a step without tokens that takes no time; None if no result is to come.
        """
        state = self._state
        end_s = self.end_s
        late = bool(self._done)
        if step is None:
            if not (state.running or state.waiting) or not (end_s > now_s or late):
                if self._completion.decisions is not None:
                    self._completion.decisions.known(state.blocks.num_free)
                return None
            step = OverlappedInFlight(state, plan, now_s, _NO_TOKENS, 0, len(state.waiting))
        if end_s > now_s:
            step.start_s = end_s
        if late:  # the next plan will see fewer requests
            step.is_run = step.until_arrival = False
        return step

    def settle(self, step: InFlight, use: list[int], done: list[RequestState]) -> bool:
        """The step is planned and its end is known: the requests that finished with the step before it leave.

        `done` get their last token with this step, of a run with its last. Returns whether any request left.
        """
        state = self._state
        running, free = len(state.running), state.blocks.num_free
        self._note_ends(step)
        if len(done) > 1:
            done.sort(key=place)
        left = self._finish_previous(done, step.ends_s[-1])
        if self._completion.decisions is not None:
            self._completion.decisions.committed_late(state, step, use, left, state.blocks.num_free - free)
        return len(state.running) < running

    def _note_ends(self, step: InFlight) -> None:
        """Keep the ends of a step that decodes."""
        if step.decode_seqs:
            ends = self.decode_ends_s
            ends.extend(step.ends_s)
            if len(ends) > _MANY_ENDS:
                del ends[:-4]

    def forget(self, live: RequestState) -> None:
        """`live` has been aborted: the result that it waits for, if any, will be dropped."""
        if live in self._done:
            self._done = [other for other in self._done if other is not live]

    def _finish_previous(self, done: list[RequestState], end_s: float) -> list[RequestState]:
        """Let the requests that finished with the previous step leave, and keep `done`; returns the former."""
        state = self._state
        left, left_s = self._done, self.end_s
        if state.cache is not None and state.cache.keys is not None:
            for live in self._unentered(left):
                full_blocks = live.base_computed // state.batch.block_size
                if state.fills is not None and live.paused:
                    state.fills.enter(live, full_blocks)
                elif state.fills is not None:
                    state.fills.left(live, full_blocks)
                else:
                    state.cache.enter(state.requests[live.row], full_blocks)
        for live in left:
            self._completion.finish_late(live, left_s)
        for live in done:
            self._put_off(live)
        self._done, self.end_s = done, end_s
        return left

    def _unentered(self, left: Sequence[RequestState]) -> list[RequestState]:
        """Requests with a new token that were not in the next plan, in order: their blocks have yet to be cached."""
        late = {live: None for live in (*left, *self._state.paused) if live.status is not WAITING}
        return sorted(late, key=place)

    def _put_off(self, live: RequestState) -> None:
        state = self._state
        if live.output_tokens_so_far < live.max_tokens:
            state.batch.overrun(live)
            return
        if live.status is DECODING:
            state.batch.leave(live)
        live.status = LEAVING
        state.num_leaving += 1


# The results of SGLang's overlap scheduling, which arrive after the next step has been planned.
# `event_loop_overlap` in python/sglang/srt/managers/scheduler.py:2061 (SGLang 0.5.23) plans a step while the one
# before it runs, and then takes in that one's results. It differs from vLLM's asynchronous scheduling
# (`simulator.engine.late_results`):
#
# - A plan reckons with the tokens it knows; those that are being computed do not count (`Unseen`).
# - A prompt that is complete enters the radix tree with its results; the chunk of one that goes on, with the next
# plan.
# - The running token of a retracted request is thrown away, and computed again.
# - A plan that has nothing to compute is no step; the results are taken in, and the next plan is made.


class OverlapResults(LateResults):
    """Results that come with the running step: prompts that it completes and requests that it ends, as in its batch."""

    __slots__ = ("_results", "_unseen")

    def __init__(self, state: ReplicaState, completion: Completion) -> None:
        super().__init__(state, completion)
        assert state.unseen is not None
        self._unseen: Unseen = state.unseen
        self._results = _NONE
        self.decode_ends_s = self._unseen.decode_ends_s

    def behind(self, step: InFlight | None, plan: StepPlan, now_s: float) -> InFlight | None:
        """Let a step begin at the end of the running step. Without a step, wait for results if any are to come."""
        end_s = self.end_s
        if step is None:
            if not (end_s > now_s or self._results):
                if self._completion.decisions is not None:
                    self._completion.decisions.known(self._state.blocks.num_free)
                return None
            step = OverlappedInFlight(self._state, plan, max(now_s, end_s), _NO_TOKENS, 0, 0)
            step.is_wait = True
            step.ends_s = [step.start_s]
            return step
        if end_s > now_s:
            step.start_s = end_s
        if self._results:  # the next plan will see fewer requests, or more in the tree
            step.is_run = step.until_arrival = False
        return step

    def settle(self, step: InFlight, use: list[int], done: list[RequestState]) -> bool:
        """The step is planned and its end is known: take in the results of the one before, and keep its own.

        `done` get their last token with this step, of a run with its last. Returns whether any request left.
        """
        state = self._state
        free = state.blocks.num_free
        self._note_ends(step)
        left = self._take_in() if self._results else _NONE
        if self._completion.decisions is not None:
            if step.is_wait:
                self._completion.decisions.known(state.blocks.num_free, left)
            else:
                self._completion.decisions.committed_late(state, step, use, left, state.blocks.num_free - free)
        unseen = self._unseen
        unseen.decodes = step.decode_seqs > 0
        self.end_s = unseen.end_s = step.ends_s[-1]
        if step.prefill or done:
            self._put_off_all(step, done)
        else:
            unseen.prompts, unseen.last, self._results = {}, {}, _NONE
        return bool(left)

    def forget(self, live: RequestState) -> None:
        """See `LateResults.forget`."""
        self._results = [other for other in self._results if other is not live]
        self._unseen.last.pop(live, None)
        self._unseen.prompts.pop(live, None)

    def _take_in(self) -> list[RequestState]:
        """Take in the results of the previous step; returns the requests that leave."""
        state, last, left = self._state, self._unseen.last, []
        for live in self._results:
            if live in last:
                self._completion.finish_late(live, self.end_s)
                left.append(live)
            elif state.tree is not None and live.status is not WAITING:
                state.settle(live)
        return left

    def _put_off_all(self, step: InFlight, done: list[RequestState]) -> None:
        """Note what this step's results will be, in the order of its batch: prompts first, then decodes."""
        state, unseen = self._state, self._unseen
        prompts: dict[RequestState, None] = {}
        for live, _, _ in step.prefill:
            if live in state.prefilling:
                if state.tree is not None and state.cut is None:
                    state.cut = live
            elif live.row in state.requests:  # not aborted with the step
                prompts[live] = None
        if len(done) > 1:
            done.sort(key=place)
        for live in done:
            self._put_off(live)
        unseen.prompts, unseen.last = prompts, dict.fromkeys(done)
        self._results = list(done if state.tree is None else prompts | unseen.last)
