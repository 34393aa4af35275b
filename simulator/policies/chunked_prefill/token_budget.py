"""A step's tokens and blocks handed out request by request: vLLM's loop over the running requests."""

from __future__ import annotations

from typing import NamedTuple

from simulator.plan import Chunk, Preemption, View, cdiv
from simulator.policies.parts.victims import rank
from simulator.request import RequestView


class BudgetSplit(NamedTuple):
    """The chunks, preemptions and pauses of a step, and what is left of its tokens and blocks."""

    chunks: list[Chunk]
    preempted: tuple[Preemption, ...]
    paused: tuple[RequestView, ...]
    budget: int
    free: int


def share(tokens: int, threshold: int, budget: int) -> int:
    """How many of a request's `tokens` are computed in a step; a threshold of 0 is none."""
    if 0 < threshold < tokens:
        tokens = threshold
    return min(tokens, budget)


def split_budget(view: View, budget: int, threshold: int, order: str, passes_itself: bool = True) -> BudgetSplit:
    """Tokens and blocks in order of admission, where budget or blocks do not suffice for all running requests.

    A request that lacks a block takes those of a victim: the latest admitted, or by `priority` the least important,
    even one that has its tokens already. A request may be its own victim. Then the requests behind it get nothing,
    except by `priority` with `passes_itself`: they are more important, and may fit.
    """
    size = view.block_size
    by_priority = order == "priority"
    running = list(view.running)
    scheduled: dict[RequestView, tuple[int, int]] = {}  # tokens and new blocks
    preempted: list[Preemption] = []
    free = view.num_free_blocks
    victims: list[RequestView] = []
    index = freed = 0
    while index < len(running) and budget > 0:
        request = running[index]
        if request.output_tokens_so_far >= request.max_tokens:
            index += 1  # its last token is being computed
            continue
        tokens = share(request.num_tokens_to_compute, threshold, budget)
        needed = cdiv(request.num_computed_tokens + tokens, size) - request.num_blocks
        victim = None
        while needed > free and victim is not request:
            victim = max(running, key=rank) if by_priority else running[-1]
            place = running.index(victim)
            del running[place]
            index -= place < index
            victims.append(victim)
            freed, before = view.blocks_freed(victims), freed
            free += freed - before
            returned, taken = scheduled.pop(victim, (0, 0))
            budget += returned
            free += taken
            preempted.append(Preemption(victim, scheduled_tokens=returned))
        if victim is request:
            if by_priority and passes_itself:
                continue
            break
        scheduled[request] = (tokens, needed)
        budget -= tokens
        free -= needed
        index += 1
    chunks = [Chunk(request, tokens) for request, (tokens, _) in scheduled.items() if not request.is_decoding]
    paused = tuple([request for request in running if request.is_decoding and request not in scheduled])
    return BudgetSplit(chunks, tuple(preempted), paused, budget, free)
