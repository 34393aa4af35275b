"""How requests leave a replica, and what becomes of their slots and blocks."""

from __future__ import annotations

from math import nan

from simulator.engine.state import ReplicaState
from simulator.plan import cdiv
from simulator.request_state import DECODING, FINISHED, LEAVING, SWAPPED, WAITING, RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Status


class Completion:
    """The way out of one replica: with the last token, or with the whole batch, or unserved."""

    def __init__(self, index: int, state: ReplicaState, recorder: Recorder) -> None:
        self._index = index
        self._state = state
        self._recorder = recorder
        self._keeps_finished = state.traits.keeps_finished
        self._streams = state.traits.streams
        self._refuses = getattr(state.policy, "refuses", None)

    def end(self, live: RequestState, status: Status, released_s: float) -> None:
        """`live` is gone: the records take it over."""
        self._recorder.request(live, self._index, status, released_s)
        if self._state.cache is not None:
            self._state.cache.end(live.row)

    def refuses(self, live: RequestState) -> bool:
        """Whether `live` is turned away, because it could never be served here."""
        reason = self._reason_to_reject(live)
        if reason is None:
            return False
        self._recorder.reject_reasons[live.row] = reason
        self.end(live, Status.REJECTED, nan)
        return True

    def _reason_to_reject(self, live: RequestState) -> str | None:
        size = self._state.batch.block_size
        num_blocks = self._state.blocks.num_blocks
        # The last sampled token is never computed.
        needed = cdiv(live.input_tokens + live.output_tokens - 1, size)
        if needed > num_blocks:
            return (
                f"{live.input_tokens} input and {live.output_tokens} output tokens need {needed} KV blocks; "
                f"there are {num_blocks} ({num_blocks * size} tokens)"
            )
        if self._refuses is None:
            return None
        reason: str | None = self._refuses(live, num_blocks, size)
        return reason

    def finish_all(self, done: list[RequestState], end_s: float) -> None:
        """These have their last token: they leave, or are held until the batch has finished."""
        state = self._state
        for live in done:
            del state.running[live]
            if self._keeps_finished:
                self._hold(live, end_s)
                continue
            if live.state is DECODING:
                state.batch.leave(live)
            blocks = cdiv(max(live.base_computed, live.reserved_tokens), state.batch.block_size)
            live.state = FINISHED
            state.blocks.free(live.row, blocks)
            self.end(live, Status.FINISHED, end_s)
        if state.held and not state.running:
            self._release_held(end_s)

    def finish_late(self, live: RequestState, end_s: float) -> None:
        """As above, for one whose last token becomes known only now: it may have been made to sit out, or to leave."""
        state = self._state
        if live.state is WAITING:
            state.forget_preemption(live, end_s)
            live.state = FINISHED
            self.end(live, Status.FINISHED, end_s)
            return
        del state.running[live]
        if live.state is LEAVING:
            state.num_leaving -= 1
        elif live.paused:
            state.paused = tuple([other for other in state.paused if other is not live])
        else:
            state.batch.leave(live)
        blocks = live.num_blocks
        live.state = FINISHED
        state.blocks.free(live.row, blocks)
        self.end(live, Status.FINISHED, end_s)

    def _hold(self, live: RequestState, end_s: float) -> None:
        """The request has finished and keeps its slot."""
        if live.state is DECODING:
            self._state.batch.hold(live)
        else:
            self._state.batch.join_held(live)
        live.last_token_s = end_s
        live.state = FINISHED
        self._state.held.append(live)

    def _release_held(self, end_s: float) -> None:
        """The whole batch has finished: slots and KV come free, and results that do not stream are returned."""
        state = self._state
        for live in state.held:
            if not self._streams:
                live.first_token_s = live.last_token_s = end_s
            state.blocks.free(live.row, live.num_blocks)
            self.end(live, Status.FINISHED, end_s)
        state.held.clear()
        state.batch.release_held()

    def abandon(self) -> None:
        """The run is over: record those who have not finished."""
        state = self._state
        for live in [*state.held, *state.running, *state.waiting]:
            status = Status.FINISHED if live.state is FINISHED else Status.UNFINISHED
            if live.state is DECODING and not live.paused:
                state.batch.leave(live)
            if live.setbacks is not None and live.state in (WAITING, SWAPPED):
                state.requeues.add((live.row, live.setbacks.left_s, nan, live.is_swapped))
            self.end(live, status, nan)
