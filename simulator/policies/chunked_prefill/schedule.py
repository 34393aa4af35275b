"""vLLM's `Scheduler.schedule`: one token budget, first for the running requests, then for the waiting ones.

`schedule_running` and `schedule_waiting` are its two loops, for whatever the replica has: plain memory or several KV
groups, drafts, a connector, adapters, images. `step` is the plan where each request that decodes is one of a batch, and
`itemized_step` where a replica is planned request by request. Two shortcuts walk no batch: `fast_path` gives the same
plan where nothing lacks room, which is nearly every step, `preempting_step` where blocks alone do not suffice.

What the parts change, by its places in vllm/v1/core/sched/scheduler.py of 0.33:

- Drafts: a request's tokens count its drafts; `draft_slots` of each scheduled request come off a second budget (718,
  797, 955); blocks cover the drafter's lookahead (917, 1440); no step goes beyond the model's longest context (853); a
  prompt never leaves a rest that is shorter than what the drafter reads ahead (678); an admission with one token left
  is padded to the size of a verify step (1308).
- KV groups: blocks are asked for by group, and freed as windows pass them; a chunk of a prompt ends where a state is to
  be kept (546), and where none can be, a running request is passed over (891) and a waiting one ends the step's
  admissions (1350).
- A connector: requests that hold blocks come first (1062): a load under way is passed over, and one that has ended is
  settled and admitted like any other. A waiting request is looked up behind its local hit (1139); where the connector
  does not know yet, others pass it (1149). A load between steps takes blocks and no tokens, if these fit beside what
  all prompts in flight still need (1420). A running request takes no victim whose blocks a step in flight writes (982).
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, cast

from simulator.division import cdiv
from simulator.memory.group_tables import Saving, saves_inside
from simulator.plan import Chunk, Holds, KVGroups, Preemption, StateRules, StepPlan, View
from simulator.policies.chunked_prefill.encoder import Encoder
from simulator.policies.chunked_prefill.limits import (
    VllmLimits,
    goes_on,
    is_behind_skipped,
    lacks_blocks_alone,
    longest_chunk,
    servable,
    share,
)
from simulator.policies.parts.free_blocks import watermark_blocks
from simulator.policies.parts.plans import chunk_of, decodes_on, step_plan
from simulator.queues.priority import rank
from simulator.request import RequestView
from simulator.speculative import ConnectorView, Drafting, DraftingView, SpeculativeConfig

_NOTHING: Final = Drafting(SpeculativeConfig("ngram", 0), sys.maxsize)


class Left(NamedTuple):
    """What a step has left for the waiting requests; the note of its parts where it is planned request by request.

    `tokens` and `inputs` are the two budgets. `pads`: no running request of the step is in its prefill; `runs`: some
    are scheduled. `settled`: all of them are, they decode, and no budget cuts their tokens: so they go on until one
    finishes, or lacks blocks. `passed` are the waiting requests that the step has passed over.
    """

    tokens: int
    inputs: int
    pads: bool = True
    runs: bool = False
    settled: bool = False
    passed: tuple[RequestView, ...] = ()


class Running(NamedTuple):
    """What the running requests are given: `scheduled` has the tokens of each.

    `passed` are victims that the loop had passed over: they left when a request behind them lacked blocks. `fenced`
    lacked blocks, which its victim could not free yet. `free` are the blocks that are left.
    """

    scheduled: dict[RequestView, tuple[int, int]]
    preempted: tuple[Preemption, ...]
    paused: tuple[RequestView, ...]
    passed: tuple[RequestView, ...]
    fenced: tuple[RequestView, ...]
    left: Left
    free: int

    def prompts(self) -> list[Chunk]:
        """The chunks of the requests that do not decode."""
        return [chunk_of(live, tokens) for live, (tokens, _) in self.scheduled.items() if not live.is_decoding]


def schedule_running(view: View, limits: VllmLimits, *, held: bool = False, encoder: Encoder | None = None) -> Running:
    """Tokens and blocks for the running requests in order of admission. If prompts are `held`, they only decode.

    A request that lacks a block takes those of a victim: the latest admitted, or by `priority` the least important,
    even one that has its tokens already. A request may be its own victim. Then the requests behind it get nothing,
    except by `priority` with `passes_itself`: they are more important, and may fit.
    """
    drafting, groups = view.drafting, view.groups
    config, longest, connector = drafting or _NOTHING
    size, slots, lookahead = view.block_size, config.draft_slots, config.num_lookahead_tokens
    tail = config.num_prefill_lookahead_tokens
    budget = inputs = limits.max_num_batched_tokens
    free = view.num_free_blocks
    threshold = longest_chunk(view, limits, 0 if connector is None else len(connector.holding))
    by_priority = limits.order == "priority"
    trial = None if groups is None else groups.trial()
    states = None if groups is None else groups.states
    running = list(view.running)
    scheduled: dict[RequestView, tuple[int, int]] = {}  # tokens and new blocks
    preempted: list[Preemption] = []
    victims: list[RequestView] = []
    skipped: set[RequestView] = set()
    fenced: tuple[RequestView, ...] = ()
    index = freed = 0
    pads = True
    settled = limits.threshold == 0 or limits.threshold > config.num_speculative_tokens
    counts = drafting is not None or trial is None  # else the trial asks how far a request is computed
    while index < len(running) and budget > 0 and inputs > slots:
        request = running[index]
        computed, decodes = request.num_computed_tokens if counts else 0, request.is_decoding
        whole = tokens = request.num_tokens_to_compute
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > budget:
            tokens = budget
        if drafting is None:
            if request.output_tokens_so_far >= request.max_tokens:
                tokens = 0  # its last token is being computed
        else:
            if tokens > inputs - slots:
                tokens = inputs - slots
            if tokens > longest - computed - 1:
                tokens = longest - computed - 1
            if tail:
                tokens = _without_tail(request.num_tokens - computed, tokens, tail)
            in_flight = cast(DraftingView, request).num_output_placeholders
            if in_flight and computed + 2 - in_flight >= request.input_tokens + request.max_tokens:
                tokens = 0  # its last token is sure to be in flight
        encodes = False
        if not decodes:
            if held:
                tokens = 0
            if states is not None and groups is not None and tokens > 0:
                tokens = split(states, limits, request, request.num_computed_tokens, tokens, groups.junction(request))
            if encoder is not None and tokens > 0 and len(request.images) > 0:
                encodes = True
                tokens = encoder.tokens(request, computed, tokens)
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
            returned = 0
            if victim in scheduled:
                returned, taken = scheduled.pop(victim)
                budget += returned
                inputs += returned + slots
                free += taken
            preempted.append(Preemption(victim, scheduled_tokens=returned))
            if encoder is not None:
                encoder.preempt(victim)
        if fenced:
            break
        if victim is request:
            if by_priority and (limits.passes_itself or drafting is not None):
                continue
            break
        scheduled[request] = (tokens, needed)
        if encodes and encoder is not None:
            encoder.schedule(request)
        pads = pads and decodes
        budget -= tokens
        inputs -= tokens + slots
        free -= needed
        index += 1
    settled = settled and not preempted and len(scheduled) == len(running)
    passed = tuple([victim for victim in victims if victim in skipped]) if skipped else ()
    paused = () if settled else tuple([live for live in running if live.is_decoding and live not in scheduled])
    left = Left(budget, inputs, pads, len(scheduled) > 0, settled)
    return Running(scheduled, tuple(preempted), paused, passed, fenced, left, free)


class Admissions:
    """The waiting requests that a step admits, as `chunks`, and those that it has `passed` over, before too.

    `settles`: this one's load has ended. `later`: what is admitted is a load alone. `is_stuck`: the first that is not
    admitted lacks blocks until others finish, or until prompts are held no more. `is_hopeless`: it lacks more blocks
    than there are.
    """

    settles: RequestView | None = None
    later = False
    is_stuck = False
    is_hopeless = False

    def __init__(self, chunks: list[Chunk], passed: Sequence[RequestView] = ()) -> None:
        self.chunks = chunks
        self.passed = list(passed)


def schedule_waiting(
    view: View,
    limits: VllmLimits,
    budget: int,
    free: int,
    found: Admissions,
    left: Left | None = None,
    *,
    alone: bool = False,
    held: bool = False,
    encoder: Encoder | None = None,
) -> None:
    """Append chunks for the waiting requests while slots, `budget` tokens and `free` blocks last.

    With drafts the running requests have `left` so much.

    `alone`: admit one request, with its prefix hits, for they decide what the next one finds in the cache. A request
    enters although prompts are `held` if it has a single token to compute.
    """
    config, longest, connector = _NOTHING
    drafting = groups = None
    is_plain = encoder is None
    others = 0
    if alone:
        drafting, groups = view.drafting, view.groups
        if drafting is not None or groups is not None:
            is_plain = False
        if drafting is not None:
            config, longest, connector = drafting
            others = 0 if connector is None else len(connector.holding)
    slots, in_chunks, tests_whole = limits.slots, limits.in_chunks, limits.tests_whole
    threshold = longest_chunk(view, limits, others)
    kept = watermark_blocks(limits.watermark, view.num_blocks + 1)  # vLLM's count of blocks includes the null block
    size = view.block_size
    running = len(view.running)
    passed = found.passed
    waiting: Iterable[RequestView] = view.waiting
    if limits.max_loras:
        waiting = servable(view, limits.max_loras, found.chunks)
    if others and connector is not None:
        waiting = (*connector.holding, *waiting)
    computed = owned = unused = 0
    later = False
    for request in waiting:
        if budget <= 0 or running >= slots:
            return
        known = request.num_tokens
        if not alone:
            whole = tokens = known
        elif request in passed:
            continue
        elif is_plain:
            owned, unused = view.prefix_hits(request)
            whole = tokens = known - owned * size
        else:
            if drafting is not None and cast(DraftingView, request).stale_tokens:
                continue  # its tokens come first, within the depth of a pipeline
            computed = owned = unused = loaded = junction = 0
            later = False
            if connector is not None:
                if connector.is_loading(request):
                    passed.append(request)
                    continue
                if not connector.is_settled(request):
                    found.settles = request
                    return
                owned, computed = request.num_blocks, request.num_computed_tokens
            if owned == 0:
                if groups is not None:
                    computed, junction = groups.hit(request)
                elif view.caches_prefixes:
                    owned, unused = view.prefix_hits(request)
                    computed = owned * size
                if connector is not None:
                    elsewhere = connector.look(request, computed)
                    if elsewhere is None:
                        passed.append(request)
                        continue
                    later, loaded = elsewhere.later, elsewhere.tokens
                    computed += loaded
            whole = tokens = 0 if later else known - computed
        if held and whole > 1:
            found.is_stuck = not passed
            return
        if (
            left is not None
            and whole == 1
            and left.pads
            and (left.runs or computed > 0)
            and config.num_speculative_tokens_per_batch_size is None
            and computed + config.num_speculative_tokens + 2 <= longest
        ):
            tokens = 1 + config.num_speculative_tokens
            if tokens > budget:
                return
        if 0 < threshold < tokens:
            tokens = threshold
        if tokens > budget:
            if not in_chunks:
                if not limits.passes_over or not is_plain:
                    return
                passed.append(request)
                continue
            tokens = budget
        if is_plain:
            needed = cdiv(whole if tests_whole else tokens, size) + unused
            if needed + (kept if running else 0) > free:
                return
        else:
            if groups is not None and groups.states is not None:
                tokens = split(groups.states, limits, request, computed, tokens, junction)
                if tokens == 0:
                    return
            if config.num_prefill_lookahead_tokens:
                tokens = _without_tail(whole, tokens, config.num_prefill_lookahead_tokens)
            if encoder is not None and request.images:
                tokens = encoder.tokens(request, computed, tokens)
            if not (tokens or later):
                passed.append(request)
                continue
            available = free - unused - (kept if running else 0)
            if groups is not None:
                needed = groups.blocks_needed(request, tokens, loaded)
                all_needed = groups.blocks_needed(request, 0, loaded, whole=True) if tests_whole else needed
            else:
                needed = cdiv(min(computed + tokens + config.num_lookahead_tokens, longest), size) - owned
                all_needed = cdiv(min(known, longest), size) - owned if tests_whole else needed
            if all_needed > available or needed > available:
                lacks_whole = tests_whole and in_chunks and all_needed > available
                found.is_stuck = lacks_whole and not (passed or limits.max_loras)
                found.is_hopeless = max(needed, all_needed) > view.num_blocks
                if encoder is not None:
                    encoder.cache.release(request)
                return
            if later and connector is not None and needed > available - _still_needed(view, connector):
                return
        found.chunks.append(chunk_of(request, tokens))
        if encoder is not None and request.images:
            encoder.schedule(request)
        if alone:
            if later:
                found.later = True
            return
        free -= cdiv(tokens, size)
        budget -= tokens
        running += 1


def _still_needed(view: View, connector: ConnectorView) -> int:
    """Blocks that the prompts in flight, loads too, lack to be whole."""
    size = view.block_size
    requests: list[RequestView] = [*view.prefilling, *connector.holding]
    if view.groups is not None:
        return sum([view.groups.blocks_lacking(request) for request in requests])
    return sum([max(0, cdiv(request.num_tokens, size) - request.num_blocks) for request in requests])


def _without_tail(whole: int, tokens: int, tail: int) -> int:
    """Fewer `tokens` of the `whole` where the rest would be shorter than what the drafter reads ahead."""
    rest = whole - tokens
    return max(0, tokens - (tail - rest)) if 0 < rest < tail else tokens


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


def itemized_step(view: View, limits: VllmLimits, before: object, *, held: bool = False) -> StepPlan:
    """The plan of a step that is walked through request by request: a chunk for each that is scheduled.

    Admissions follow one by one. `before` is the note of the step's part before, if there is one.
    """
    drafting = view.drafting
    connector = None if drafting is None else drafting.connector
    if view.step_tokens is not None:
        return _admit_next_item(view, limits, cast("Left", before), held=held)
    run = schedule_running(view, limits, held=held)
    chunks = tuple([chunk_of(request, tokens) for request, (tokens, _) in run.scheduled.items()])
    waits = len(view.waiting) > 0 or (connector is not None and len(connector.holding) > 0)
    more = not run.preempted and run.left.tokens > 0 and waits
    holds = Holds.STEP if waits or connector is not None else _item_holds(view, limits, run.left)
    fenced = run.fenced or None
    return StepPlan(
        preempt=run.preempted,
        prefill=chunks,
        decode=False,
        paused=run.passed,
        holds=holds,
        more=more,
        note=run.left,
        tried=fenced,
    )


def _item_holds(view: View, limits: VllmLimits, left: Left) -> Holds:
    """How long the running requests go on as in this step, to which the queue adds nothing."""
    order = "" if limits.max_loras else limits.order  # an arrival may enter before requests that are skipped
    return decodes_on(view, limits.slots, order).holds if left.settled else Holds.STEP


def _admit_next_item(view: View, limits: VllmLimits, left: Left, *, held: bool) -> StepPlan:
    """One admission with its prefix hits, one load, or one load that has ended; or none: a part of a step's plan."""
    drafting = view.drafting
    slots = 0 if drafting is None else drafting.config.draft_slots
    budget = min(left.tokens, left.inputs - slots)
    if budget <= 0 or len(view.running) >= limits.slots:
        return StepPlan(decode=False, holds=Holds.STEP if budget <= 0 else _item_holds(view, limits, left), note=left)
    found = Admissions([], left.passed)
    schedule_waiting(view, limits, budget, view.num_free_blocks, found, left, alone=True, held=held)
    passed = tuple(found.passed)
    if found.settles is not None:
        return StepPlan(decode=False, tried=(found.settles,), more=True, note=left._replace(passed=passed))
    if found.chunks:
        chunk = found.chunks[0]
        if found.later:
            passed = (*passed, chunk.request)
        tokens = chunk.num_tokens
        note = Left(left.tokens - tokens, left.inputs - tokens - slots, left.pads, left.runs, False, passed)
        return StepPlan(prefill=(chunk,), decode=False, more=True, note=note)
    if found.is_stuck:
        return StepPlan(decode=False, holds=_item_holds(view, limits, left), note=left)
    return StepPlan(decode=False, note=left._replace(passed=passed))


