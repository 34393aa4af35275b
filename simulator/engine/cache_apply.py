"""Plans applied where a prefix cache is: part by part in vLLM's block pool, and in SGLang's radix tree."""

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from simulator.division import cdiv
from simulator.engine.state import ReplicaState
from simulator.engine.view import Viewer
from simulator.memory.blocks import Cache
from simulator.memory.radix_cache import RadixCache
from simulator.plan import Chunk, Preemption, StepPlan, View
from simulator.request import RequestView
from simulator.request_state import DECODING, PREFILLING, RequestState, ScheduledChunk, place

# Plans applied in the order of vLLM's scheduler, for replicas with a prefix cache.
#
# Without a prefix cache only the sums matter. With one, a block that is taken evicts what it held, and a block that
# is scheduled can be hit at once, so the order decides what is cached. Running requests take their blocks in order
# of admission, victims leave when a request lacks a block, and each admission is planned after the previous one is
# applied.

# Blocks for decode steps: the first step's are taken when its plan is applied, those of a run when it has ended.


def take_decode_blocks(state: ReplicaState, needed: int) -> None:
    """Take the blocks that the next decode step needs: `DecodeBatch.blocks_needed`. PolicyError if they are lacking."""
    blocks = state.blocks
    if state.tree is not None:
        state.tree.make_room(state.batch.size)  # a page for each (SGLang 0.5.23, mem_cache/allocation.py:584)
    if needed > blocks.num_free:
        seqs, free = state.batch.size, blocks.num_free
        raise state.broken(f"decodes {seqs} requests, which takes {needed} blocks; {free} are free")
    blocks.grow(needed, _growers(state, 0, 1) if state.has_block_ids else ())


def grow(state: ReplicaState, steps: int) -> list[int]:
    """Take the blocks of all but the first of `steps` decode steps; returns the used blocks during each step."""
    blocks = state.blocks
    used = blocks.num_blocks - blocks.num_free
    if steps == 1:
        return [used]
    use = state.batch.block_use(used, steps)
    if state.tree is not None:
        state.tree.make_room(use[-2] - used + state.batch.size)  # as before each of these steps
    if use[-1] > used:
        blocks.grow(use[-1] - used, _growers(state, 1, steps) if state.has_block_ids else ())
    if state.cache is not None and (state.fills is None or state.rejoined):
        enter_decoded(state, state.cache, 1, steps)
    return use


def enter_decoded(state: ReplicaState, cache: Cache, first: int, steps: int) -> None:
    """Enter into the cache what the decode steps from `first` to before `steps` fill, where it does not enter later."""
    for live, full_blocks in decoded(state, cache, first, steps):
        enter_filled(state, cache, live, full_blocks)


def enter_filled(state: ReplicaState, cache: Cache, live: RequestState, full_blocks: int) -> None:
    """Enter the full blocks of a request that stays in the batch."""
    if state.fills is None:
        cache.enter(state.requests[live.row], full_blocks)
    else:
        state.fills.enter(live, full_blocks)


def _growers(state: ReplicaState, first: int, steps: int) -> list[int]:
    """Rows of the requests that take a block in these decode steps, in order."""
    size, ticks = state.batch.block_size, state.batch.clock.ticks
    takers = []
    for live in state.batch.at_block_ends(first, steps):
        if not live.reserved_tokens:
            tokens = live.base_computed + ticks - live.join_tick
            for step in range(first + -(tokens + first) % size, steps, size):
                takers.append((step, live.place, live.row))
    takers.sort()
    return [row for _, _, row in takers]


