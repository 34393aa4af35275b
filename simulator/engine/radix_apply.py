"""Plans applied in the order of SGLang's scheduler, for replicas with a radix tree.

What a plan looked up is accessed first. All requests that it admits then lock their prefixes, before any page is taken:
SGLang allocates for a prefill as a whole. Pages are evicted ahead of need where SGLang is on the safe side: a page for
each request of a step, and, when requests are retracted, 20 tokens for each that stays. Lines are those of 0.5.23.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice

from simulator.division import cdiv
from simulator.engine.cache_apply import AppliedPlan, apply_in_order, take_decode_blocks
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.memory.radix_cache import RadixCache
from simulator.plan import StepPlan
from simulator.request import RequestView

WAITING_PREFIX_REFRESH_INTERVAL = 32
WAITING_QUEUE_PREFIX_MATCH_MAX = 128
RETRACT_DECODE_STEPS = 20  # tokens made room for, a request that stays (schedule_batch.py:2391)


Applied = Callable[[StepPlan, float], AppliedPlan]


def in_order(state: ReplicaState, viewer: Viewer) -> Applied | None:
    """Return what applies the plans of a replica in order; None where it does not matter who takes which block."""
    tree, cache = state.tree, state.cache
    if tree is not None:
        return partial(apply_to_tree, state, tree)
    return None if cache is None else partial(apply_in_order, state, cache, viewer)


def apply_to_tree(state: ReplicaState, tree: RadixCache, plan: StepPlan, now_s: float) -> AppliedPlan:
    """Apply `plan`; the decodes' blocks are taken last."""
    if plan.resume or any(preemption.swap for preemption in plan.preempt):
        raise state.broken("swaps, which a prefix cache does not allow")
    if plan.more:
        raise state.broken("sets more=True, which is not for a radix tree")
    done = AppliedPlan(plan)
    done.changes = state.set_paused(plan.paused) or bool(plan.preempt or plan.prefill)
    if plan.tried is not None:
        _look_at_queue(state, tree)
        for request in plan.tried:
            _match(state, tree, request)
    if plan.preempt:
        _retract(state, tree, plan, now_s)
    if plan.prefill:
        for chunk in plan.prefill:
            if chunk.request not in state.running and (plan.tried is None or chunk.request not in plan.tried):
                _match(state, tree, chunk.request)
        placed = [(chunk, *state.place(chunk, now_s)) for chunk in plan.prefill]
        tokens, size = sum([chunk.num_tokens for chunk in plan.prefill]), tree.block_size
        ahead = len(placed) if size > 1 else 0  # a page for each (mem_cache/allocation.py:188)
        tree.make_room(cdiv(tokens, size) + ahead)
        done.prefill = [state.take(*each) for each in placed]
    if plan.to_end:
        state.move_to_end(plan.to_end)
    if plan.withheld:
        tree.make_room(state.batch.blocks_needed())  # `check_decode_capacity` (mem_cache/allocator/base.py:171)
    elif plan.decode and state.batch.size:
        take_decode_blocks(state, state.batch.blocks_needed())
    return done


def _match(state: ReplicaState, tree: RadixCache, request: RequestView) -> None:
    """Access what is cached of a waiting request, one token at least being left to compute."""
    live = state.waiting_request(request)
    tree.match(state.requests[live.row], live.num_tokens - 1)


def _look_at_queue(state: ReplicaState, tree: RadixCache) -> None:
    """Access the prefixes that sorting the queue compares (`_compute_prefix_matches`, schedule_policy.py:329).

    Where it compares none, those of the first 128 that wait, the head last, every 32nd time (:260).
    """
    ranked = state.ranked
    if ranked is not None and ranked.reads_cache:
        for live in ranked.before:
            tree.match(state.requests[live.row], live.num_tokens)
        return
    if not state.waiting:
        return
    if state.looks_at_queue % WAITING_PREFIX_REFRESH_INTERVAL == 0:
        for live in [*islice(state.waiting, WAITING_QUEUE_PREFIX_MATCH_MAX)][::-1]:
            tree.match(state.requests[live.row], live.num_tokens)
    state.looks_at_queue += 1


def _retract(state: ReplicaState, tree: RadixCache, plan: StepPlan, now_s: float) -> None:
    """Let the victims leave one by one, and make room after each (`retract_decode`, schedule_batch.py:3451)."""
    tree.make_room(tree.num_blocks)  # the check that found too little has evicted all
    for preemption in plan.preempt:
        state.preempt(preemption, now_s)
        tree.make_room(cdiv(RETRACT_DECODE_STEPS * state.batch.size, tree.block_size))
        tree.make_room(state.batch.blocks_needed())
