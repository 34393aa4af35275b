"""How requests leave a replica, and what becomes of their slots and blocks."""

from collections.abc import Callable, Iterable, Sequence
from math import nan
from typing import Final, Protocol

from simulator.engine.admission import Admission
from simulator.engine.decisions import DecisionLog
from simulator.engine.state import ReplicaState
from simulator.request import Request
from simulator.request_state import (
    ABORTED,
    DECODING,
    FINISHED,
    LEAVING,
    PREFILLING,
    SWAPPED,
    WAITING,
    RequestState,
    ScheduledChunk,
    place,
)
from simulator.results.recorder import Recorder
from simulator.results.records import Cause, Status

# How requests leave a replica, and what becomes of their slots and blocks.

_ENDED: Final = Status.FINISHED
_STATUS = {FINISHED: _ENDED, ABORTED: Status.ABORTED}


class OnEnd(Protocol):
    """A function that is called with each request that ends, at that moment of the run.

    A request finishes, is rejected or aborts. `end_s` is now: the client has its last token, hears that it was
    rejected, or the engine has noticed the abort. `cause` says why a request was rejected, and is None for every other.
    A request that the function submits at `end_s` is seen by every decision of that moment.
    """

    def __call__(self, row: int, status: Status, end_s: float, cause: Cause | None) -> None: ...


