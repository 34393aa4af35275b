"""Requests that another replica prefilled: their KV comes from there, and they only decode here.

As vLLM's KV connectors do it: blocks are taken first, between two steps; then the KV is fetched
(`WAITING_FOR_REMOTE_KVS`); then the request joins the batch. It queues in order of arrival for its blocks, behind
what waits in the policy's queue (requests preempted here), and holds no slot until it joins. From then on it is the
policy's like any other: preempted, it is computed again here, from its prompt on.
"""

from collections import deque
from collections.abc import Callable, Iterator

from simulator.division import cdiv
from simulator.engine.state import ReplicaState
from simulator.request import Request
from simulator.request_state import RequestState


class Imports:
    """Imported requests of one replica, each made by `new_request`.

    `on_room` is called with the row of a request whose blocks have been taken.
    """

    __slots__ = ("_freed", "_loaded", "_loading", "_most", "_new_request", "_offered", "_state", "on_room")

    def __init__(
        self, state: ReplicaState, new_request: Callable[[Request], RequestState], on_room: Callable[[int], None]
    ) -> None:
        self._state = state
        self._new_request = new_request
        state.orders_blocks = True
        state.fills = None
        state.enters_late = False  # what comes from elsewhere enters with the first block that is filled here
        self._offered: deque[RequestState] = deque()
        self._loading: dict[int, RequestState] = {}
        self._loaded: deque[RequestState] = deque()
        self._freed: list[RequestState] = []  # their clients have gone: their blocks come free after the step
        self._most = min(state.policy.max_num_seqs, state.max_num_batched_tokens)
        self.on_room = on_room

    def __iter__(self) -> Iterator[RequestState]:
        """All that have not joined the batch."""
        yield from self._offered
        yield from self._loading.values()
        yield from self._loaded

    def __len__(self) -> int:
        return len(self._offered) + len(self._loading) + len(self._loaded)

    def offer(self, request: Request, prefilled: RequestState) -> None:
        """A request whose prompt has been computed elsewhere, and its first token sampled."""
        state = self._state
        live = self._new_request(request)
        live.take_over(prefilled)
        state.requests[live.row] = request
        state.lives[live.row] = live
        self._offered.append(live)

    def arrived(self, row: int) -> None:
        """The KV of a request is here."""
        self._loaded.append(self._loading.pop(row))

    def settle(self) -> bool:
        """Between two steps: let those join whose KV is here, and take blocks for the next; whether any joined."""
        state, size = self._state, self._state.batch.block_size
        joined = False
        for live in self._freed:
            state.blocks.free(live.row, cdiv(live.base_computed, size))
        self._freed.clear()
        while self._loaded and len(state.running) < self._most:
            state.take_in(self._loaded.popleft())
            joined = True
        while self._offered and not state.waiting:
            live = self._offered[0]
            blocks = cdiv(live.base_computed, size)
            if blocks > state.blocks.num_free:
                break
            self._offered.popleft()
            state.blocks.allocate(live.row, blocks)
            self._loading[live.row] = live
            self.on_room(live.row)
        return joined

    def drop(self, row: int) -> RequestState | None:
        """Take out a request that has not joined, as its client has gone; its blocks come free after the step.

        None: it is not here, or its KV is on its way, and can be dropped when that has arrived.
        """
        for queue in (self._offered, self._loaded):
            for live in queue:
                if live.row == row:
                    queue.remove(live)
                    if queue is self._loaded:
                        self._freed.append(live)
                    return live
        return None
