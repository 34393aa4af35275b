"""Decodes that each want a free block, whether they take one or not: vLLM v0, and Sarathi-Serve, which came from it.

A token touches one block, which may be a new one, so these schedulers ask for a free block before they let a request
decode: `can_append_slots` in vllm/core/block_manager.py:232 (0.6.6) counts the blocks touched, `can_append_slot` in
sarathi/core/block_space_manager/base_block_space_manager.py:94 asks whether any block is free.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import cast

from simulator.division import cdiv
from simulator.plan import Chunk, View
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
        if victim is not request:
            free -= takes_block(view, request)
    return victims


def chunks_under_way(
    view: View, victims: Collection[RequestView], free: int, budget: int
) -> tuple[list[Chunk], int, int]:
    """The chunks of the prompts under way that stay once `victims` left, and the free blocks and tokens after them.

    `free` and `budget` are what all decodes of the batch, those of the victims too, leave of either.
    """
    for victim in victims:
        free += victim.num_blocks + takes_block(view, victim)
        budget += victim.is_decoding
    chunks = []
    for request in view.prefilling:
        if request not in victims:
            tokens = min(request.num_tokens_to_compute, budget)
            budget -= tokens
            chunks.append(Chunk(request, tokens))
    return chunks, free, budget


def takes_block(view: View, request: RequestView) -> bool:
    """True if the request decodes and its next token takes a new block."""
    return request.is_decoding and request.num_computed_tokens % view.block_size == 0


def touches_block(view: View, request: RequestView) -> bool:
    """A decode wants a free block, and so does a prompt under way whose last block is not full (block_table.py:358)."""
    return request.is_decoding or request.num_tokens % view.block_size != 0


def blocks_to_resume(view: View, request: RequestView) -> int:
    """Blocks that a swapped request takes, that of its next token among them."""
    return cdiv(request.num_computed_tokens + 1, view.block_size)


def returned(view: View) -> list[RequestView]:
    """Running requests that were swapped, of those in the plan's note: with chunks they return to the batch's front."""
    return [request for request in cast("tuple[RequestView, ...]", view.note or ()) if request in view.running]
