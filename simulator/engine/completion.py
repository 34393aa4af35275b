"""How requests leave a replica, and what becomes of their slots and blocks."""

from __future__ import annotations

from math import nan

from simulator.engine.state import ReplicaState
from simulator.request_state import DECODING, FINISHED, LEAVING, SWAPPED, WAITING, RequestState
from simulator.results.recorder import Recorder
from simulator.results.records import Status


class Completion:
    """Ends the requests of one replica: with their last token, with the whole batch, or unserved."""

    def __init__(self, index: int, state: ReplicaState, recorder: Recorder) -> None:
        self._index = index
        self._state = state
        self._recorder = recorder
        self._keeps_finished = state.traits.keeps_finished
        self._streams = state.traits.streams
        self._frees_late = state.traits.frees_late

    def end(self, live: RequestState, status: Status, released_s: float) -> None:
        """Hand a request that leaves the engine over to the records."""
        self._recorder.request(live, self._index, status, released_s)
        del self._state.requests[live.row]
        if self._state.cache is not None:
            self._state.cache.end(live.row)

    def rejects(self, live: RequestState) -> bool:
        """Reject `live` if it could never be served here; returns whether it could not."""
        state = self._state
        size = state.batch.block_size
        num_blocks = state.blocks.num_blocks
        answer_tokens = state.tokens_left(live)
        # The last sampled token is never computed.
        needed = -(-(live.input_tokens + answer_tokens - 1) // size)
        if needed > num_blocks:
            reason: str | None = (
                f"{live.input_tokens} input and {answer_tokens} output tokens need {needed} KV blocks; "
                f"there are {num_blocks} ({num_blocks * size} tokens)"
            )
        elif state.refuses is None:
            return False
        else:
            reason = state.refuses(live, num_blocks, size)
        if reason is None:
            return False
        self._recorder.reject_reasons[live.row] = reason
        self.end(live, Status.REJECTED, nan)
        return True

    def finish_all(self, done: list[RequestState], end_s: float) -> None:
        """These requests have their last token: they leave, or are held until the batch has finished."""
        state = self._state
        if len(done) > 1:
            done.sort(key=admission)
        size = state.batch.block_size
        for live in done:
            del state.running[live]
            if self._keeps_finished:
                self._hold(live, end_s)
                continue
            if live.status is DECODING:
                state.batch.leave(live)
            tokens = live.base_computed
            if tokens < live.reserved_tokens:
                tokens = live.reserved_tokens
            live.status = FINISHED
            if self._frees_late:
                state.late_frees.put_off(live.row, -(-tokens // size))
            else:
                state.blocks.free(live.row, -(-tokens // size))
            self.end(live, Status.FINISHED, end_s)
        if state.held and not state.running:
            self._release_held(end_s)

    def finish_late(self, live: RequestState, end_s: float) -> None:
        """Finish a request whose last token becomes known only now; it may have been paused or preempted since."""
        state = self._state
        if live.status is WAITING:
            state.forget_preemption(live, end_s)
            live.status = FINISHED
            self.end(live, Status.FINISHED, end_s)
            return
        del state.running[live]
        if live.status is LEAVING:
            state.num_leaving -= 1
        elif live.paused:
            state.paused = tuple([other for other in state.paused if other is not live])
        else:
            state.batch.leave(live)
        blocks = live.num_blocks
        live.status = FINISHED
        state.blocks.free(live.row, blocks)
        self.end(live, Status.FINISHED, end_s)

    def _hold(self, live: RequestState, end_s: float) -> None:
        """Let a finished request keep its slot."""
        if live.status is DECODING:
            self._state.batch.hold(live)
        else:
            self._state.batch.join_held(live)
        live.last_token_s = end_s
        live.status = FINISHED
        self._state.held.append(live)

    def _release_held(self, end_s: float) -> None:
        """Free slots and KV of a batch that has finished, and return the answers that do not stream."""
        state = self._state
        for live in state.held:
            if not self._streams:
                live.first_token_s = live.last_token_s = end_s
            state.blocks.free(live.row, live.num_blocks)
            self.end(live, Status.FINISHED, end_s)
        state.held.clear()
        state.batch.release_held()

    def abandon(self) -> None:
        """The run is over: record the unfinished requests."""
        state = self._state
        for live in [*state.held, *state.running, *state.waiting]:
            status = Status.FINISHED if live.status is FINISHED else Status.UNFINISHED
            if live.status is DECODING and not live.paused:
                state.batch.leave(live)
            if live.setbacks is not None and live.status in (WAITING, SWAPPED):
                state.requeues.add((live.row, live.setbacks.left_s, nan, live.is_swapped))
            self.end(live, status, nan)


def admission(live: RequestState) -> int:
    """The key of the order of admission."""
    return live.admission
