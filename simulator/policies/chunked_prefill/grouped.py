"""vLLM's `Scheduler.schedule` where layers keep different things of a request.

Differences from `step`, by their places in vllm/v1/core/sched/scheduler.py of 0.33: blocks are asked for by group, and
freed as windows pass them; a chunk of a prompt ends where a state is to be kept (546), and where none can be, a running
request is passed over (891) and a waiting one ends the step's admissions (1350).
"""

from typing import cast

from simulator.memory.state_tables import Saving, saves_inside
from simulator.plan import Chunk, Holds, KVGroups, Preemption, StateRules, StepPlan, View
from simulator.policies.chunked_prefill.adapters import servable
from simulator.policies.chunked_prefill.limits import VllmLimits, longest_chunk
from simulator.policies.parts.plans import chunk_of, decodes_on
from simulator.policies.parts.reservations import watermark_blocks
from simulator.queues.priority import rank
from simulator.request import RequestView


def grouped_step(view: View, limits: VllmLimits, groups: KVGroups) -> StepPlan:
    """The plan of a step. Admissions follow one by one."""
    if view.step_tokens is not None:
        settled = cast("bool", view.note)
        return _admit_next(view, limits, groups, limits.max_num_batched_tokens - view.step_tokens, settled)
    budget, threshold = limits.max_num_batched_tokens, longest_chunk(view, limits)
    by_priority = limits.order == "priority"
    trial = groups.trial()
    running = list(view.running)
    scheduled: dict[RequestView, int] = {}
    preempted: list[Preemption] = []
    skipped: set[RequestView] = set()
    index = 0
    while index < len(running) and budget > 0:
        request = running[index]
        if request.output_tokens_so_far >= request.max_tokens:
            index += 1  # its last token is being computed
            continue
        tokens = request.num_tokens_to_compute
        if 0 < threshold < tokens:
            tokens = threshold
        tokens = min(tokens, budget)
        if not request.is_decoding and groups.states is not None:
            start = request.num_computed_tokens
            tokens = split(groups.states, limits, request, start, tokens, groups.junction(request))
        if tokens == 0:
            skipped.add(request)
            index += 1
            continue
        victim = None
        while victim is not request and not trial.take(request, tokens):
            victim = max(running, key=rank) if by_priority else running[-1]
            place = running.index(victim)
            del running[place]
            index -= place < index
            trial.leave(victim)
            returned = scheduled.pop(victim, 0)
            budget += returned
            preempted.append(Preemption(victim, scheduled_tokens=returned))
        if victim is request:
            if by_priority and limits.passes_itself:
                continue
            break
        scheduled[request] = tokens
        budget -= tokens
        index += 1
    chunks = [chunk_of(request, tokens) for request, tokens in scheduled.items() if not request.is_decoding]
    paused = [request for request in running if request.is_decoding and request not in scheduled]
    paused = [r for r in paused if r.output_tokens_so_far < r.max_tokens]
    passed = [victim.request for victim in preempted if victim.request in skipped]
    settled = not (chunks or preempted or paused)
    more = not preempted and budget > 0 and len(view.waiting) > 0
    holds, steps = _holds(view, limits, groups) if settled and not more else (Holds.STEP, None)
    return StepPlan(
        preempt=tuple(preempted),
        prefill=tuple(chunks),
        paused=(*paused, *passed),
        holds=holds,
        more=more,
        note=settled,
        hold_steps=steps,
    )


def _holds(view: View, limits: VllmLimits, groups: KVGroups) -> tuple[Holds, int | None]:
    """How long the running requests go on as in this step, to which the queue adds nothing."""
    if not view.num_decoding:
        return Holds.STEP, None
    order = "" if limits.max_loras else limits.order  # an arrival may enter before requests that are skipped
    return decodes_on(view, limits.slots, order).holds, groups.quiet_steps()


def _admit_next(view: View, limits: VllmLimits, groups: KVGroups, budget: int, settled: bool) -> StepPlan:
    """One admission with what is cached of it, or none: a part of a step's plan."""
    if budget > 0 and len(view.running) < limits.slots and view.waiting:
        head = view.waiting.head
        request = next(servable(view, limits.max_loras, ()), None) if limits.max_loras else head
        tokens, again = (0, False) if request is None else _first_chunk(view, limits, groups, request, budget)
        if request is not None and tokens:
            return StepPlan(prefill=(Chunk(request, tokens),), more=True, note=False)
        settled = settled and not again and request in (None, head)
    holds, steps = _holds(view, limits, groups) if settled else (Holds.STEP, None)
    return StepPlan(holds=holds, hold_steps=steps)


def _first_chunk(
    view: View, limits: VllmLimits, groups: KVGroups, request: RequestView, budget: int
) -> tuple[int, bool]:
    """Tokens of the head's first chunk, or 0, and then whether the next step may have another answer for it."""
    hit, junction = groups.hit(request)
    whole = tokens = request.num_tokens - hit
    threshold = longest_chunk(view, limits)
    if 0 < threshold < tokens:
        tokens = threshold
    if tokens > budget:
        if not limits.in_chunks:
            return 0, False
        tokens = budget
    if groups.states is not None:
        tokens = split(groups.states, limits, request, hit, tokens, junction)
        if tokens == 0:
            return 0, False
    kept = watermark_blocks(limits.watermark, view.num_blocks + 1) if len(view.running) else 0
    free = view.num_free_blocks - kept
    needed = groups.blocks_needed(request, tokens)
    if limits.tests_whole:
        needed = max(needed, groups.blocks_needed(request, whole, whole=True))
    return (tokens, False) if needed <= free else (0, needed > view.num_blocks)


def split(states: StateRules, limits: VllmLimits, request: RequestView, start: int, tokens: int, junction: int) -> int:
    """Fewer `tokens` from `start` on, so that the chunk ends where a state is to be kept; 0 where it cannot (546)."""
    prompt, known = request.input_tokens, request.num_tokens
    prefill_end = max(prompt, known - 1)
    if start >= prefill_end:
        return tokens
    size, unit = states.stop_size, states.hash_size
    last_stop = (known - 1) // size * size
    end = start + tokens
    at = (prefill_end - 1) // states.unit * states.unit
    saving = Saving(states.hash_size, size, states.alignment)
    inside = states.alignment is not None and end >= prefill_end and saves_inside(saving, start, end, at)
    if inside:
        last_stop = 0
    if end < prefill_end:
        longest = limits.max_num_batched_tokens
        if limits.threshold:
            longest = min(longest, limits.threshold)
        aligned = end // size * size
        if aligned > start or size <= longest:
            end = aligned
    tail = (prompt - 1) // unit * unit if states.has_tails and not inside else 0
    stops = [last_stop]
    if start % size and not inside:
        stops.append((start // size + 1) * size)
    if last_stop < tail < prompt:
        stops.append(tail)
    if start < junction < end:
        stops.append(start + (junction - start) // size * size)
    return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)
