"""Decodes that each want a free block, whether they take one or not: vLLM v0, and Sarathi-Serve, which came from it.

A token touches one block, which may be a new one, so these schedulers ask for a free block before they let a request
decode: `can_append_slots` in vllm/core/block_manager.py:232 (0.6.6) counts the blocks touched, `can_append_slot` in
sarathi/core/block_space_manager/base_block_space_manager.py:94 asks whether any block is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter

from simulator.plan import View
from simulator.request import RequestView


def without_slots(
    view: View,
    running: Iterable[RequestView],
    free: int,
    wants_slot: Callable[[RequestView], bool] = attrgetter("is_decoding"),
) -> list[RequestView]:
    """The victims that leave so that every other request of `running` finds its free block, in the order of leaving.

    Requests are looked at from the first on; where no block is free, the last of those not yet looked at leaves, and
    in the end the request itself. `free` are the free blocks before.
    """
    size = view.block_size
    queue = deque(running)
    victims: list[RequestView] = []
    while queue:
        request = queue.popleft()
        if not wants_slot(request):
            continue
        victim = None
        while free < 1 and victim is not request:
            victim = queue.pop() if queue else request
            victims.append(victim)
            free += victim.num_blocks
        if victim is not request and request.is_decoding:
            free -= request.num_computed_tokens % size == 0
    return victims
