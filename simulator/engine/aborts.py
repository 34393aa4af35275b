"""Requests whose client has given up, from the moment of the abort until the engine looks.

As vLLM's engine core does it (0.33: `EngineCore._process_aborts_queue`, then `Scheduler.finish_requests` with
FINISHED_ABORTED): a step in execution is not interrupted. When its results are there, requests aborted by then leave
first, with their blocks, and the token that the step gave them is dropped; then the others get theirs. With
asynchronous scheduling the next step is on its way by then: two tokens may be dropped. What was computed stays in the
prefix cache. A batch that keeps its finished keeps its aborted too: they compute padding in their slots.
"""

from collections.abc import Sequence
from math import inf, nextafter

from simulator.engine.completion import Completion
from simulator.engine.in_flight import InFlight
from simulator.engine.late_results import LateResults
from simulator.engine.state import ReplicaState, take_back
from simulator.request_state import ABORTED, DECODING, FINISHED, LEAVING, PREFILLING, SWAPPED, WAITING, RequestState
from simulator.results.records import Status


class Aborts:
    """Aborts that one replica has yet to notice: `pending`, in the order in which they came."""

    __slots__ = ("_completion", "_late", "_state", "pending")

    def __init__(self, state: ReplicaState, completion: Completion, late: LateResults | None) -> None:
        self._state = state
        self._completion = completion
        self._late = late
        self.pending: dict[RequestState, None] = {}

    def ask(self, row: int) -> bool:
        """The client of this request gives up; returns whether that matters here, as the request has not ended."""
        live = self._state.lives.get(row)
        if live is None or live.status is ABORTED or (live.status is FINISHED and self._state.traits.streams):
            return False
        self.pending[live] = None
        if self._completion.admission is not None:
            self._completion.admission.end(row)
        return True

    def end_between(self, now_s: float) -> None:
        """End them between two steps, or at rest: the tokens that exist have been sent."""
        recent = [self._state.batch.last_end_s] if self._late is None else self._late.decode_ends_s
        self._end_all(now_s, nextafter(now_s, inf), recent)
        if self._completion.decisions is not None:
            self._completion.decisions.tell_aborted()

    def end_with(self, step: InFlight, done: list[RequestState], before_s: float) -> tuple[list[RequestState], bool]:
        """End them with a step, which has computed its tokens: those that this look finds are dropped.

        `done` got their last token with the step; `before_s` is the end of the decode step before. Returns who of
        `done` is left, and whether the batch has changed.
        """
        gone = set(self.pending)
        running = len(self._state.running)
        ends_s = [before_s] if self._late is None else list(self._late.decode_ends_s)
        if step.shape.decode_seqs:
            ends_s += step.ends_s
        self._end_all(step.look_s(), step.look_s(), ends_s)
        return [live for live in done if live not in gone], len(self._state.running) < running

    def _end_all(self, now_s: float, dropped_from_s: float, ends_s: Sequence[float]) -> None:
        """End them; tokens from `dropped_from_s` on are dropped. `ends_s` are those of the last decode steps."""
        completion = self._completion
        # A late result may have come at the moment of the abort: then the answer is whole, and nobody left.
        gone = [live for live in self.pending if live.row in self._state.lives]
        self.pending.clear()
        if self._completion.decisions is not None:
            self._completion.decisions.aborts(self._state, [live.request_id for live in gone])
        for live in gone:
            self._count(live)
            dropped, last_s = self._dropped(live, dropped_from_s, ends_s)
            stays = self._take_out(live, now_s)
            if dropped:
                live.lose_outputs(dropped, last_s)
            if stays:
                completion.tell_abort(live, now_s)
            else:
                completion.end(live, Status.ABORTED, now_s)
        completion.release_if_over(now_s)

    def _count(self, live: RequestState) -> None:
        """Note what was computed for the request, across its preemptions."""
        computed = computed_tokens(live)
        if computed:
            live.set_back().aborted_tokens = computed

    def _dropped(self, live: RequestState, from_s: float, ends_s: Sequence[float]) -> tuple[int, float]:
        """How many of its tokens are dropped, as they came at `from_s` or later, and when the one before them came."""
        state, late = self._state, self._late is not None
        gaps = state.records.late_gaps if state.traits.streams else None
        return take_back(live, from_s, ends_s, state.batch, gaps, late=late)

    def _take_out(self, live: RequestState, now_s: float) -> bool:
        """Take the request out of wherever it is; returns whether it keeps its slot until the batch has finished."""
        state = self._state
        status = live.status
        if self._late is not None:
            self._late.forget(live)
        if state.cut is live:
            state.cut = None
        if status is WAITING or status is SWAPPED:
            state.drop_waiting(live, now_s)
            return False
        if status is FINISHED:  # held, its answer not sent
            live.status = ABORTED
            return True
        if status is PREFILLING:
            del state.prefilling[live]
        elif status is LEAVING:
            state.num_leaving -= 1
        del state.running[live]
        if state.adapters is not None:
            state.adapters.left(live)
        if state.traits.keeps_finished:
            if status is DECODING:
                state.batch.pad(live)
            else:
                state.batch.join_held(live)
            live.status = ABORTED
            state.held.append(live)
            return True
        if live.paused:
            state.paused = tuple([other for other in state.paused if other is not live])
        elif status is DECODING:
            state.batch.leave(live)
        if state.cache is None:
            state.blocks.free(live.row, live.num_blocks)
        else:
            state.enter_decoded(live, live.base_computed)
            state.cache.abort(live.row, live.num_blocks, live.base_computed)
        return False


def computed_tokens(live: RequestState) -> int:
    """Tokens that were computed for a request, across its preemptions."""
    computed = max(0, live.num_computed_tokens - live.padding_tokens)
    if live.setbacks is None:
        return computed - live.found_tokens
    return computed + live.setbacks.recomputed_tokens - live.setbacks.skipped_tokens
