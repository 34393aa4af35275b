"""Prompts that enter together, each with blocks for all it may come to need: TGI's `State::next_batch`.

backends/v3/src/queue.rs and block_allocator.rs beside it (TGI 3).
"""

from __future__ import annotations

from simulator.plan import Chunk, View, cdiv
from simulator.policies.parts.reservations import most_tokens
from simulator.request import RequestView


def granted_tokens(request: RequestView) -> int:
    """Tokens that a request gets blocks for (queue.rs:316): the last of its answer is never computed."""
    return most_tokens(request) - 1


def granted_prompts(view: View, slots: int, tokens: int, free: int, *, in_chunks: bool) -> list[Chunk]:
    """Chunks for the heads of the queue that fit into so many free slots, tokens of a prefill and free blocks.

    With `in_chunks` the last may be cut; without, only a prompt that is longer than a prefill, and comes first.
    """
    size = view.block_size
    chunks: list[Chunk] = []
    for request in view.waiting:
        granted = granted_tokens(request)
        free -= cdiv(granted, size)
        whole = request.input_tokens
        share = whole if whole <= tokens else tokens
        is_cut = share < whole and (share == 0 if in_chunks else len(chunks) > 0)
        if len(chunks) == slots or free < 0 or is_cut:
            break
        tokens -= share
        chunks.append(Chunk(request, share, granted))
    return chunks
