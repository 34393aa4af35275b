"""SGLang's `Scheduler.get_next_batch_to_run` in python/sglang/srt/managers/scheduler.py (SGLang 0.5.23).

`step` is the rule. `PrefillAdder` (`prefill_adder`) chooses the prompts of a prefill. `_retract` is
`ScheduleBatch.retract_decode` in schedule_batch.py. Line numbers without a file are those of scheduler.py.
"""

from typing import Final, NamedTuple

from simulator.division import cdiv
from simulator.plan import Holds, Preemption, StepPlan, View
from simulator.policies.parts.plans import UNTIL_ARRIVAL, step_plan
from simulator.policies.sglang.new_tokens import fallen_ratio, first_ratio, ratio_after_retraction
from simulator.policies.sglang.prefill_adder import PrefillAdder, SglangLimits
from simulator.policies.sglang.prefill_delayer import NO_DELAYS, Delays
from simulator.request import RequestView
from simulator.speculative.ahead import tokens_ahead


class Note(NamedTuple):
    """State that SGLang's scheduler keeps from step to step."""

    ratio: float  # the new token ratio at the decode step `since`, from where on it falls
    since: int
    full: int = 0  # so many ran when a request found no room: none is tried until one of them has left
    delays: Delays = NO_DELAYS


_ARRIVAL: Final = Holds.ARRIVAL
_CHANGE: Final = Holds.CHANGE


def step(view: View, limits: SglangLimits) -> StepPlan:
    """The plan of a step: the prompts that fit, in a batch of their own or beside the decodes; else the decodes."""
    prefilling, has_waiting = view.prefilling, len(view.waiting) > 0
    running = len(view.running) - len(prefilling)
    note = view.note
    if not (running or prefilling or has_waiting):
        if limits.delayer is None or not isinstance(note, Note):
            return UNTIL_ARRIVAL  # without a note: the ratio begins anew
        return step_plan(holds=_ARRIVAL, note=_first_note(view, limits, note.delays.over()))
    if not isinstance(note, Note):
        note = _first_note(view, limits, NO_DELAYS)
    elif note.full and note.full != running:  # a request left (:3949, :3968)
        note = Note(note.ratio, note.since, 0, note.delays)
    holds = _ARRIVAL
    tried: tuple[RequestView, ...] | None = None
    if prefilling or (has_waiting and not note.full and running < limits.slots):
        adder = _adder(view, limits, note)
        if prefilling:
            adder.continue_prompt()
        if not note.full:
            adder.admit()
        if adder.chunks:
            return _prefill(view, limits, adder, note)
        tried = tuple(adder.tried)
        delays = note.delays if adder.delayer is None else adder.delayer.end(0)
        if adder.is_full:
            note = Note(note.ratio, note.since, running, delays)
        else:
            note = Note(note.ratio, note.since, note.full, delays)
            holds = Holds.STEP
    elif note.delays.passes:
        note = Note(note.ratio, note.since, note.full, note.delays.over())
    if view.decode_blocks_needed > view.num_free_blocks:
        if running > view.num_decoding:  # the running step's results will free memory (:4470)
            return StepPlan(decode=False, tried=tried, withheld=True, note=note)
        return _retract(view, limits, note, tried)
    if note.full or running >= limits.slots:
        holds = _CHANGE
    return step_plan(holds=holds, note=note, tried=tried)


def _first_note(view: View, limits: SglangLimits, delays: Delays) -> Note:
    return Note(first_ratio(limits.conservativeness), view.decode_steps, 0, delays)


def _adder(view: View, limits: SglangLimits, note: Note) -> PrefillAdder:
    ratio = fallen_ratio(note.ratio, view.decode_steps - note.since, limits.conservativeness)
    return PrefillAdder(view, limits, ratio, note.delays)


def _prefill(view: View, limits: SglangLimits, adder: PrefillAdder, note: Note) -> StepPlan:
    """A prefill step; decodes share it if they may and their blocks are left (:4383)."""
    running = adder.running
    mixes = adder.decodes > 0 and view.num_decoding > 0
    mixed = mixes and view.decode_blocks_needed <= adder.blocks_left
    full = 0
    if running and not mixed and not adder.is_cut and (note.full or adder.is_full):
        # Without decodes beside it, a full batch stays so until a request leaves. A mixed step forgets it, for the
        # batch is made anew (:4408), and so does a prompt that is cut, for it leaves the batch (:3951).
        full = running + len(adder.chunks)
    to_end: tuple[RequestView, ...] = ()
    if mixed:  # prompts come before the decodes beside them (`mix_with_running`, schedule_batch.py:3267)
        to_end = tuple([request for request in adder.batch if request.is_decoding])
    elif limits.mixes and view.prefilling:
        to_end = tuple([chunk.request for chunk in adder.chunks])
    delays = note.delays
    if adder.delayer is not None:  # the decodes of a mixed step count (:4069)
        delays = adder.delayer.end(len(adder.chunks) + mixed * view.num_decoding)
    # The ratio falls only where decodes are alone.
    return step_plan(
        prefill=tuple(adder.chunks),
        decode=mixed,
        note=Note(note.ratio, note.since + mixed, full, delays),
        tried=tuple(adder.tried),
        to_end=to_end,
        withheld=mixes and not mixed,
    )


def _blocks_to_decode(view: View, request: RequestView) -> int:
    """Blocks that a decode step takes for this request."""
    size, computed = view.block_size, request.num_computed_tokens
    if view.drafting is None:
        return int(computed % size == 0)
    return cdiv(computed + tokens_ahead(view.drafting.config, size), size) - request.num_blocks


def _retract(view: View, limits: SglangLimits, note: Note, tried: tuple[RequestView, ...] | None) -> StepPlan:
    """Preempt victims until the remaining decodes fit; if none is left, the prompt begun goes on."""
    known = view.known_outputs
    # The smaller the longer it stays (`_get_decode_retraction_order`, schedule_batch.py:3542).
    decoding = [request for request in view.running if request.is_decoding]
    stay = sorted(decoding, key=lambda request: (-known(request), request.input_tokens))
    needed, freed = view.decode_blocks_needed, 0
    least = 0 if view.prefilling else 1
    retracted: list[RequestView] = []
    while needed > view.num_free_blocks + freed and len(stay) > least:
        retracted.append(stay.pop())
        needed -= _blocks_to_decode(view, retracted[-1])
        freed = view.blocks_freed(retracted)
    adder = _adder(view, limits, note)
    if not stay:
        adder.continue_alone(freed)
    outputs = sum([known(request) for request in stay])
    return StepPlan(
        preempt=tuple([Preemption(request) for request in retracted]),
        prefill=tuple(adder.chunks),
        tried=tried,
        to_end=tuple(stay),  # as they were sorted (`filter_batch`, schedule_batch.py:3530)
        note=Note(ratio_after_retraction(stay, outputs), view.decode_steps + bool(stay), 0, note.delays),
    )
