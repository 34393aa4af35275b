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
from simulator.engine.state import ReplicaState
from simulator.plan import StepPlan
from simulator.request_state import DECODING, LEAVING, WAITING, RequestState, place
from simulator.timing.cost import StepShape

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
