"""Requests that another replica prefilled: their KV comes from there, and they only decode here.

As vLLM's KV connectors do it: blocks are taken first, between two steps; then the KV is fetched
(`WAITING_FOR_REMOTE_KVS`); then the request joins the batch. It queues in order of arrival for its blocks, behind
what waits in the policy's queue (requests preempted here), and holds no slot until it joins. From then on it is the
policy's like any other: preempted, it is computed again here, from its prompt on. With asynchronous scheduling all this
happens before a plan, while the step before runs: what is here is known, first token included, for it came from there.

`TakesOver` says what other servers do. SGLang (0.5.23, python/sglang/srt/disaggregation/decode.py) takes memory as the
request arrives (`pop_preallocated`, :1333), its prompt is computed after that, and the first token is sent as the
request joins (`get_next_disagg_decode_batch_to_run`, :3241). Memory is there if `num_reserved_decode_tokens` are left
for each request (`_allocatable_token_budgets`, :2083; `_required_admission_tokens`, :508). TensorRT-LLM's capacity
scheduler gives it memory for its whole answer, and counts it from then on (`GuaranteedNoEvictPolicy` in
tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py, 002f3cc; `_prepare_disagg_gen_init` in py_executor.py); it sends
the first token, too (`_handle_first_token_response`).

Left out: SGLang brings a retracted request's KV back from the host, here it is computed again; TensorRT-LLM's prompts
of the server's own, which come after these.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from simulator.division import cdiv
from simulator.engine.state import ReplicaState
from simulator.policy_traits import TakesOver
from simulator.request import Request, RequestView
from simulator.request_state import RequestState

# Requests that another replica prefilled: their KV comes from there, and they only decode here.
# As vLLM's KV connectors do it: blocks are taken first, between two steps; then the KV is fetched
# (`WAITING_FOR_REMOTE_KVS`); then the request joins the batch. It queues in order of arrival for its blocks, behind
# what waits in the policy's queue (requests preempted here), and holds no slot until it joins. From then on it is
# the policy's like any other: preempted, it is computed again here, from its prompt on. With asynchronous
# scheduling all this happens before a plan, while the step before runs: what is here is known, first token
# included, for it came from there.
# `TakesOver` says what other servers do. SGLang (0.5.23, python/sglang/srt/disaggregation/decode.py) takes memory
# as the request arrives (`pop_preallocated`, :1333), its prompt is computed after that, and the first token is sent
# as the request joins (`get_next_disagg_decode_batch_to_run`, :3241). Memory is there if
# `num_reserved_decode_tokens` are left for each request (`_allocatable_token_budgets`, :2083;
# `_required_admission_tokens`, :508). TensorRT-LLM's capacity scheduler gives it memory for its whole answer, and
# counts it from then on (`GuaranteedNoEvictPolicy` in tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py,
# 002f3cc; `_prepare_disagg_gen_init` in py_executor.py); it sends the first token, too
# (`_handle_first_token_response`).
# Left out: SGLang brings a retracted request's KV back from the host, here it is computed again; TensorRT-LLM's
# prompts of the server's own, which come after these.

CLIP_MAX_NEW_TOKENS: Final = 4096  # SGLang's, of an answer
_FEW: Final = 8  # with so many requests, what is left for each is more than one alone may come to need


class Imports:
    """Imported requests of one replica, each made by `new_request`.

    `on_room` is called with the row of a request whose blocks have been taken, `on_joined` with one that now decodes.
    With `looks_again`, memory that is lacking may be there with the next step, though nothing else happens.
    """

    __slots__ = (
        "_elsewhere", "_freed", "_loaded", "_loading", "_most", "_new_request", "_offered", "_places", "_refuses",
        "_state", "looks_again", "on_joined", "on_room", "rule",
    )  # fmt: skip

    def __init__(
        self,
        state: ReplicaState,
        new_request: Callable[[Request], RequestState],
        on_room: Callable[[int], None],
        on_joined: Callable[[RequestState], None],
    ) -> None:
        self._state = state
        self._new_request = new_request
        state.orders_blocks = True
        state.fills = None
        state.enters_late = False  # what comes from elsewhere enters with the first block that is filled here
        self.rule = state.traits.takes_over or TakesOver()
        self._offered: deque[RequestState] = deque()
        self._elsewhere: dict[int, RequestState] = {}  # have their blocks, and are being prefilled
        self._loading: dict[int, RequestState] = {}
        self._loaded: deque[RequestState] = deque()
        self._freed: list[tuple[int, int]] = []  # blocks of clients that have gone: they come free after the step
        self._most = min(state.policy.max_num_seqs, state.max_num_batched_tokens)
        self._places = None if self.rule.extra_slots is None else self._most + self.rule.extra_slots
        self.looks_again = False
        self.on_room = on_room
        self.on_joined = on_joined
        self._refuses = state.refuses
        if self.rule.reserved_tokens:
            state.refuses = self._refusal

    def __iter__(self) -> Iterator[RequestState]:
        """All that have not joined the batch, but for those that another replica has."""
        yield from self._offered
        yield from self._loading.values()
        yield from self._loaded

    def __len__(self) -> int:
        return len(self._offered) + len(self._elsewhere) + len(self._loading) + len(self._loaded)

    def offer(self, request: Request, prefilled: RequestState | None) -> None:
        """A request whose prompt has been computed elsewhere, and its first token sampled; None: it will be."""
        state = self._state
        live = self._new_request(request)
        if prefilled is not None:
            self._take_over(live, prefilled)
        state.requests[live.row] = request
        state.lives[live.row] = live
        self._offered.append(live)

    def begun(self, row: int) -> None:
        """The prompt of a request with blocks here is computed elsewhere from now on."""
        self._elsewhere[row] = self._loading.pop(row)

    def prefilled(self, row: int, prefilled: RequestState) -> None:
        """That prompt is computed: its KV moves."""
        live = self._loading[row] = self._elsewhere.pop(row)
        self._take_over(live, prefilled)

    def _take_over(self, live: RequestState, prefilled: RequestState) -> None:
        live.take_over(prefilled)
        if self.rule.sends_first:
            live.lose_outputs(1, prefilled.last_token_s)

    def arrived(self, row: int) -> None:
        """The KV of a request is here."""
        self._loaded.append(self._loading.pop(row))

    def settle(self, now_s: float) -> bool:
        """Between two steps: take blocks for the next, and let those join whose KV is here; whether any joined."""
        state = self._state
        for row, blocks in self._freed:
            state.blocks.free(row, blocks)
        self._freed.clear()
        self.looks_again = False
        while self._offered and not state.waiting:
            live = self._offered[0]
            if not self._has_room(live):
                break
            self._offered.popleft()
            if self.rule.reserves:
                live.reserved_tokens = live.input_tokens + live.max_tokens
            state.blocks.allocate(live.row, self._blocks(live))
            self._loading[live.row] = live
            self.on_room(live.row)
        joined = False
        while self._loaded and len(state.running) < self._most:
            live = self._loaded.popleft()
            if not live.base_outputs:
                live.base_outputs, live.first_token_s, live.last_token_s = 1, now_s, now_s
            state.take_in(live)
            self.on_joined(live)
            joined = True
        return joined

    def _blocks(self, live: RequestState) -> int:
        """Blocks that a request which has not joined takes."""
        return cdiv(max(live.base_computed or live.input_tokens, live.reserved_tokens), self._state.batch.block_size)

    def _has_room(self, live: RequestState) -> bool:
        """Whether blocks and places for one more request are there."""
        state, rule, size = self._state, self.rule, self._state.batch.block_size
        here = len(state.running) + len(self._elsewhere) + len(self._loading) + len(self._loaded)
        if self._places is not None and here >= self._places:
            return False
        free = state.blocks.num_free
        if rule.reserves:
            return cdiv(live.input_tokens + live.max_tokens, size) <= free
        blocks = self._blocks(live)
        if not rule.reserved_tokens:
            return blocks <= free
        needed, kept = blocks * size + rule.reserved_tokens, rule.reserved_tokens * here
        if here >= _FEW and state.batch.context >= CLIP_MAX_NEW_TOKENS + state.batch.size:
            return needed <= free * size - kept
        # Each must be able to end with all others retracted: those on their way cannot be.
        known = self._known_tokens()
        most = max([_whole(each) - known for each in state.running], default=0)
        self.looks_again = max(needed, _whole(live) - known) > free * size - max(kept, most)
        return not self.looks_again

    def _known_tokens(self) -> int:
        """Prompts and known outputs of the running requests."""
        unseen = self._state.unseen
        tokens = [live.input_tokens + live.output_tokens_so_far for live in self._state.running]
        return sum(tokens) - (0 if unseen is None else sum([unseen.count(live) for live in self._state.running]))

    def _refusal(self, request: RequestView, num_blocks: int, block_size: int) -> str | None:
        """The reason why a request would wait here for ever."""
        reserved = self.rule.reserved_tokens
        needed = max(cdiv(request.input_tokens, block_size) * block_size + reserved, _whole(request))
        if needed > num_blocks * block_size:
            return (
                f"{request.input_tokens} input tokens and what a decoding server keeps free make {needed}; "
                f"there are {num_blocks} KV blocks ({num_blocks * block_size} tokens)"
            )
        return None if self._refuses is None else self._refuses(request, num_blocks, block_size)

    def drop(self, row: int) -> RequestState | None:
        """Take out a request that has not joined, as its client has gone; its blocks come free after the step.

        None: it is not here, or its KV is on its way, and can be dropped when that has arrived.
        """
        for queue in (self._offered, self._loaded):
            for live in queue:
                if live.row == row:
                    queue.remove(live)
                    if queue is self._loaded:
                        self._freed.append((row, self._blocks(live)))
                    return live
        return None

    def cancel(self, row: int) -> RequestState | None:
        """As `drop`, also of a request with blocks here whose KV is not on its way, and will not be."""
        live = self._elsewhere.pop(row, None) or self._loading.pop(row, None)
        if live is None:
            return self.drop(row)
        self._freed.append((row, self._blocks(live)))
        return live


def _whole(request: RequestView) -> int:
    """Tokens that a request may come to have, as SGLang counts them."""
    return request.input_tokens + min(request.max_tokens, CLIP_MAX_NEW_TOKENS)
