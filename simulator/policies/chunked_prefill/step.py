"""vLLM's `Scheduler.schedule`: one token budget, first for the running requests, then for the head of the queue.

`step` is the rule; `schedule_running` and `schedule_waiting` are its two loops. `fast_path` gives the same plan where
nothing lacks room, which is nearly every step.
"""

from collections.abc import Iterable, Sequence
from typing import cast

from simulator.division import cdiv
from simulator.plan import Chunk, Preemption, StepPlan, View
from simulator.policies.chunked_prefill.adapters import is_behind_skipped, servable
from simulator.policies.chunked_prefill.encoder import Encoder
from simulator.policies.chunked_prefill.limits import VllmLimits, goes_on, lacks_blocks_alone, longest_chunk, share
from simulator.policies.chunked_prefill.preempting import preempting_step
from simulator.policies.parts.plans import chunk_of, step_plan
from simulator.policies.parts.reservations import watermark_blocks
from simulator.queues.priority import rank
from simulator.request import RequestView


def step(view: View, limits: VllmLimits, *, held: bool = False) -> StepPlan:
    """The plan of a step: tokens for the running requests, then, if none was preempted, for the head of the queue.

    If prompts are `held`, running requests only decode, and a request enters only with a single token to compute.

    What a prefix cache holds depends on what was just scheduled. So with a cache the queue's part of the plan is asked
    for again after each admission (`StepPlan.more`).
    """
    if view.step_tokens is not None:
        return _admit_next(view, limits, limits.max_num_batched_tokens - view.step_tokens, held=held)
    plan = fast_path(view, limits, held=held) or preempting_step(view, limits, held=held)
    if plan is not None:
        return plan
    chunks, preempted, paused, budget, free = schedule_running(view, limits, held=held)
    more = not preempted and budget > 0 and view.caches_prefixes
    passed: list[RequestView] = []
    if not preempted and budget > 0 and not more:
        schedule_waiting(view, limits, budget, free, chunks, passed, held=held)
    return StepPlan(
        preempt=preempted,
        prefill=tuple(chunks),
        paused=paused,
        holds=goes_on(view, limits).holds,
        more=more,
        requeue=_to_front(passed, limits),
    )


def schedule_running(
    view: View, limits: VllmLimits, *, held: bool, encoder: Encoder | None = None
) -> tuple[list[Chunk], tuple[Preemption, ...], tuple[RequestView, ...], int, int]:
    """Tokens and blocks for the running requests in order of admission.

    A request that lacks a block takes those of a victim: the latest admitted, or by `priority` the least important,
    even one that has its tokens already. A request may be its own victim. Then the requests behind it get nothing,
    except by `priority` with `passes_itself`: they are more important, and may fit.

    Returns the chunks, preemptions and pauses of the step, and the tokens and blocks that it has left.
    """
    size = view.block_size
    budget, free = limits.max_num_batched_tokens, view.num_free_blocks
    threshold = longest_chunk(view, limits)
    by_priority = limits.order == "priority"
    running = list(view.running)
    scheduled: dict[RequestView, tuple[int, int]] = {}  # tokens and new blocks
    preempted: list[Preemption] = []
    victims: list[RequestView] = []
    index = freed = 0
    while index < len(running) and budget > 0:
        request = running[index]
        if request.output_tokens_so_far >= request.max_tokens:
            index += 1  # its last token is being computed
            continue
        if held and not request.is_decoding:
            index += 1
            continue
        tokens = share(request.num_tokens_to_compute, threshold, budget)
        encodes = encoder is not None and not request.is_decoding and len(request.images) > 0
        if encoder is not None and encodes:
            tokens = encoder.tokens(request, request.num_computed_tokens, tokens)
            if not tokens:
                index += 1
                continue
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
            if encoder is not None:
                encoder.preempt(victim)
        if victim is request:
            if by_priority and limits.passes_itself:
                continue
            break
        scheduled[request] = (tokens, needed)
        if encoder is not None and encodes:
            encoder.schedule(request)
        budget -= tokens
        free -= needed
        index += 1
    chunks = [Chunk(request, tokens) for request, (tokens, _) in scheduled.items() if not request.is_decoding]
    paused = tuple([request for request in running if request.is_decoding and request not in scheduled])
    return chunks, tuple(preempted), paused, budget, free


