"""TGI's `batching_task` (backend.rs): when a prefill is worth the pause, and `next_batch`: the prompts that enter.

Files are those of backends/v3/src (TGI 3). `_next_batch` is `State::next_batch` in queue.rs, with block_allocator.rs.
"""

from typing import Final, NamedTuple, cast

from numpy import float32

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, StepPlan, View
from simulator.policies.parts.free_blocks import most_tokens
from simulator.policies.parts.plans import UNTIL_ARRIVAL, decodes_on
from simulator.request import RequestView


class TgiLimits(NamedTuple):
    """The parameters that bound a batch."""

    slots: int
    step_tokens: int  # max_num_batched_tokens
    prefill_tokens: int  # max_batch_prefill_tokens
    total_tokens: int | None  # max_batch_total_tokens
    waiting_served_ratio: float
    max_waiting_tokens: int
    in_chunks: bool
    order: str


# Whether new prompts have joined a batch with this step, and the tokens of prompts under way in the next.
_Note = tuple[bool, tuple[tuple[RequestView, int], ...]]
_NOTHING: Final[_Note] = (False, ())
_FROM_IDLE: Final = "prefilled from idle"
_DECODE: Final = StepPlan()


def step(view: View, limits: TgiLimits) -> StepPlan:
    """The plan of a step: a prefill of new prompts if it is worth the pause, else decodes."""
    if limits.in_chunks:
        return _step_in_chunks(view, limits)
    if view.prefilling:  # one at most: it is longer than a prefill
        budget = _prefill_tokens(view, limits)
        chunks = [Chunk(request, min(request.num_tokens_to_compute, budget)) for request in view.prefilling]
        return StepPlan(prefill=tuple(chunks), decode=False, note=view.note)
    if not view.waiting:
        return UNTIL_ARRIVAL
    running, decodes = len(view.running), view.decode_steps_since_admission
    if running and not decodes and view.note != _FROM_IDLE:
        return _DECODE
    # The prefill was the first of `max_waiting_tokens` (backend.rs:160, :264).
    steps_left = limits.max_waiting_tokens - 1 - decodes
    least = 0
    if steps_left > 0:
        least = int(float32(running) * float32(limits.waiting_served_ratio))  # 32 bits, as in :194
        if len(view.waiting) < least:
            return StepPlan(holds=Holds.ARRIVAL, hold_steps=steps_left)
    batch = _next_batch(view, limits, _prefill_tokens(view, limits))
    if not batch:
        return decodes_on(view, limits.slots, limits.order)
    if len(batch) < least:
        # Where one found no room, arrivals queue behind it.
        is_stuck = limits.order == "fcfs" and len(batch) < len(view.waiting)
        return StepPlan(holds=Holds.CHANGE if is_stuck else Holds.ARRIVAL, hold_steps=steps_left)
    return StepPlan(prefill=tuple(batch), decode=False, note=None if running else _FROM_IDLE)


def _next_batch(view: View, limits: TgiLimits, tokens: int) -> list[Chunk]:
    """Chunks for the heads of the queue that fit into the free slots, so many tokens of a prefill, and memory.

    In chunks the last may be cut; else only a prompt that is longer than a prefill, and comes first.
    """
    slots = limits.slots - len(view.running)
    size = view.block_size
    free = view.num_free_blocks
    if limits.total_tokens is not None:
        free -= max(0, view.num_blocks - blocks_of(limits.total_tokens, size))
    in_chunks = limits.in_chunks
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


def granted_tokens(request: RequestView) -> int:
    """Tokens that a request gets blocks for (queue.rs:316): the last of its answer is never computed."""
    return most_tokens(request) - 1


def blocks_of(tokens: int, block_size: int) -> int:
    """Blocks for requests among so many tokens: block 0 is kept for health checks (block_allocator.rs)."""
    return tokens // block_size - 1


def _prefill_tokens(view: View, limits: TgiLimits, current: int = 0) -> int:
    """Tokens of a prefill beside `current` others, in whole blocks (queue.rs:265)."""
    padded = cdiv(max(0, limits.prefill_tokens - current), view.block_size) * view.block_size
    return min(limits.step_tokens - current, padded)


def _step_in_chunks(view: View, limits: TgiLimits) -> StepPlan:
    """A step of a model that supports chunks: decodes, what is left of prompts, and every second time new ones."""
    joined, shares = cast("_Note", view.note or _NOTHING)
    chunks = [Chunk(request, tokens) for request, tokens in shares if request in view.prefilling]
    new: list[Chunk] = []
    if view.waiting and not (joined and view.running):
        current = view.num_decoding + sum([chunk.num_tokens for chunk in chunks])
        new = _next_batch(view, limits, _prefill_tokens(view, limits, current))
    if chunks or new:
        chunks += new
        joins = bool(new and view.running)
        return StepPlan(prefill=tuple(chunks), note=(joins, _shares(chunks, view.num_decoding, limits)))
    if not view.waiting:
        return UNTIL_ARRIVAL
    return _DECODE if joined else decodes_on(view, limits.slots, limits.order)


def _shares(chunks: list[Chunk], decoding: int, limits: TgiLimits) -> tuple[tuple[RequestView, int], ...]:
    """The prompts that these chunks do not finish, and their tokens in the next step (`generate_token`).

    Requests that stop with this step still count. The prompt that came last is served first.
    """
    budget = limits.prefill_tokens - (decoding + len(chunks) - 1)
    shares: list[tuple[RequestView, int]] = []
    for chunk in reversed(chunks):
        left = chunk.request.num_tokens_to_compute - chunk.num_tokens
        if left:
            shares.append((chunk.request, max(1, min(left, budget))))
            budget -= shares[-1][1]
    return tuple(reversed(shares))
