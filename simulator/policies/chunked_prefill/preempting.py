"""A step in which blocks do not suffice for all running requests, planned without a walk over the batch."""

from simulator.division import cdiv
from simulator.plan import Chunk, Preemption, StepPlan, View
from simulator.policies.chunked_prefill.limits import VllmLimits, goes_on, longest_chunk, share
from simulator.policies.parts.plans import chunk_of
from simulator.request import RequestView


def preempting_step(view: View, limits: VllmLimits, *, held: bool) -> StepPlan | None:
    """The plan of `step` where blocks alone do not suffice for all running requests; None where others may be victims.

    It looks at those alone that take blocks, and at the victims.
    """
    running, prefilling = view.running, view.prefilling
    budget = limits.max_num_batched_tokens - view.num_decoding
    turns = [*view.block_takers()]
    if limits.order == "priority" or budget < 0:
        return None
    if prefilling and not held:
        last = next(reversed(running))
        if len(prefilling) > 1 or last not in prefilling:
            return None
        if budget:
            turns.append(last)
    chunks: list[Chunk] = []
    victims: list[RequestView] = []
    latest = iter(reversed(running))
    free, freed = view.num_free_blocks, 0
    for request in turns:
        tokens = 1
        if not request.is_decoding:
            tokens = share(request.num_tokens_to_compute, longest_chunk(view, limits), budget)
        needed = cdiv(request.num_computed_tokens + tokens, view.block_size) - request.num_blocks
        while needed > free and request not in victims:
            victims.append(next(latest))
            freed, before = view.blocks_freed(victims), freed
            free += freed - before
        if request in victims:
            break
        free -= needed
        if not request.is_decoding:
            chunks.append(chunk_of(request, tokens))
    preempted = tuple([Preemption(victim) for victim in victims])
    return StepPlan(preempt=preempted, prefill=tuple(chunks), holds=goes_on(view, limits).holds)