def decoded(state: ReplicaState, cache: Cache, first: int, steps: int) -> list[tuple[RequestState, int]]:
    """Requests that fill a block in these decode steps, in order, with how many full blocks they have then.

    Where others cannot find them, they enter the cache as their requests leave (`ReplicaState.enter_decoded`): then it
    is those alone of which a token more is known now than there would be by the next plan.
    """
    if cache.keys is None:
        return []
    enters_late = state.enters_late and (state.fills is not None or not cache.keys.num_telling)
    if enters_late and not state.rejoined:
        return []
    fillers = state.batch.at_block_ends(first, steps + 1)  # those too that are known to fill it a step later
    if enters_late:
        fillers = [live for live in state.rejoined if live in fillers]
    size, ticks = state.batch.block_size, state.batch.clock.ticks
    late = state.traits.async_scheduling
    filled = []
    for live in fillers:
        tokens = live.base_computed + ticks - live.join_tick - (state.unknown(live) if late else 0)
        for full in range((tokens + first) // size + 1, (tokens + steps) // size + 1):
            filled.append((full * size - tokens, live.place, live, full))
    if len(filled) > 1:
        filled.sort(key=lambda entry: entry[:2])
    return [(live, full) for _, _, live, full in filled]


# Plans applied in the order of vLLM's scheduler, for replicas with a prefix cache.
# Without a prefix cache only the sums matter. With one, a block that is taken evicts what it held, and a block that
# is scheduled can be hit at once, so the order decides what is cached. Running requests take their blocks in order
# of admission, victims leave when a request lacks a block, and each admission is planned after the previous one is
# applied.

_new: Final = tuple.__new__
_PLAN: Final = StepPlan


class AppliedPlan:
    """A plan that has been applied, all its parts together; the blocks of the step's decodes are taken."""

    __slots__ = ("changes", "plan", "prefill")

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan  # the first part, with `holds`, `hold_steps` and `requeue` of the last
        self.prefill: list[ScheduledChunk] = []  # of all parts
        self.changes = False


def apply_in_order(state: ReplicaState, cache: Cache, viewer: Viewer, plan: StepPlan, now_s: float) -> AppliedPlan:
    """Apply `plan`, and the further parts that the policy adds to it for the same step."""
    # A slice is taken apart in a quarter of the time that its attributes would take.
    preempt, resume, prefill, decodes, paused, _, _, more = plan[:8]
    if resume or (preempt and any(preemption.swap for preemption in preempt)):
        raise state.broken("swaps, which a prefix cache does not allow")
    done = AppliedPlan(plan)
    done.changes = state.set_paused(paused)
    if preempt or prefill:
        done.changes = True
        _run_on(state, cache, plan, done, now_s)
    elif decodes and state.batch.size:
        if needed := state.batch.blocks_needed():
            take_decode_blocks(state, needed)
        if state.fills is None or state.rejoined:
            enter_decoded(state, cache, 0, 1)
        if state.fills is not None:
            state.fills.decode(sys.maxsize)
    return _go_on(state, viewer, done, now_s) if more else done


def _go_on(state: ReplicaState, viewer: Viewer, done: AppliedPlan, now_s: float) -> AppliedPlan:
    """Ask for the further parts of a step's plan, and apply each."""
    plan = done.plan
    decodes = plan.decode
    tokens = state.batch.size if decodes else 0
    for _, computed, _ in done.prefill:
        tokens += computed
    view = viewer.view
    ask: Callable[[View], object] = state.policy.plan
    more = True
    while more:
        viewer.look_again(tokens, done.prefill, decodes=decodes)
        part = ask(view)
        if not isinstance(part, StepPlan):
            raise state.broken(f"continues with {part!r}; later parts may only admit requests")
        last = part
        preempt, resume, chunks, _, paused, _, _, more, note = last[:9]
        if preempt or resume or paused:
            raise state.broken(f"continues with {part!r}; later parts may only admit requests")
        view.note = note
        if more and not chunks:
            raise state.broken("sets more=True but admits nothing")
        for chunk in chunks:
            request, computed, _, _ = chunk
            if request in state.running:
                raise state.broken(f"continues with {chunk!r}; later parts may only admit requests")
            done.prefill.append(state.compute(chunk, now_s, viewer.found(request)))
            done.changes = True
            tokens += computed
    if not done.changes or note is not None or last.requeue is not None:
        # `_replace` takes five times as long.
        done.plan = _new(_PLAN, (*plan[:5], last[5], *plan[6:8], last[8], *plan[9:12], *last[12:]))
    return done


def _run_on(state: ReplicaState, cache: Cache, plan: StepPlan, done: AppliedPlan, now_s: float) -> None:
    """Take the blocks of the running requests' next tokens, in order; then make the first part's admissions."""
    chunks = {chunk.request: chunk for chunk in plan.prefill}
    victims = list(plan.preempt)
    given: dict[RequestView, int] = {p.request: p.scheduled_tokens for p in plan.preempt}
    more_blocks: dict[RequestView, int] = {}  # that victims take in this step
    decode = plan.decode
    if len(chunks) < len(plan.prefill):
        raise state.broken("computes a request twice in one step")
    for request in chunks:
        if request in given:
            raise state.broken(f"preempts and computes request {request.request_id} in the same step")
    if not victims and not state.orders_blocks and _fits(state, cache, plan):
        done.prefill = _take_all(state, cache, chunks, decode, now_s)
        return
    fills = state.fills if state.fills is not None and len(state.fills) else None
    fills_late = state.fills is not None and not state.rejoined
    taken = 0  # blocks of the decodes since the last that had to be taken in its turn
    for live in _in_turn(state, chunks, given, decode=decode, fills_late=fills_late):
        if live.status not in (DECODING, PREFILLING):
            continue  # a victim that has left already
        chunk = chunks.pop(live, None)
        is_decode = chunk is None and live not in given
        if is_decode and fills_late and cache.num_free > taken and not live.reserved_tokens:
            taken += 1  # it is at the end of a block
            continue
        if taken:
            cache.grow(taken, ())
            taken = 0
        if fills is not None and decode:
            fills.decode(live.place)
        if chunk is not None:
            _make_room(state, cache, live, chunk.num_tokens, victims, more_blocks, now_s)
            done.prefill.append(state.compute(chunk, now_s))
        elif is_decode:
            _take(state, cache, live, 1, victims, more_blocks, now_s)
        elif given[live]:
            more_blocks[live] = max(0, _take(state, cache, live, given[live], victims, more_blocks, now_s, leaves=True))
        else:  # a victim of its own lack of blocks
            while live.status in (DECODING, PREFILLING):
                _preempt(state, victims.pop(0), more_blocks, now_s)
    if taken:
        cache.grow(taken, ())
    for victim in victims:
        _preempt(state, victim, more_blocks, now_s)
    if fills is not None and decode:
        fills.decode(sys.maxsize)
    for chunk in plan.prefill:
        if chunk.request in chunks:
            done.prefill.append(state.compute(chunk, now_s))


def _in_turn(
    state: ReplicaState,
    chunks: dict[RequestView, Chunk],
    given: dict[RequestView, int],
    *,
    decode: bool,
    fills_late: bool,
) -> list[RequestState]:
    """The running requests that compute a chunk or are victims, and the decodes that take or fill a block, in order.

    In the middle of a block a decode neither takes one nor fills one, not even one token late. With `fills_late` those
    that fill one have no turn.
    """
    turns = {view for view in (*chunks, *given) if isinstance(view, RequestState) and view in state.running}
    if decode:
        turns.update(state.batch.at_block_ends(0, 1) if fills_late else state.batch.at_block_ends(-1, 2))
    return sorted(turns, key=place)


def _fits(state: ReplicaState, cache: Cache, plan: StepPlan) -> bool:
    """True if there are enough blocks for all that the plan computes."""
    needed = state.batch.blocks_needed() if plan.decode else 0
    return needed + sum([cdiv(chunk.num_tokens, state.batch.block_size) for chunk in plan.prefill]) <= cache.num_free


def _take_all(
    state: ReplicaState, cache: Cache, chunks: dict[RequestView, Chunk], decode: bool, now_s: float
) -> list[ScheduledChunk]:
    """Take the blocks of the decodes and of these chunks, where it does not matter who gets which.

    In order of admission are only the blocks that are filled, since of two with the same content the first serves.
    """
    running = [live for live in state.prefilling if live in chunks]
    filled: list[tuple[RequestState, int]] = []
    fills = state.fills if decode else None
    if decode and state.batch.size:
        if needed := state.batch.blocks_needed():
            take_decode_blocks(state, needed)
        filled = decoded(state, cache, 0, 1)
    computed = []
    for live in running:
        while filled and filled[0][0].place < live.place:
            enter_filled(state, cache, *filled.pop(0))
        if fills is not None:
            fills.decode(live.place)
        computed.append(state.compute(chunks.pop(live), now_s))
    for filler, full_blocks in filled:
        enter_filled(state, cache, filler, full_blocks)
    if fills is not None:
        fills.decode(sys.maxsize)
    computed += [state.compute(chunk, now_s) for chunk in chunks.values()]
    return computed


def _preempt(state: ReplicaState, victim: Preemption, more_blocks: dict[RequestView, int], now_s: float) -> None:
    state.preempt(victim, now_s, more_blocks.get(victim.request, 0))


def _take(
    state: ReplicaState,
    cache: Cache,
    live: RequestState,
    tokens: int,
    victims: list[Preemption],
    more_blocks: dict[RequestView, int],
    now_s: float,
    *,
    leaves: bool = False,
) -> int:
    """Take the blocks of a running request's next tokens that are no chunk: of a decode, or of one that `leaves` soon.

    Returns how many.
    """
    if not 0 < tokens <= live.num_tokens_to_compute:
        left = live.num_tokens_to_compute
        raise state.broken(f"gives {tokens} tokens to its victim {live.request_id}, which has {left} left")
    needed = _make_room(state, cache, live, tokens, victims, more_blocks, now_s)
    if needed > 0:
        cache.allocate(live.row, needed)
    if cache.keys is not None and (state.fills is None or leaves or live in state.rejoined):
        known = live.num_tokens - (state.unknown(live) if live.status is DECODING else 0)
        full_blocks = min(live.num_computed_tokens + tokens, known) // state.batch.block_size
        enter_filled(state, cache, live, full_blocks)
    return needed


def _make_room(
    state: ReplicaState,
    cache: Cache,
    live: RequestState,
    tokens: int,
    victims: list[Preemption],
    more_blocks: dict[RequestView, int],
    now_s: float,
) -> int:
    """Preempt the next victims until a running request's next tokens fit; returns the blocks that these take."""
    needed = cdiv(live.num_computed_tokens + tokens, state.batch.block_size) - live.num_blocks
    while needed > cache.num_free:
        if not victims:
            raise state.broken(f"takes {needed} blocks for request {live.request_id}; {cache.num_free} are free")
        _preempt(state, victims.pop(0), more_blocks, now_s)
    return needed


def steps_to_hit(state: ReplicaState, cache: Cache) -> int:
    """Decode steps until the head of the queue may find more in the cache than it does now."""
    if cache.keys is None or not cache.keys.num_telling:
        return sys.maxsize
    seqs = len(state.running) - len(state.paused) + len(state.held)
    if seqs >= state.policy.max_num_seqs and not (state.slots_by_step or state.traits.displaces):
        return sys.maxsize  # whatever the head of the queue finds, it lacks a slot
    head = state.waiting.head
    request = state.requests[head.row]
    hits = cache.hits(request, head.num_tokens)[0]
    awaited = cache.keys.key_at(request, hits)
    steps = sys.maxsize
    if awaited is None:
        return steps
    full = (hits + 1) * state.batch.block_size
    for live in state.decoders() if state.fills is None else state.fills.decoders(request, hits):
        if cache.keys.key_at(state.requests[live.row], hits) == awaited:
            left = full - live.num_computed_tokens - 1 + state.unknown(live)
            if 0 < left < steps:  # otherwise it has entered already, and been found or evicted
                steps = left
    return steps


# Plans applied in the order of SGLang's scheduler, for replicas with a radix tree.
#
# What a plan looked up is accessed first. All requests that it admits then lock their prefixes, before any page is
# taken: SGLang allocates for a prefill as a whole. Pages are evicted ahead of need where SGLang is on the safe
# side: a page for each request of a step, and, when requests are retracted, 20 tokens for each that stays. Lines
# are those of 0.5.23.

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
