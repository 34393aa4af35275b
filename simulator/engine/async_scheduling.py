"""Asynchronous scheduling: a step is planned while the one before it still runs.

As vLLM does it (0.33, `AsyncScheduler`), two steps are in flight. A plan sees the tokens of the step that runs as if
they were there: their number is certain, only what they are is not. So counts go on as ever, and what has to wait for
the step's end is put off until the next plan has been made:

- Who finishes with the step keeps slot and blocks for one plan more. With `max_tokens` reached nothing is planned for
  it; an answer that ends by itself, which nobody can know, is given one token more, which is thrown away.
- A victim's token still arrives: if it was the last, the victim ends while it waits.
- A block that holds a token not known yet enters the prefix cache a step later.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.engine.completion import Completion
from simulator.engine.state import ReplicaState
from simulator.request_state import DECODING, LEAVING, WAITING, RequestState

_NOBODY: list[RequestState] = []


class AsyncScheduling:
    """Those whose last token comes with the step that runs."""

    def __init__(self, state: ReplicaState, completion: Completion) -> None:
        self._state = state
        self._completion = completion
        self._end_s = 0.0  # of that step
        self.done: list[RequestState] = _NOBODY

    def turn(self, done: list[RequestState], end_s: float) -> list[RequestState]:
        """The next step is planned, and runs until `end_s`; those of the one before, which are returned, leave."""
        state = self._state
        left, left_s = self.done, self._end_s
        if state.cache is not None and state.cache.enters_decoded:
            for live in self._silent(left):
                state.cache.enter(live.request, live.base_computed // state.batch.block_size)
        for live in left:
            self._completion.finish_late(live, left_s)
        for live in done:
            self._put_off(live)
        self.done, self._end_s = done, end_s
        return left

    def _silent(self, left: Sequence[RequestState]) -> list[RequestState]:
        """Who has a token now and was not in the next plan, in order: their blocks have not entered yet."""
        late = {live: None for live in (*left, *self._state.paused) if live.state is not WAITING}
        return sorted(late, key=lambda live: live.admission)

    def _put_off(self, live: RequestState) -> None:
        state = self._state
        if live.output_tokens < live.max_tokens:
            state.batch.overrun(live)
            return
        if live.state is DECODING:
            state.batch.leave(live)
        live.state = LEAVING
        state.num_leaving += 1