def grouped_step(view: View, limits: VllmLimits, groups: KVGroups) -> StepPlan:
    """The plan of a step with a memory of several KV groups. Admissions follow one by one."""
    if view.step_tokens is not None:
        return _admit_next_of_groups(view, limits, groups, view.step_tokens, settled=cast("bool", view.note))
    run = schedule_running(view, limits)
    chunks, preempted, paused = tuple(run.prompts()), run.preempted, run.paused
    settled = not (chunks or preempted or paused)
    more = not preempted and run.left.tokens > 0 and len(view.waiting) > 0
    holds, steps = _group_holds(view, limits, groups) if settled and not more else (Holds.STEP, None)
    return StepPlan(
        preempt=preempted,
        prefill=chunks,
        paused=(*paused, *run.passed),
        holds=holds,
        more=more,
        note=settled,
        hold_steps=steps,
    )


def _group_holds(view: View, limits: VllmLimits, groups: KVGroups) -> tuple[Holds, int | None]:
    """How long the running requests go on as in this step, to which the queue adds nothing."""
    return (goes_on(view, limits).holds, groups.quiet_steps()) if view.num_decoding else (Holds.STEP, None)


def _admit_next_of_groups(
    view: View, limits: VllmLimits, groups: KVGroups, step_tokens: int, *, settled: bool
) -> StepPlan:
    """One admission with what is cached of it, or none: a part of a step's plan."""
    budget = limits.max_num_batched_tokens - step_tokens
    if budget > 0 and len(view.running) < limits.slots and view.waiting:
        found = Admissions([])
        schedule_waiting(view, limits, budget, view.num_free_blocks, found, alone=True)
        if found.chunks:
            return StepPlan(prefill=tuple(found.chunks), more=True, note=False)
        settled = settled and not found.is_hopeless
        settled = settled and not (limits.max_loras and is_behind_skipped(view, limits.max_loras))
    holds, steps = _group_holds(view, limits, groups) if settled else (Holds.STEP, None)
    return StepPlan(holds=holds, hold_steps=steps)


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
    run = schedule_running(view, limits, held=held)
    chunks, budget = run.prompts(), run.left.tokens
    more = not run.preempted and budget > 0 and view.caches_prefixes
    found = Admissions(chunks)
    if not run.preempted and budget > 0 and not more:
        schedule_waiting(view, limits, budget, run.free, found, held=held)
    return StepPlan(
        preempt=run.preempted,
        prefill=tuple(chunks),
        paused=run.paused,
        holds=goes_on(view, limits).holds,
        more=more,
        requeue=_to_front(found.passed, limits),
    )


def _admit_next(view: View, limits: VllmLimits, budget: int, *, held: bool) -> StepPlan:
    """One admission, or none: a part of a step's plan. Its note is the requests that the step has passed over."""
    found = Admissions([], cast("tuple[RequestView, ...]", view.note or ()) if limits.passes_over else ())
    slots = limits.slots - len(view.running)
    waiting = len(view.waiting)
    is_open = budget > 0 and slots > 0 and waiting > 0
    if is_open:
        schedule_waiting(view, limits, budget, view.num_free_blocks, found, alone=True, held=held)
    chunks, passed = found.chunks, found.passed
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
        found = Admissions(chunks)
        schedule_waiting(view, limits, budget, free, found, held=held)
        if found.passed:
            holds = goes_on(view, limits).holds
            return StepPlan(prefill=tuple(chunks), holds=holds, requeue=_to_front(found.passed, limits))
    return step_plan(prefill=tuple(chunks)) if chunks else goes_on(view, limits)


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
