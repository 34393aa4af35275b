"""Steps of vLLM's scheduler with images: `step`, with the encoder's rules at their places in its two loops.

The encoder (`simulator.policies.chunked_prefill.encoder`) is part of the note that a plan leaves to the next.
"""

from typing import cast

from simulator.plan import Holds, StepPlan, View
from simulator.policies.chunked_prefill.encoder import Encoder, EncoderCache, EncoderNote
from simulator.policies.chunked_prefill.limits import VllmLimits, goes_on, is_behind_skipped, lacks_blocks_alone
from simulator.policies.chunked_prefill.schedule import Admissions, Left, fast_path, schedule_running, schedule_waiting


def plan_with_images(view: View, limits: VllmLimits, *, is_async: bool) -> StepPlan:
    """The plan of `step`, where chunks end before an image that cannot be encoded. Admissions follow one by one."""
    if view.step_tokens is not None:
        return _admit_next(view, limits, cast("EncoderNote", view.note))
    note = _begin(view, limits.encoder, is_async=is_async)
    if not view.waiting and not view.prefilling:
        plan = fast_path(view, limits)
        if plan is not None:
            return plan._replace(note=note._replace(running=(*note.running, () if view.num_decoding else None)))
    encoder = Encoder(note, whole_images=limits.whole_images)
    run = schedule_running(view, limits, encoder=encoder)
    chunks, preempted, paused, budget = run.prompts(), run.preempted, run.paused, run.left.tokens
    more = not preempted and budget > 0 and view.caches_prefixes and len(view.waiting) > 0
    if not preempted and budget > 0 and not more:
        found = Admissions(chunks, encoder.passed)
        schedule_waiting(view, limits, run.left, run.free, found, encoder=encoder)
        encoder.passed = found.passed
    members = tuple([chunk.request for chunk in chunks])
    idle = len(paused) + sum([victim.request.is_decoding for victim in preempted])
    computes = more or chunks or view.num_decoding > idle
    return StepPlan(
        preempt=preempted,
        prefill=tuple(chunks),
        paused=paused,
        holds=Holds.STEP if encoder.tried else goes_on(view, limits).holds,
        more=more,
        note=encoder.note((*note.running, members if computes else None)),
    )


def _admit_next(view: View, limits: VllmLimits, note: EncoderNote) -> StepPlan:
    """One admission, or none: a part of a step's plan."""
    budget = limits.max_num_batched_tokens - (view.step_tokens or 0)
    encoder = Encoder(note, whole_images=limits.whole_images)
    found = Admissions([], encoder.passed)
    is_open = budget > 0 and len(view.running) < limits.slots and len(view.waiting) > 0
    if is_open:
        left = Left(budget, budget)
        schedule_waiting(view, limits, left, view.num_free_blocks, found, alone=True, encoder=encoder)
    chunks, encoder.passed = found.chunks, found.passed
    members = (*(note.running[-1] or ()), *[chunk.request for chunk in chunks])
    computes = members or view.step_tokens
    after = encoder.note((*note.running[:-1], members if computes else None))
    if chunks:
        return StepPlan(prefill=tuple(chunks), more=True, note=after)
    stays = encoder.tried or encoder.passed or (is_open and not lacks_blocks_alone(limits))
    if stays or (is_open and limits.max_loras and is_behind_skipped(view, limits.max_loras)):
        return StepPlan(note=after)
    return goes_on(view, limits)._replace(note=after)


def _begin(view: View, size: int, *, is_async: bool) -> EncoderNote:
    """The encoder as a step finds it: what its requests have passed is released as far as results are there."""
    note = cast("EncoderNote | None", view.note)
    if note is None:
        return EncoderNote(EncoderCache(size), {}, 0)
    running = note.running
    to_come = 1 if is_async and running and running[-1] is not None else 0
    there, rest = running[: len(running) - to_come], running[len(running) - to_come :]
    cache = note.cache
    if cache.holds:
        cache = cache.copy()
        for request in [request for requests in there for request in requests or ()]:
            cache.release(request, request.num_computed_tokens)
        gone = [request for request in cache.holds if request not in view.running]
        waiting = set(view.waiting) if gone else set()
        for request in gone:
            if request not in waiting:
                cache.release(request)
    return EncoderNote(cache, {}, 0, rest)