def schedule_waiting(
    view: View,
    limits: VllmLimits,
    budget: int,
    free: int,
    chunks: list[Chunk],
    passed: list[RequestView],
    *,
    with_hits: bool = False,
    held: bool = False,
    encoder: Encoder | None = None,
) -> None:
    """Append chunks for the heads of the queue while slots, `budget` tokens and `free` blocks last.

    Append to `passed` the requests that the step passes over. Those in it are passed over already. `with_hits`: admit
    one request alone, with its prefix hits, for they decide what the next one finds in the cache.
    """
    slots, in_chunks, tests_whole = limits.slots, limits.in_chunks, limits.tests_whole
    threshold = longest_chunk(view, limits)
    kept = watermark_blocks(limits.watermark, view.num_blocks + 1)  # vLLM's count of blocks includes the null block
    size = view.block_size
    running = len(view.running)
    hits = unused = 0
    waiting: Iterable[RequestView] = view.waiting
    if limits.max_loras:
        waiting = servable(view, limits.max_loras, chunks)
    for request in waiting:
        if budget == 0 or running >= slots:
            return
        whole = request.num_tokens_to_compute
        if with_hits:
            if request in passed:
                continue
            hits, unused = view.prefix_hits(request)
            whole -= hits * size
        if held and whole > 1:
            return
        tokens = whole if not 0 < threshold < whole else threshold
        if tokens > budget:
            if not in_chunks:
                if not limits.passes_over:
                    return
                passed.append(request)
                continue
            tokens = budget
        if encoder is not None and request.images:
            tokens = encoder.tokens(request, hits * size, tokens)
            if not tokens:
                passed.append(request)
                continue
        if cdiv(whole if tests_whole else tokens, size) + unused + (kept if running else 0) > free:
            if encoder is not None:
                encoder.cache.release(request)
            return
        chunks.append(chunk_of(request, tokens))
        if encoder is not None and request.images:
            encoder.schedule(request)
        if with_hits:
            return
        free -= cdiv(tokens, size)
        budget -= tokens
        running += 1


def _admit_next(view: View, limits: VllmLimits, budget: int, *, held: bool) -> StepPlan:
    """One admission, or none: a part of a step's plan. Its note is the requests that the step has passed over."""
    passed = [*cast("tuple[RequestView, ...]", view.note or ())] if limits.passes_over else []
    slots = limits.slots - len(view.running)
    waiting = len(view.waiting)
    is_open = budget > 0 and slots > 0 and waiting > 0
    chunks: list[Chunk] = []
    if is_open:
        schedule_waiting(view, limits, budget, view.num_free_blocks, chunks, passed, with_hits=True, held=held)
    if chunks:
        if budget > chunks[0].num_tokens and slots > 1 and waiting > 1:
            return step_plan(prefill=tuple(chunks), more=True, note=tuple(passed))
        return step_plan(prefill=tuple(chunks), requeue=_to_front(passed, limits) if passed else None)
    if passed or (is_open and not lacks_blocks_alone(limits)):
        return StepPlan(requeue=_to_front(passed, limits))
    if is_open and limits.max_loras and is_behind_skipped(view, limits.max_loras):
        return StepPlan()  # what it finds in the cache changes with every block that a decode fills
    return goes_on(view, limits)


def _to_front(passed: Sequence[RequestView], limits: VllmLimits) -> tuple[RequestView, ...] | None:
    """Requests passed over return to the front of the queue, the last of them first (0.11.2, scheduler.py:630)."""
    return tuple(reversed(passed)) if passed and limits.order == "fcfs" else None


def fast_path(view: View, limits: VllmLimits, *, held: bool = False) -> StepPlan | None:
    """The plan of `step` where every running request goes on; None where budget or blocks do not suffice for that.

    It walks no batch: of the running requests it looks at the one whose prompt is under way.
    """
    prefilling = view.prefilling
    budget = limits.max_num_batched_tokens - view.num_decoding
    free = view.num_free_blocks - view.decode_blocks_needed
    if budget < 0 or free < 0:
        return None
    chunks: list[Chunk] = []
    if prefilling and not held:
        # Nearly always a single prompt is under way, and it was the last to be admitted.
        last = next(reversed(view.running))
        if len(prefilling) > 1 or last not in prefilling:
            return None
        if budget:
            tokens = share(last.num_tokens_to_compute, longest_chunk(view, limits), budget)
            free -= cdiv(last.num_computed_tokens + tokens, view.block_size) - last.num_blocks
            if free < 0:
                return None
            budget -= tokens
            chunks.append(chunk_of(last, tokens))
    if budget > 0 and view.waiting and len(view.running) < limits.slots:
        if view.caches_prefixes:
            return step_plan(prefill=tuple(chunks), more=True)
        passed: list[RequestView] = []
        schedule_waiting(view, limits, budget, free, chunks, passed, held=held)
        if passed:
            holds = goes_on(view, limits).holds
            return StepPlan(prefill=tuple(chunks), holds=holds, requeue=_to_front(passed, limits))
    return step_plan(prefill=tuple(chunks)) if chunks else goes_on(view, limits)
