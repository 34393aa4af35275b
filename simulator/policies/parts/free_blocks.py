"""KV blocks that must be free: for a request to enter, and for decodes whether they take one or not."""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from operator import attrgetter
from typing import cast

from simulator.division import cdiv
from simulator.plan import Chunk, View
from simulator.request import RequestView

# KV memory that a request must find free in order to enter, and the requests that can never find it.


def most_tokens(request: RequestView) -> int:
    """KV tokens that a request may come to need, as far as a server knows: its prompt and `max_tokens`."""
    return request.input_tokens + request.max_tokens


def refuse_reservation(
    request: RequestView, num_blocks: int, block_size: int, granted_tokens: int | None = None
) -> str | None:
    """Why a request that reserves `granted_tokens` (None: `most_tokens`) can never enter, or None if it can."""
    needed = cdiv(most_tokens(request) if granted_tokens is None else granted_tokens, block_size)
    if needed <= num_blocks:
        return None
    return (
        f"{request.input_tokens} input tokens and max_tokens = {request.max_tokens} reserve {needed} KV blocks; "
        f"there are {num_blocks}"
    )


def watermark_blocks(watermark: float, num_blocks: int) -> int:
    """Blocks that an admission leaves free, a fraction `watermark` of all: vLLM's rounding."""
    return int(watermark * num_blocks)


def refuse_beyond_watermark(request: RequestView, num_blocks: int, block_size: int, watermark: float) -> str | None:
    """Why a prompt can never enter above the watermark, or None if it can."""
    needed, keep = cdiv(request.input_tokens, block_size), watermark_blocks(watermark, num_blocks)
    if needed + keep <= num_blocks:
        return None
    return (
        f"{request.input_tokens} input tokens need {needed} KV blocks, and the watermark keeps {keep} free; "
        f"there are {num_blocks}"
    )


def refuse_beyond_budget(request: RequestView, max_num_batched_tokens: int) -> str | None:
    """Why a prompt that is computed whole, and after a preemption with its output, can never be computed, or None."""
    if most_tokens(request) <= max_num_batched_tokens + 1:
        return None
    return (
        f"{request.input_tokens} input and up to {request.max_tokens} output tokens exceed "
        f"max_num_batched_tokens = {max_num_batched_tokens}, and enable_chunked_prefill is false"
    )


# Decodes that each want a free block, whether they take one or not: vLLM v0, and Sarathi-Serve, which came from it.
#
# A token touches one block, which may be a new one, so these schedulers ask for a free block before they let a
# request decode: `can_append_slots` in vllm/core/block_manager.py:232 (0.6.6) counts the blocks touched,
# `can_append_slot` in sarathi/core/block_space_manager/base_block_space_manager.py:94 asks whether any block is
# free.


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
