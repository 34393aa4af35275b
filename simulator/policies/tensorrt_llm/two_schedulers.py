"""TensorRT-LLM's two schedulers: `PyCapacityScheduler` gives memory to requests, `PyMicroBatchScheduler` tokens.

Both are in tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py (revision 002f3cc). `_with_memory` is the first,
`_pause` its `MaxUtilizationPolicy`; `_chunks` is the second, and the functions below it deal the tokens out.
"""

from collections.abc import Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, Preemption, StepPlan, View
from simulator.policies.parts.free_blocks import most_tokens, takes_block
from simulator.policies.parts.plans import UNTIL_ARRIVAL, UNTIL_CHANGE, step_plan
from simulator.request import RequestView


class TensorrtLlmLimits(NamedTuple):
    """The parameters that bound a batch, and how its tokens are dealt out."""

    slots: int
    max_num_tokens: int  # max_num_batched_tokens
    grants: bool  # blocks for prompt + max_tokens at admission; else on demand: max_utilization
    alone: bool  # no prompt is computed while any request decodes: static_batch
    in_chunks: bool
    equal_progress: bool  # prompts advance by a block in turn; else the first takes what it can
    by_arrival: bool  # fcfs


_ARRIVAL: Final = attrgetter("row")
_NO_TOKENS_LEFT: Final = StepPlan()


def step(view: View, limits: TensorrtLlmLimits) -> StepPlan:
    """The plan of a step: decodes, and beside them the prompts that have memory, as far as the tokens go."""
    if limits.alone and len(view.running) > len(view.prefilling):
        return UNTIL_CHANGE
    if not view.prefilling and not view.waiting and view.decode_blocks_needed <= view.num_free_blocks:
        return UNTIL_ARRIVAL
    prompts, paused, is_full = _with_memory(view, limits)
    chunks = _chunks(view, limits, prompts, paused) if prompts else ()
    if paused:
        return StepPlan(
            preempt=tuple([Preemption(request) for request in paused]),
            prefill=chunks,
            requeue=queue_by_arrival(view, paused, chunks) if limits.by_arrival else None,
        )
    if chunks:
        return step_plan(prefill=chunks)
    if prompts and not limits.grants:
        return _NO_TOKENS_LEFT  # memory is given to the prompts anew at each step
    is_stuck = is_full or (prompts and not limits.in_chunks)
    return UNTIL_CHANGE if (is_stuck and limits.by_arrival) or not _free_slots(view, limits) else UNTIL_ARRIVAL


def _free_slots(view: View, limits: TensorrtLlmLimits) -> int:
    return max(0, limits.slots - len(view.running))


# Memory


def _with_memory(view: View, limits: TensorrtLlmLimits) -> tuple[list[RequestView], list[RequestView], bool]:
    """The prompts that have memory, the requests paused for that, and whether the next prompt finds none."""
    grants, by_arrival = limits.grants, limits.by_arrival
    free = view.num_free_blocks - view.decode_blocks_needed
    if free < 0:
        return *_pause(view, limits), True
    prompts: list[RequestView] = []
    # The order of arrival (fcfs): only whole prompts overtake others, and decode from then on.
    for request in chain(view.prefilling, islice(view.waiting, _free_slots(view, limits))):
        if request not in view.prefilling:
            free -= cdiv(most_tokens(request) if grants else request.num_tokens, view.block_size)
        if free < 0:
            is_overtaken = by_arrival and max(map(_ARRIVAL, view.running), default=-1) > request.row
            if is_overtaken and not grants:
                return *_pause(view, limits), True
            return prompts, [], True
        prompts.append(request)
    return prompts, [], False


def _pause(view: View, limits: TensorrtLlmLimits) -> tuple[list[RequestView], list[RequestView]]:
    """The prompts that have memory, and the requests that are paused for them: `MaxUtilizationPolicy`.

    It walks the requests in order of arrival. Where one lacks blocks, the last that has begun is paused, unless none
    has begun from this one on. In other orders no request that waits comes before one that has begun.
    """
    by_arrival = limits.by_arrival
    requests: list[RequestView] = sorted(view.running, key=_ARRIVAL) if by_arrival else [*view.running]
    if not by_arrival or not view.waiting or view.waiting.head.row > requests[-1].row:
        return _pause_latest(view, requests)
    paused: list[RequestView] = []
    requests = sorted([*requests, *islice(view.waiting, _free_slots(view, limits))], key=_ARRIVAL)
    free, at, end = view.num_free_blocks, 0, len(requests)
    while at < end:
        request = requests[at]
        if request in view.running:
            needed = int(takes_block(view, request))
        else:
            needed = cdiv(request.num_tokens, view.block_size)
        if needed <= free:
            free -= needed
            at += 1
            continue
        end = next((i for i in range(end - 1, at - 1, -1) if requests[i] in view.running), at)
        if requests[end] not in view.running:
            break
        paused.append(requests[end])
        free += requests[end].num_blocks
    return [request for request in requests[:at] if not request.is_decoding], paused


