"""vLLM's `Scheduler.schedule` with drafts: two budgets, blocks beyond the step, and prompts that keep a tail.

Differences from `step`, by their places in vllm/v1/core/sched/scheduler.py of 0.33: a request's tokens count drafts;
`draft_slots` of each scheduled request come off a second budget (718, 797, 955); blocks cover the drafter's lookahead
(917, 1440); no step goes beyond the model's longest context (853); a prompt never leaves a rest that is shorter than
what the drafter reads ahead (678); an admission with one token left is padded to the size of a verify step (1308).
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, Preemption, StepPlan, View
from simulator.policies.chunked_prefill.adapters import servable
from simulator.policies.chunked_prefill.limits import VllmLimits, longest_chunk
from simulator.policies.parts.plans import chunk_of, decodes_on
from simulator.policies.parts.reservations import watermark_blocks
from simulator.queues.priority import rank
from simulator.request import RequestView
from simulator.speculative.speculation import Drafting, DraftingView


class Left(NamedTuple):
    """What a step has left for the head of the queue; the note of its parts.

    `tokens` and `inputs` are the two budgets. `pads`: no running request of the step is in its prefill; `runs`: some
    are scheduled. `settled`: all of them are, they decode, and no budget cuts their drafts: so they go on until one
    finishes, or lacks blocks. `passed` are the waiting requests that the step has passed over.
    """

    tokens: int
    inputs: int
    pads: bool
    runs: bool
    settled: bool
    passed: tuple[RequestView, ...] = ()
    fenced: tuple[RequestView, ...] = ()  # lacked blocks, which its victim could not free yet


def drafted_step(view: View, limits: VllmLimits, drafting: Drafting, before: object, *, held: bool = False) -> StepPlan:
    """The plan of a step: a chunk for each request that it schedules. Admissions follow one by one.

    `before` is the note of the step's part before, if there is one. `held`: as in `step`.
    """
    if view.step_tokens is not None:
        return _admit_next(view, limits, drafting, cast("Left", before), held=held)
    chunks, preempted, passed, left = schedule_running(view, limits, drafting, held=held)
    more = not preempted and left.tokens > 0 and len(view.waiting) > 0
    holds = _holds(view, limits, left) if not view.waiting else Holds.STEP
    return StepPlan(
        preempt=preempted, prefill=tuple(chunks), decode=False, paused=passed, holds=holds, more=more, note=left
    )


def schedule_running(
    view: View, limits: VllmLimits, drafting: Drafting, *, held: bool = False
) -> tuple[list[Chunk], tuple[Preemption, ...], tuple[RequestView, ...], Left]:
    """Tokens and blocks for the running requests in order of admission; victims are those of `step`.

    Returns with them the victims that the loop had passed over: they left when a request behind them lacked blocks.
    """
    config, longest, connector = drafting
    size, slots, lookahead = view.block_size, config.draft_slots, config.num_lookahead_tokens
    tail = config.num_prefill_lookahead_tokens
    tokens_left = inputs_left = limits.max_num_batched_tokens
    free = view.num_free_blocks
    threshold = longest_chunk(view, limits, 0 if connector is None else len(connector.holding))
    by_priority = limits.order == "priority"
    trial = None if view.groups is None else view.groups.trial()
    running = cast("list[DraftingView]", list(view.running))
    scheduled: dict[RequestView, tuple[int, int]] = {}  # tokens and new blocks
    preempted: list[Preemption] = []
    victims: list[RequestView] = []
    skipped: set[RequestView] = set()
    index = freed = 0
    pads = True
    fenced: tuple[RequestView, ...] = ()
    settled = limits.threshold == 0 or limits.threshold > config.num_speculative_tokens
    while index < len(running) and tokens_left > 0 and inputs_left > slots:
        request = running[index]
        computed, in_flight = request.num_computed_tokens, request.num_output_placeholders
        whole = tokens = request.num_tokens_to_compute
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > tokens_left:
            tokens = tokens_left
        if tokens > inputs_left - slots:
            tokens = inputs_left - slots
        if tokens > longest - computed - 1:
            tokens = longest - computed - 1
        if tail:
            tokens = _without_tail(request.num_tokens - computed, tokens, tail)
        if in_flight and computed + 2 - in_flight >= request.input_tokens + request.max_tokens:
            tokens = 0  # its last token is sure to be in flight
        decodes = request.is_decoding
        if held and not decodes:
            tokens = 0
        settled = settled and tokens == whole and decodes
        if tokens <= 0:
            skipped.add(request)
            index += 1
            continue
        needed = 0
        if trial is None:
            reach = computed + tokens + lookahead
            needed = -(-(reach if reach < longest else longest) // size) - request.num_blocks
            if needed < 0:
                needed = 0
        victim = None
        while victim is not request and (needed > free if trial is None else not trial.take(request, tokens)):
            victim = max(running, key=rank) if by_priority else running[-1]
            if connector is not None and connector.is_fenced(victim):
                fenced = (request,)
                break
            place = running.index(victim)
            del running[place]
            index -= place < index
            victims.append(victim)
            if trial is None:
                freed, before = view.blocks_freed(victims), freed
                free += freed - before
            else:
                trial.leave(victim)
            if victim in scheduled:
                returned, taken = scheduled.pop(victim)
                tokens_left += returned
                inputs_left += returned + slots
                free += taken
                preempted.append(Preemption(victim, scheduled_tokens=returned))
            else:
                preempted.append(Preemption(victim))
        if fenced:
            break
        if victim is request:
            if by_priority:
                continue
            break
        scheduled[request] = (tokens, needed)
        pads = pads and decodes
        tokens_left -= tokens
        inputs_left -= tokens + slots
        free -= needed
        index += 1
    chunks = [chunk_of(request, tokens) for request, (tokens, _) in scheduled.items()]
    settled = settled and not preempted and len(chunks) == len(running)
    passed = tuple([victim for victim in victims if victim in skipped]) if skipped else ()
    return (
        chunks,
        tuple(preempted),
        passed,
        Left(tokens_left, inputs_left, pads, len(scheduled) > 0, settled, fenced=fenced),
    )


def _holds(view: View, limits: VllmLimits, left: Left) -> Holds:
    """How long the running requests go on as in this step, to which the queue adds nothing."""
    order = "" if limits.max_loras else limits.order  # an arrival may enter before requests that are skipped
    return decodes_on(view, limits.slots, order).holds if left.settled else Holds.STEP


def _without_tail(whole: int, tokens: int, tail: int) -> int:
    """Fewer `tokens` of the `whole` where the rest would be shorter than what the drafter reads ahead."""
    rest = whole - tokens
    return max(0, tokens - (tail - rest)) if 0 < rest < tail else tokens


def _admit_next(view: View, limits: VllmLimits, drafting: Drafting, left: Left, *, held: bool) -> StepPlan:
    """One admission with its prefix hits, or none: a part of a step's plan."""
    config, longest, _ = drafting
    slots, drafts = config.draft_slots, config.num_speculative_tokens
    size, free, groups = view.block_size, view.num_free_blocks, view.groups
    budget = min(left.tokens, left.inputs - slots)
    passed = list(left.passed)
    if budget <= 0 or len(view.running) >= limits.slots:
        return StepPlan(decode=False, holds=Holds.STEP if budget <= 0 else _holds(view, limits, left), note=left)
    kept = watermark_blocks(limits.watermark, view.num_blocks + 1) if view.running else 0
    threshold = longest_chunk(view, limits)
    waiting: Iterable[RequestView] = view.waiting
    if limits.max_loras:
        waiting = servable(view, limits.max_loras, ())
    for request in cast("Iterable[DraftingView]", waiting):
        if request in passed or request.stale_tokens:  # stale: its tokens come first, within the depth of a pipeline
            continue
        computed, hits, unused, known = 0, 0, 0, request.num_tokens
        if groups is not None:
            computed, _ = groups.hit(request)
        elif view.caches_prefixes:
            hits, unused = view.prefix_hits(request)
            computed = hits * size
        whole = tokens = known - computed
        if held and whole > 1:
            if not passed:  # until the hold ends
                return StepPlan(decode=False, holds=_holds(view, limits, left), note=left)
            break
        is_decode = whole == 1 and left.pads and (left.runs or computed > 0)
        if is_decode and config.num_speculative_tokens_per_batch_size is None and computed + drafts + 2 <= longest:
            tokens = 1 + drafts
            if tokens > budget:
                break
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > budget:
            if not limits.in_chunks:
                break
            tokens = budget
        tokens = _without_tail(whole, tokens, config.num_prefill_lookahead_tokens)
        if not tokens:
            passed.append(request)
            continue
        available = free - unused - kept
        if groups is not None:
            blocks = groups.blocks_needed(request, 0, whole=True)
        else:
            blocks = cdiv(min(known, longest), size) - hits
        if limits.tests_whole and blocks > available:
            if limits.in_chunks and not passed and not limits.max_loras:  # until others finish: as in `step`
                return StepPlan(decode=False, holds=_holds(view, limits, left), note=left)
            break
        if groups is not None:
            blocks = groups.blocks_needed(request, tokens)
        else:
            blocks = cdiv(min(computed + tokens + config.num_lookahead_tokens, longest), size) - hits
        if blocks > available:
            break
        note = Left(left.tokens - tokens, left.inputs - tokens - slots, left.pads, left.runs, False, tuple(passed))
        return StepPlan(prefill=(Chunk(request, tokens),), decode=False, more=True, note=note)
    return StepPlan(decode=False, note=left._replace(passed=tuple(passed)))
