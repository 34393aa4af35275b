"""Who leaves when memory runs out: parts that several policies share."""

from __future__ import annotations

from collections.abc import Iterable

from simulator.plan import BatchView, Preemption, View
from simulator.request import RequestView


def rank(request: RequestView) -> tuple[int, int]:
    """Priority, then arrival: the smaller is the more important, the larger the sooner a victim."""
    return request.priority, request.row


def first_to_leave(running: BatchView, order: str) -> Iterable[RequestView]:
    """The running requests, the next victim first: the latest admitted, or under `priority` the least important."""
    return sorted(running, key=rank, reverse=True) if order == "priority" else reversed(running)


def make_room(view: View, order: str, *, swap: bool = False) -> tuple[Preemption, ...]:
    """The victims whose blocks let the others decode; with `swap` to the host, as far as there is room on it.

    For policies whose batch only decodes when memory runs out.
    """
    size = view.block_size
    needed = view.decode_blocks_needed
    free, free_host = view.num_free_blocks, view.num_free_host_blocks
    victims = []
    for request in first_to_leave(view.running, order):
        if needed <= free:
            break
        blocks = request.num_blocks
        to_host = swap and blocks <= free_host
        victims.append(Preemption(request, to_host))
        free_host -= blocks if to_host else 0
        free += blocks
        needed -= request.num_computed_tokens % size == 0
    return tuple(victims)