def _pause_latest(view: View, begun: list[RequestView]) -> tuple[list[RequestView], list[RequestView]]:
    """`_pause` where all that have begun come before all others: the last leave until the rest find their blocks."""
    paused: list[RequestView] = []
    free = view.num_free_blocks - view.decode_blocks_needed
    while free < 0:
        paused.append(begun.pop())
        free += paused[-1].num_blocks + takes_block(view, paused[-1])
    return [request for request in view.prefilling if request not in paused], paused


def queue_by_arrival(view: View, paused: list[RequestView], chunks: tuple[Chunk, ...]) -> tuple[RequestView, ...]:
    """The front of the queue when the paused are back in it and those with chunks have left it."""
    entered = {chunk.request for chunk in chunks}
    latest = max(map(_ARRIVAL, paused))
    before = [request for request in view.waiting if request.row < latest and request not in entered]
    return tuple(sorted([*paused, *before], key=_ARRIVAL))


# Tokens: each function takes the prompts in their order and the tokens that the decodes leave, and returns the tokens
# of each prompt. Prompts behind the end of the list get none.


def _chunks(
    view: View, limits: TensorrtLlmLimits, prompts: list[RequestView], paused: list[RequestView]
) -> tuple[Chunk, ...]:
    """The tokens that each prompt gets in this step (`PyMicroBatchScheduler.schedule`)."""
    budget = limits.max_num_tokens - view.num_decoding + sum([request.is_decoding for request in paused])
    unit = min(view.block_size, limits.max_num_tokens)
    if not limits.in_chunks:
        shares = _whole(prompts, budget)
    elif limits.equal_progress:
        shares = _equal_progress(prompts, budget, unit)
    else:
        shares = _first_come_first_served(prompts, budget, unit)
    grants = limits.grants
    return tuple(
        [
            Chunk(request, tokens, most_tokens(request) if grants else 0)
            for request, tokens in zip(prompts, shares, strict=False)
            if tokens
        ]
    )


def _whole(prompts: Sequence[RequestView], budget: int) -> list[int]:
    """Whole prompts up to the first that does not fit: `schedule` breaks there."""
    shares: list[int] = []
    for request in prompts:
        tokens = request.num_tokens_to_compute
        if tokens > budget:
            break
        budget -= tokens
        shares.append(tokens)
    return shares


def _first_come_first_served(prompts: Sequence[RequestView], budget: int, unit: int) -> list[int]:
    """As much of each as is left, rounded down to whole units where that is not all; 0 passes a prompt over."""
    shares: list[int] = []
    for request in prompts:
        if budget <= 0:
            break
        tokens = request.num_tokens_to_compute
        if tokens > budget:
            tokens = budget // unit * unit
        budget -= tokens
        shares.append(tokens)
    return shares


def _equal_progress(prompts: Sequence[RequestView], budget: int, unit: int) -> list[int]:
    """A unit to each in turn, or the rest of its prompt if that is less, until none takes more."""
    wanted = [request.num_tokens_to_compute for request in prompts]
    shares = [0] * len(wanted)
    is_advancing = True
    while is_advancing and budget > 0:
        is_advancing = False
        for place, left in enumerate(wanted):
            tokens = min(unit, left - shares[place])
            if 0 < tokens <= budget:
                shares[place] += tokens
                budget -= tokens
                is_advancing = True
    return shares


# TensorRT-LLM's batch waiting: prompts wait beside decodes until together they fill a part of a step.
#
# `PyExecutor._schedule` and `_waiting_requests` in tensorrt_llm/_torch/pyexecutor/py_executor.py: both schedulers
# have chosen the step, and its prompts are left out of it while it has fewer tokens than
# `batch_wait_max_tokens_ratio` of `max_num_tokens`, for `batch_wait_timeout_iters` steps at most. Without decodes
# prompts do not wait. What was waited for counts on, then, towards the next wait.


class Waited(NamedTuple):
    """Steps that prompts have waited: `steps`, or while they wait the decode steps since `since`."""

    steps: int = 0
    since: int | None = None


def plan_with_wait(view: View, limits: TensorrtLlmLimits, timeout: int, ratio: float) -> StepPlan:
    """Return the plan of `step`, without its prompts if they are to wait."""
    plan = step(view, limits)
    note = view.note if isinstance(view.note, Waited) else Waited()
    count = note.steps if note.since is None else view.decode_steps - note.since
    paused = [victim.request for victim in plan.preempt]
    decodes = view.num_decoding - sum([request.is_decoding for request in paused])
    if not plan.prefill or decodes <= 0:
        return plan._replace(note=Waited(count))
    tokens = decodes + sum([chunk.num_tokens for chunk in plan.prefill])
    if count >= timeout or tokens >= ratio * limits.max_num_tokens:
        return plan._replace(note=Waited())
    waits = plan._replace(prefill=(), note=Waited(0, view.decode_steps - count))
    if not limits.grants:  # memory is given anew at each step
        return waits._replace(requeue=queue_by_arrival(view, paused, ()) if plan.requeue is not None else None)
    return waits._replace(holds=Holds.ARRIVAL, hold_steps=timeout - count)
