"""Admissions from the head of the queue: vLLM's loop over the waiting requests."""

from __future__ import annotations

from typing import NamedTuple

from simulator.plan import Chunk, View, cdiv
from simulator.policies.chunked_prefill.token_budget import share
from simulator.policies.parts.plans import chunk_of
from simulator.policies.parts.reservations import watermark_blocks
from simulator.request import RequestView


class AdmissionRule(NamedTuple):
    """The conditions under which a policy admits a request."""

    slots: int  # of the batch
    watermark: float  # fraction of the blocks that an admission leaves free while others run
    tests_whole: bool  # a prompt enters only if all of it would fit, though it takes but its first chunk's blocks
    in_chunks: bool  # a prompt beyond the budget is cut; else it waits for another step
    passes_over: bool = False  # and others, behind it, need not wait with it

    @property
    def lacks_blocks_alone(self) -> bool:
        """Whether a request that is not admitted lacks blocks, until others finish or fill what it would hit.

        What is tested is then its whole prompt, less the blocks of it that running requests use. Decodes take free
        blocks, and evict what is used by nobody: neither makes the prompt fit.
        """
        return self.tests_whole and self.in_chunks


def admit(
    view: View, rule: AdmissionRule, threshold: int, budget: int, free: int, chunks: list[Chunk]
) -> list[RequestView]:
    """Append chunks for the heads of the queue while slots, tokens and blocks last; returns those passed over.

    `budget` and `free` are the tokens and the blocks that the step has left, `threshold` the longest chunk of a
    prompt; 0 is no limit.
    """
    slots, watermark, tests_whole, in_chunks, passes_over = rule
    passed: list[RequestView] = []
    kept = watermark_blocks(watermark, view.num_blocks + 1)  # vLLM's count of blocks includes the null block
    size = view.block_size
    running = len(view.running)
    for request in view.waiting:
        if budget == 0 or running >= slots:
            break
        whole = request.num_tokens_to_compute
        tokens = whole if not 0 < threshold < whole else threshold
        if tokens > budget:
            if not in_chunks:
                if not passes_over:
                    break
                passed.append(request)
                continue
            tokens = budget
        if cdiv(whole if tests_whole else tokens, size) + (kept if running else 0) > free:
            break
        free -= cdiv(tokens, size)
        budget -= tokens
        running += 1
        chunks.append(chunk_of(request, tokens))
    return passed


def admit_next(
    view: View, rule: AdmissionRule, threshold: int, budget: int, passed: tuple[RequestView, ...] = ()
) -> tuple[Chunk | None, tuple[RequestView, ...]]:
    """A chunk for one request, its prefix hits included, as they decide what the next finds in the cache; None if none.

    It is for the head of the queue, or for the first behind those passed over, which are `passed` in this step so far
    and returned with those that are so now.
    """
    kept = watermark_blocks(rule.watermark, view.num_blocks + 1) if view.running else 0
    size = view.block_size
    for request in view.waiting:
        if request in passed:
            continue
        hits, unused = view.prefix_hits(request)
        whole = request.num_tokens - hits * size
        tokens = share(whole, threshold, budget)
        if not rule.in_chunks and tokens < (threshold if 0 < threshold < whole else whole):
            if not rule.passes_over:
                break
            passed = (*passed, request)
            continue
        tested = request.num_tokens if rule.tests_whole else hits * size + tokens
        if cdiv(tested, size) - hits + unused + kept > view.num_free_blocks:
            break
        return Chunk(request, tokens), passed
    return None, passed
