"""Who is paused where memory is given on demand: `MaxUtilizationPolicy` in TensorRT-LLM's scheduler.py.

tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py (revision 002f3cc). It walks the requests in order of arrival.
Where one lacks blocks, the last that has begun is paused, unless none has begun from this one on.
"""

from __future__ import annotations

from itertools import islice
from operator import attrgetter

from simulator.plan import Chunk, View, cdiv
from simulator.policies.parts.decode_slots import takes_block
from simulator.request import RequestView

ARRIVAL = attrgetter("row")


def pause(view: View, may_enter: int, by_arrival: bool) -> tuple[list[RequestView], list[RequestView]]:
    """The prompts that have memory, `may_enter` new ones at most, and the requests that are paused for them.

    In other orders than that of arrival no request that waits comes before one that has begun.
    """
    requests = sorted(view.running, key=ARRIVAL) if by_arrival else [*view.running]
    if not by_arrival or not view.waiting or view.waiting.head.row > requests[-1].row:
        return _latest(view, requests)
    paused: list[RequestView] = []
    requests = sorted([*requests, *islice(view.waiting, may_enter)], key=ARRIVAL)
    free, at, end = view.num_free_blocks, 0, len(requests)
    while at < end:
        request = requests[at]
        if request in view.running:
            needed = int(takes_block(view, request))
        else:
            needed = cdiv(request.num_tokens, view.block_size)
        if needed <= free:
            free -= needed
            at += 1
            continue
        end = next((i for i in range(end - 1, at - 1, -1) if requests[i] in view.running), at)
        if requests[end] not in view.running:
            break
        paused.append(requests[end])
        free += requests[end].num_blocks
    return [request for request in requests[:at] if not request.is_decoding], paused


def _latest(view: View, begun: list[RequestView]) -> tuple[list[RequestView], list[RequestView]]:
    """As above where all that have begun come before all others: the last leave until the rest find their blocks."""
    paused: list[RequestView] = []
    free = view.num_free_blocks - view.decode_blocks_needed
    while free < 0:
        paused.append(begun.pop())
        free += paused[-1].num_blocks + takes_block(view, paused[-1])
    return [request for request in view.prefilling if request not in paused], paused


def queue_by_arrival(view: View, paused: list[RequestView], chunks: tuple[Chunk, ...]) -> tuple[RequestView, ...]:
    """The front of the queue when the paused are back in it and those with chunks have left it."""
    entered = {chunk.request for chunk in chunks}
    latest = max(map(ARRIVAL, paused))
    before = [request for request in view.waiting if request.row < latest and request not in entered]
    return tuple(sorted([*paused, *before], key=ARRIVAL))
