"""Who may enter from the head of the queue: vLLM's loop over those who wait."""

from __future__ import annotations

from typing import NamedTuple

from simulator.plan import Chunk, View, cdiv
from simulator.policies.parts.reservations import watermark_blocks
from simulator.policies.parts.token_budget import share


class AdmissionRule(NamedTuple):
    """What a policy lets in."""

    slots: int  # of the batch
    watermark: float  # share of the blocks that an admission leaves free while others run
    tests_whole: bool  # a prompt enters only if all of it would fit, though it takes but its first chunk's blocks
    in_chunks: bool  # a prompt beyond the budget is cut, and does not wait for another step


def admit(view: View, door: AdmissionRule, threshold: int, budget: int, free: int, chunks: list[Chunk]) -> None:
    """Append chunks for the heads of the queue while slots, tokens and blocks last: nobody is passed over.

    `budget` and `free` are the tokens and the blocks that the step has left, `threshold` the longest chunk of a
    prompt; 0 is no limit.
    """
    slots, share_kept, tests_whole, in_chunks = door
    kept = watermark_blocks(share_kept, view.num_blocks + 1)  # vLLM's count of blocks includes the null block
    size = view.block_size
    running = len(view.running)
    for request in view.waiting:
        if budget == 0 or running >= slots:
            return
        whole = request.num_tokens_to_compute
        tokens = whole if not 0 < threshold < whole else threshold
        if tokens > budget:
            if not in_chunks:
                return
            tokens = budget
        if cdiv(whole if tests_whole else tokens, size) + (kept if running else 0) > free:
            return
        free -= cdiv(tokens, size)
        budget -= tokens
        running += 1
        chunks.append(Chunk(request, tokens))


def admit_next(view: View, door: AdmissionRule, threshold: int, budget: int) -> Chunk | None:
    """The head alone, reckoning with its hits: what the next one finds in the prefix cache depends on its blocks."""
    kept = watermark_blocks(door.watermark, view.num_blocks + 1) if view.running else 0
    size = view.block_size
    request = view.waiting.head
    hits, unused = view.prefix_hits(request)
    whole = request.num_tokens - hits * size
    tokens = share(whole, threshold, budget)
    if not door.in_chunks and tokens < (threshold if 0 < threshold < whole else whole):
        return None
    tested = request.num_tokens if door.tests_whole else hits * size + tokens
    if cdiv(tested, size) - hits + unused + kept > view.num_free_blocks:
        return None
    return Chunk(request, tokens)
