"""Blocks for decode steps: the first step's are taken when its plan is applied, those of a run when it has ended."""

from simulator.engine.state import ReplicaState
from simulator.memory.cache import Cache
from simulator.request_state import RequestState


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