class Completion:
    """Ends the requests of one replica: with their last token, with the whole batch, or unserved."""

    def __init__(
        self,
        index: int,
        state: ReplicaState,
        recorder: Recorder,
        decisions: DecisionLog | None,
        max_queued_requests: int | None,
        on_end: OnEnd | None,
    ) -> None:
        self.decisions = decisions
        self._index = index
        self._state = state
        self._recorder = recorder
        self._keeps_finished = state.traits.keeps_finished
        self._streams = state.traits.streams
        self._frees_late = state.traits.frees_late
        self._max_queued_requests = max_queued_requests
        self.admission: Admission | None = None  # of the server, where its queue has caps
        self._on_end = on_end
        self.hand_over: Callable[[RequestState, int], bool] | None = None  # see `Replica.hand_over_to`
        self.finished: Callable[[], None] | None = None  # see `Replica.tell_finished`
        # Forgets the content of a request that leaves, where there is a prefix cache.
        self.forget: Callable[[int], None] | None = None if state.cache is None else state.cache.end
        self.ended: Callable[[int], None] | None = None  # told the row of each request that leaves, served or not

    def end(self, live: RequestState, status: Status, end_s: float) -> None:
        """A request ends and leaves the engine at `end_s`."""
        self._leave(live, status, end_s)
        if self._on_end is not None:
            self._on_end(live.row, status, end_s, None)

    def tell_abort(self, live: RequestState, end_s: float) -> None:
        """An aborted request stays in its slot; for its client it has ended."""
        if self._on_end is not None:
            self._on_end(live.row, Status.ABORTED, end_s, None)

    def _leave(self, live: RequestState, status: Status, released_s: float) -> None:
        """Hand a request that leaves the engine over to the records."""
        self._recorder.request(live, self._index, status, released_s)
        state = self._state
        del state.requests[live.row]
        if state.adapters is not None and status is not Status.REJECTED:
            state.adapters.ended(live)
        if state.companion is not None:
            state.companion.ended(live.row, aborted=status is Status.ABORTED)
        if self._on_end is not None:
            del state.lives[live.row]
        if self.forget is not None:
            self.forget(live.row)
        if self.admission is not None:
            self.admission.end(live.row)
        if self.ended is not None:
            self.ended(live.row)

    def rejects(self, request: Request, live: RequestState) -> bool:
        """Reject an arriving request if it could never be served here or the queue is full; returns whether it is."""
        state = self._state
        size = state.batch.block_size
        num_blocks = state.blocks.num_blocks
        reason: str | None = None
        # The last sampled token is never computed.
        needed = -(-(request.input_tokens + request.output_tokens - 1) // size)
        if needed > num_blocks:
            reason = (
                f"{request.input_tokens} input and {request.output_tokens} output tokens need {needed} KV blocks; "
                f"there are {num_blocks} ({num_blocks * size} tokens)"
            )
        elif state.refuses is not None:
            reason = state.refuses(live, num_blocks, size)
        most = self._max_queued_requests
        if reason is not None:
            self._reject(live, reason, Cause.TOO_LARGE)
        elif most is not None and len(state.waiting) >= most:
            self._reject(live, f"{Cause.QUEUE_FULL.value}: max_queued_requests is {most}", Cause.QUEUE_FULL)
        elif self.admission is None:
            return False
        elif (refused := self.admission.refusal_of(request)) is None:
            self.admission.add(live)
            return False
        else:
            self._reject(live, refused[1], refused[0])
        return True

    def _reject(self, live: RequestState, reason: str, cause: Cause) -> None:
        self._recorder.reject_reasons[live.row] = reason
        self._leave(live, Status.REJECTED, nan)
        if self._on_end is not None:
            self._on_end(live.row, Status.REJECTED, live.arrival_s, cause)

    def finish_all(self, done: list[RequestState], end_s: float) -> None:
        """These requests have their last token: they leave, or are held until the batch has finished."""
        state = self._state
        if len(done) > 1:
            done.sort(key=place)
        size = state.batch.block_size
        for live in done:
            if live.status is FINISHED:
                continue  # with its prompt, which entered the radix tree before others did
            del state.running[live]
            if state.adapters is not None:
                state.adapters.left(live)
            if self._keeps_finished:
                self._hold(live, end_s)
                continue
            if live.status is DECODING:
                state.batch.leave(live)
            tokens = live.base_computed
            if tokens < live.reserved_tokens:
                tokens = live.reserved_tokens
            live.status = FINISHED
            blocks = -(-tokens // size)
            if state.tree is not None:
                state.tree.enter(state.requests[live.row], tokens // size)
            elif state.cache is not None:
                state.enter_decoded(live, live.base_computed)
            if self.hand_over is not None and self._goes_on(live, blocks):
                continue
            if self._frees_late:
                state.late_frees.put_off(live.row, blocks)
            else:
                state.blocks.free(live.row, blocks)
            self._leave(live, _ENDED, end_s)
            if self._on_end is not None:
                self._on_end(live.row, _ENDED, end_s, None)
        if state.held and not state.running:
            self._release_held(end_s)
        if self.finished is not None:
            self.finished()

    def finish_in_order(self, prefill: Sequence[ScheduledChunk], done: list[RequestState], end_s: float) -> None:
        """Insert prompts into the radix tree, and let requests finish that needed no decode, in the batch's order."""
        state = self._state
        for live, _, _ in prefill:
            if live in done:
                self.finish_all([live], end_s)
            elif live.num_tokens_to_compute and live.status is PREFILLING:
                state.cut = live
            else:
                state.settle(live)

    def finish_late(self, live: RequestState, end_s: float) -> None:
        """Finish a request whose last token becomes known only now; it may have been paused or preempted since.

        Where it would go on elsewhere, and was preempted, it has no KV to go on with: it computes its prompt again.
        """
        state = self._state
        if live.status is WAITING and self.hand_over is not None:
            live.lose_outputs(1, nan)
            return
        if live.status is WAITING:
            state.forget_preemption(live, end_s)
            live.status = FINISHED
            self._end_late(live, end_s)
            return
        del state.running[live]
        if state.adapters is not None:
            state.adapters.left(live)
        if live.status is LEAVING:
            state.num_leaving -= 1
        elif live.paused:
            state.paused = tuple([other for other in state.paused if other is not live])
        else:
            state.batch.leave(live)
        blocks = live.num_blocks
        live.status = FINISHED
        if state.tree is not None:
            state.tree.enter(state.requests[live.row], live.base_computed // state.batch.block_size)
        if self.hand_over is None or not self._goes_on(live, blocks):
            state.blocks.free(live.row, blocks)
            self._end_late(live, end_s)
        elif self.finished is not None:
            self.finished()

    def _goes_on(self, live: RequestState, blocks: int) -> bool:
        """Hand a request over whose prompt is computed; False if it has ended. Its blocks stay until they are sent."""
        state = self._state
        assert self.hand_over is not None
        if not self.hand_over(live, blocks):
            return False
        if state.tree is not None:
            state.settle(live)
        del state.requests[live.row], state.lives[live.row]
        return True

    def _end_late(self, live: RequestState, end_s: float) -> None:
        self.end(live, Status.FINISHED, end_s)
        if self.finished is not None:
            self.finished()

    def _hold(self, live: RequestState, end_s: float) -> None:
        """Let a finished request keep its slot."""
        if live.status is DECODING:
            self._state.batch.hold(live)
        else:
            self._state.batch.join_held(live)
        live.last_token_s = end_s
        live.status = FINISHED
        self._state.held.append(live)
        if self._streams and self.admission is not None:
            self.admission.end(live.row)
        if self._streams and self._on_end is not None:
            self._on_end(live.row, Status.FINISHED, end_s, None)

    def release_if_over(self, end_s: float) -> None:
        """Release a batch whose last running requests were aborted."""
        if self._state.held and not self._state.running:
            self._release_held(end_s)

    def _release_held(self, end_s: float) -> None:
        """Free slots and KV of a batch that has finished, and return the answers that do not stream."""
        state = self._state
        for live in state.held:
            aborted = live.status is ABORTED
            if not self._streams:
                live.first_token_s = live.last_token_s = nan if aborted else end_s
            state.blocks.free(live.row, live.num_blocks)
            if aborted or self._streams:  # the client knows
                self._leave(live, Status.ABORTED if aborted else _ENDED, end_s)
            else:
                self.end(live, _ENDED, end_s)
        state.held.clear()
        state.batch.release_held()

    def abandon(self, others: Iterable[RequestState] = ()) -> None:
        """The run is over: record the unfinished requests, those `others` too that wait outside the queue."""
        state = self._state
        for live in list(others):
            self._leave(live, Status.UNFINISHED, nan)
        for live in [*state.held, *state.running, *state.waiting]:
            status = _STATUS.get(live.status, Status.UNFINISHED)
            if live.status is DECODING and not live.paused:
                state.batch.leave(live)
            if live.setbacks is not None and live.status in (WAITING, SWAPPED):
                state.requeues.add((live.row, live.setbacks.left_s, nan, live.is_swapped))
            self._leave(live, status, nan)


# No prompt of a real model takes so many steps.
MAX_STEPS_WITHOUT_A_TOKEN = 100_000


class Progress:
    """Consecutive steps and rests of a replica without a token; set `barren_steps` to 0 at each token or arrival."""

    __slots__ = ("_state", "barren_steps")

    def __init__(self, state: ReplicaState) -> None:
        self._state = state
        self.barren_steps = 0

    def missed(self) -> None:
        """A step or a timed rest gave no token. Raises PolicyError beyond the bound."""
        self.barren_steps += 1
        if self.barren_steps > MAX_STEPS_WITHOUT_A_TOKEN:
            state = self._state
            raise state.broken(
                f"follows {MAX_STEPS_WITHOUT_A_TOKEN:,} consecutive steps that produced no token: "
                f"{len(state.running)} requests running, {len(state.waiting)} waiting, "
                f"{state.blocks.num_free} free blocks"
            )
