"""SGLang's `Scheduler.get_next_batch_to_run` in python/sglang/srt/managers/scheduler.py (SGLang 0.5.23).

`step` is the rule. `PrefillAdder` chooses the prompts of a prefill, `DelayerPass` says if they wait, `_retract` is
`ScheduleBatch.retract_decode` in schedule_batch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from simulator.division import cdiv
from simulator.plan import Chunk, Holds, Preemption, StepPlan, View
from simulator.policies.parts.plans import UNTIL_ARRIVAL, chunk_of, step_plan
from simulator.request import RequestView
from simulator.speculative import tokens_ahead

# Prompts that wait until several can be computed at once: SGLang's PrefillDelayer.
#
# `PrefillDelayer`, `PrefillDelayerSinglePassExecutor` and `RecentPrefillBatchSizeTracker` in
# python/sglang/srt/managers/prefill_delayer.py (SGLang 0.5.23), as a server asks them whose attention is not
# divided among data-parallel ranks. Line numbers are those of that file.

WINDOW = 16  # latest attempts whose sizes count (`SGLANG_PREFILL_DELAYER_MAX_PREFILL_BS_WINDOW_SIZE`)
MAX_DELAY_MS = 5000.0  # where `prefill_delayer_max_delay_ms` is not set (:94)


class PrefillDelayer(NamedTuple):
    """The parameters of a policy that hold prompts back."""

    slots: int
    max_delay_passes: int
    token_usage_low_watermark: float | None
    queue_min_ratio: float | None
    max_delay_ms: float | None
    prefill_max_requests: int | None


class Delays(NamedTuple):
    """State that the delayer keeps from pass to pass, while the server is idle too."""

    passes: int = 0  # for so many, prompts have been held back
    since_s: float = 0.0  # when the first of these passes began
    sizes: tuple[int, ...] = ()  # requests of the latest attempts to prefill
    has_let_pass: bool = False  # the first prefill that was to wait did not (`skip_first_delayer`, :282)

    def over(self) -> Delays:
        """The state when no prompt is held back."""
        return self._replace(passes=0, since_s=0.0) if self.passes else self


NO_DELAYS: Final = Delays()


# The plan of a step. Line numbers without a file are those of managers/scheduler.py.


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


# The prompts of an SGLang prefill, and how many tokens of each.
#
# `PrefillAdder` in python/sglang/srt/managers/schedule_policy.py, `PrefillBudget` in mem_cache/prefill_budget.py
# and the loop of `_get_new_batch_prefill_raw` in managers/scheduler.py (SGLang 0.5.23). Line numbers are those of
# that release.


class SglangLimits(NamedTuple):
    """The parameters of a policy that bound a prefill."""

    slots: int  # requests that may run: a decode step computes a token of each
    chunk: int  # tokens of a prefill
    begin: int  # tokens after which no prompt is begun
    in_chunks: bool  # prompts may be cut
    mixes: bool  # decodes share a prefill's step
    knows_lengths: bool  # every answer has `max_tokens`: SGLang's `ignore_eos`
    conservativeness: float
    max_requests: float  # of a prefill
    delayer: PrefillDelayer | None


class Verdict(Enum):
    """Result of an attempt to add a request, for the next attempt: `AddReqResult` (schedule_policy.py:546)."""

    CONTINUE = "continue"
    NO_TOKEN = "no token"
    OTHER = "other"


_CONTINUE, _NO_TOKEN, _OTHER = Verdict


class PrefillAdder:
    """A prefill under construction: what is left of its two budgets and of memory, all in tokens.

    Budgets and memory are charged in whole pages (`_update_prefill_budget`, :894), and each request costs a page more
    for rounding (`PrefillBudget.reserve`, prefill_budget.py:161). `ratio` is the new token ratio.
    """

    def __init__(self, view: View, limits: SglangLimits, ratio: float, delays: Delays) -> None:
        slots, chunk, begin, in_chunks, mixes, knows_lengths, _, max_requests, delayer = limits
        self.view = view
        self.running = len(view.running) - len(view.prefilling)
        self.chunks: list[Chunk] = []
        self.tried: list[RequestView] = []  # waiting requests whose prefix was looked up, in order
        self.is_cut = False  # a prompt goes on in the next step
        self.is_full = False  # a request found no room or no slot: `batch_is_full`
        self.size = view.block_size
        self.slots = slots
        self.max_requests = max_requests
        self.in_chunks = in_chunks
        self.knows_lengths = knows_lengths
        self.decodes = self.running if mixes and in_chunks else 0
        self.unit = min(self.size, chunk)  # a page; SGLang demands chunks of whole pages
        self.chunk_left = chunk - self.decodes
        self.input_left = begin - self.decodes
        self.free = view.num_free_blocks * self.size
        self.reserved = self.decodes  # what was admitted takes and may come to take
        self.allocated = self.decodes  # without the answers
        self.blocks = 0  # that the chunks take
        self.matches = view.prefix_matches() if view.caches_prefixes else None
        self._ratio = 1.0 if knows_lengths else ratio  # :785: a fixed length cannot end early
        self._most = self.running * CLIP_MAX_NEW_TOKENS * self._ratio + 1  # more than `estimate`, whatever that is
        self._estimate = 0.0
        self._is_estimated = not self.running
        self._forecast: EosForecast | None = None
        self.delayer = None if delayer is None else DelayerPass(delayer, delays, view, self.running)

    # Memory

    @property
    def batch(self) -> list[RequestView]:
        """The requests that decode, in the order of SGLang's running batch."""
        running, prefilling = self.view.running, self.view.prefilling
        return [request for request in running if request not in prefilling] if prefilling else list(running)

    @property
    def estimate(self) -> float:
        """Tokens that the running requests may still need: `_get_running_request_total_token_offset` (:783)."""
        if not self._is_estimated:
            ratio, known = self._ratio, self.view.known_outputs
            self._estimate = sum(
                [min(request.max_tokens - known(request), CLIP_MAX_NEW_TOKENS) * ratio for request in self.batch]
            )
            self._is_estimated = True
        return self._estimate

    @property
    def memory_left(self) -> float:
        """`PrefillBudget.remaining_total`."""
        return self.free - (self.reserved + self.estimate)

    @property
    def blocks_left(self) -> int:
        """Free blocks beside those that the chunks take."""
        return self.free // self.size - self.blocks

    def _has_room(self, tokens: int) -> bool:
        """True if the request asks for less than the memory left (prefill_budget.py:123)."""
        return self.free - self.reserved - tokens > self._most or tokens < self.memory_left

    def _verdict(self) -> Verdict:
        """`budget_state` (:874)."""
        if self.free <= self.allocated or not self._has_room(0):
            return _NO_TOKEN
        return _OTHER if self.is_spent else _CONTINUE

    @property
    def is_spent(self) -> bool:
        """True if a budget is used up."""
        return self.input_left <= 0 or (self.in_chunks and self.chunk_left <= 0)

    def _compute(self, request: RequestView, tokens: int, left: int, blocks: int) -> None:
        """Compute so many of the tokens `left` of a prompt, and charge them (`_update_prefill_budget`, :894).

        They take `blocks`. A prompt that is complete reserves its answer, those tokens of it included that there are.
        """
        self.chunks.append(chunk_of(request, tokens))
        self.is_cut = tokens < left
        paged = cdiv(tokens, self.size) * self.size + self.size
        self.allocated += paged
        self.reserved += paged if self.is_cut else paged + min(request.max_tokens, CLIP_MAX_NEW_TOKENS)
        charge = cdiv(tokens, self.unit) * self.unit
        self.input_left -= charge
        self.chunk_left -= charge
        self.blocks += blocks

    # The prompt under way

    def continue_prompt(self) -> None:
        """Continue the prompt that is computed in chunks: `add_chunked_req` (:1128).

        Its chunk is bounded by the memory that the running requests' estimate leaves, and by nothing but the chunk's
        size if that is none, for it must go on to free its KV (prefill_budget.py:142).
        """
        for request in self.view.prefilling:
            if self.delayer is not None:
                self.delayer.holds_back()  # others alone: this prompt goes on (:1160)
            if self.chunk_left <= 0:
                self._hold_decodes()  # the real chunk would be empty or negative
            within = self.chunk_left if self._has_room(self.chunk_left) else int(self.memory_left)
            tokens = self._within_memory(request, within if within > 0 else self.chunk_left)
            if not tokens:
                self._hold_decodes()
                tokens = self._within_memory(request, self.chunk_left)
            left = request.num_tokens_to_compute
            self.is_cut = tokens < left
            if tokens:
                blocks = cdiv(request.num_computed_tokens + tokens, self.size) - request.num_blocks
                self._compute(request, tokens, left, blocks)

    def continue_alone(self, freed: int) -> None:
        """Continue that prompt after all decodes have left, `freed` blocks with them."""
        self._hold_decodes()
        self.free += freed * self.size
        self.running = 0
        self._most, self._estimate = 1.0, 0.0
        self._is_estimated = True
        self.continue_prompt()

    def _hold_decodes(self) -> None:
        self.chunk_left += self.decodes
        self.input_left += self.decodes
        self.reserved -= self.decodes
        self.allocated -= self.decodes
        self.decodes = 0

    def _within_memory(self, request: RequestView, tokens: int) -> int:
        owned = request.num_blocks * self.size - request.num_computed_tokens
        return max(0, min(request.num_tokens_to_compute, tokens, owned + self.free))

    # New prompts

    def admit(self) -> None:
        """Admit requests in the queue's order until one does not fit: the loop of scheduler.py:4203."""
        running = self.running + len(self.view.prefilling)
        begun = len(self.chunks)
        if self.is_spent and self._verdict() is _OTHER:
            return  # a spent budget admits no request, and tries none (:4207)
        for request in self.view.waiting:
            if running + len(self.chunks) - begun >= self.slots:
                self.is_full = True
                return
            self.tried.append(request)
            if len(self.chunks) >= self.max_requests:
                return
            verdict = self._add(request)
            if verdict is not _CONTINUE:
                self.is_full = verdict is _NO_TOKEN and bool(self.chunks or self.running)
                return

    def _add(self, request: RequestView) -> Verdict:
        """`add_one_req` (:1382)."""
        if self.knows_lengths and self.matches is None:
            return self._add_of_fixed_length(request)
        if self.matches is None:
            verdict = self._select(request, 0)
        else:
            hits, unused = self.matches.look(request)
            self.free -= unused * self.size  # locked while it is tried
            verdict = self._select(request, hits)
            if verdict is _CONTINUE:
                self.matches.keep(request)
            else:
                self.free += unused * self.size
        return self._verdict() if verdict is _CONTINUE else verdict

    def _select(self, request: RequestView, hits: int) -> Verdict:
        """`_select_prefill_admission` (:1560) and its commit; `hits` of the request's pages are cached."""
        cached = hits * self.size
        extend = request.num_tokens - cached
        if not self._has_room(extend + tokens_to_come(request) + self.size):
            return _NO_TOKEN
        unit = self.unit
        paged = cdiv(extend, unit) * unit
        if not self.in_chunks and self.chunks and paged >= self.input_left:
            return _OTHER
        tokens = extend
        if paged > self.chunk_left and (self.in_chunks or extend > self.chunk_left):
            # A prompt is cut if its length in whole pages exceeds the budget, and at the end of a page (:1617).
            tokens = (cached + self.chunk_left // unit * unit) // unit * unit - cached
            if tokens <= 0:
                return _OTHER
        if self.delayer is not None and self.delayer.holds_back():
            return _OTHER
        self._compute(request, tokens, extend, cdiv(tokens, self.size))
        return _CONTINUE

    def _add_of_fixed_length(self, request: RequestView) -> Verdict:
        """`add_one_req_ignore_eos` (:1241), where no prefix is cached: a forecast of when the others leave."""
        extend = request.num_tokens
        paged = cdiv(extend, self.size) * self.size + self.size
        left = self.free - self.allocated
        if paged > min(left, self.memory_left):
            return _NO_TOKEN
        if self._forecast is None:
            begun = [chunk.request for chunk in self.chunks]
            self._forecast = EosForecast([request, *self.batch, *begun], self.view)
        else:
            self._forecast.insert(request)
        is_alone = not (self.running or self.chunks)  # refused there, it would wait for ever, as it does in SGLang
        if not (is_alone or self._forecast.fits(left - paged)):
            return _NO_TOKEN
        if self.delayer is not None and self.delayer.holds_back():
            return _OTHER
        if extend > self.chunk_left and self.chunks and not self.in_chunks:
            return _OTHER
        if self.chunk_left <= 0:
            return _OTHER
        tokens = min(extend, self.chunk_left)
        self._compute(request, tokens, extend, cdiv(tokens, self.size))
        return self._verdict()


class DelayerPass:
    """One pass of the scheduler. It asks the delayer once at most, and only when a prompt could enter or goes on."""

    __slots__ = ("_delayer", "_delays", "_is_held_back", "_running", "_view")

    def __init__(self, delayer: PrefillDelayer, delays: Delays, view: View, running: int) -> None:
        self._delayer = delayer
        self._delays = delays
        self._view = view
        self._running = running  # requests that decode
        self._is_held_back: bool | None = None

    def holds_back(self) -> bool:
        """Whether no prompt may enter in this pass (`negotiate_should_allow_prefill`, :429)."""
        if self._is_held_back is None:
            self._is_held_back = self._negotiate()
        return self._is_held_back

    def end(self, computed: int) -> Delays:
        """The state after the pass, whose prefill step computes so many requests, none if it is no prefill (:395).

        Of a prefill that is held back, the size is estimated (:407).
        """
        if self._is_held_back is None:
            return self._delays.over()
        waiting, slots = len(self._view.waiting), self._delayer.slots - self._running
        size = computed or min(max(waiting, 1), max(slots, 1))
        return self._delays._replace(sizes=(*self._delays.sizes, size)[-WINDOW:])

    def _negotiate(self) -> bool:
        """`_negotiate_should_allow_prefill_pure` (:166), where prompts could enter on all ranks: on this one."""
        view, delayer, delays = self._view, self._delayer, self._delays
        self._delays = delays.over()
        low = delayer.token_usage_low_watermark
        if low is not None and (view.num_blocks - view.num_free_blocks) / view.num_blocks < low:
            return False
        most = max(delays.sizes, default=0)
        if not (delayer.slots - self._running < most or self._lacks_requests(most, delays)):
            return False
        if not delays.has_let_pass:
            self._delays = self._delays._replace(has_let_pass=True)
            return False
        if delays.passes >= delayer.max_delay_passes - 1:
            return False
        since_s = delays.since_s if delays.passes else view.now_s
        self._delays = delays._replace(passes=delays.passes + 1, since_s=since_s)
        return True

    def _lacks_requests(self, most: int, delays: Delays) -> bool:
        """Whether the queue is short beside the batch and has not been waited for too long (:250)."""
        delayer = self._delayer
        if delayer.queue_min_ratio is None or not self._running:
            return False
        capacity = most if delayer.prefill_max_requests is None else delayer.prefill_max_requests
        if len(self._view.waiting) >= min(int(self._running * delayer.queue_min_ratio), capacity):
            return False
        allowed_ms = MAX_DELAY_MS if delayer.max_delay_ms is None else delayer.max_delay_ms
        return not (delays.passes and (self._view.now_s - delays.since_s) * 1000.0 >= allowed_ms)


# Memory that answers may still come to need: SGLang's estimate, a ratio of their `max_tokens`.
#
# `NewTokenRatioTracker` and `PrefillAdder` beside python/sglang/srt/managers/scheduler.py (SGLang 0.5.23).

INIT_NEW_TOKEN_RATIO = 0.7
MIN_NEW_TOKEN_RATIO_FACTOR = 0.14
NEW_TOKEN_RATIO_DECAY_STEPS = 600
RETRACT_DECODE_STEPS = 20
CLIP_MAX_NEW_TOKENS = 4096


def first_ratio(schedule_conservativeness: float) -> float:
    """The ratio of an idle server."""
    return min(1.0, INIT_NEW_TOKEN_RATIO * schedule_conservativeness)


def fallen_ratio(ratio: float, decode_steps: int, schedule_conservativeness: float) -> float:
    """`ratio` after so many decode steps: a linear decay to its lowest value, rounded as one subtraction a step is."""
    if decode_steps <= 0:
        return ratio
    values = _decay(ratio, schedule_conservativeness)
    return values[min(decode_steps, len(values)) - 1]


@lru_cache(maxsize=64)
def _decay(ratio: float, schedule_conservativeness: float) -> tuple[float, ...]:
    """The ratio after 1, 2, ... decode steps, until it falls no more."""
    first = first_ratio(schedule_conservativeness)
    lowest = first * MIN_NEW_TOKEN_RATIO_FACTOR
    fall = (first - lowest) / NEW_TOKEN_RATIO_DECAY_STEPS
    values = [max(ratio - fall, lowest)]
    while fall and values[-1] > lowest:
        values.append(max(values[-1] - fall, lowest))
    return tuple(values)


def ratio_after_retraction(stay: Sequence[RequestView], outputs: int) -> float:
    """The ratio after a retraction: the `outputs` of those that stay, and 20 tokens each, of their `max_tokens`."""
    most = sum([request.max_tokens for request in stay])
    return min(1.0, (outputs + RETRACT_DECODE_STEPS * len(stay)) / (most + 1))


def tokens_to_come(request: RequestView) -> int:
    """Tokens left of its `max_tokens`, clipped."""
    return min(max(0, request.max_tokens - request.output_tokens_so_far), CLIP_MAX_NEW_TOKENS)


def allowed_tokens(request: RequestView, num_blocks: int, block_size: int) -> int:
    """`max_tokens` as memory allows it to a lone request: scheduler.py:2712 and mem_cache/allocator/base.py:88."""
    size, tokens = num_blocks * block_size, request.input_tokens
    paged = cdiv(tokens, block_size) * block_size
    return min(request.max_tokens, size - tokens - 2, size - paged - block_size - 1)


# SGLang's forecast of memory where every answer has a fixed length (its `ignore_eos`).

IGNORE_EOS_RESERVE_TOKENS = 1


class EosForecast:
    """Who leaves when, and whether all fit until then.

    Requests are (tokens left, tokens held), those that leave first in front: `add_one_req_ignore_eos`
    (python/sglang/srt/managers/schedule_policy.py:1241, SGLang 0.5.23).
    """

    def __init__(self, requests: Sequence[RequestView], view: View) -> None:
        self._view = view
        self._states = [state for request in requests if (state := self._state(request))[0] > 0]
        self._states.sort(key=itemgetter(0))

    def _state(self, request: RequestView) -> tuple[float, int]:
        outputs = self._view.known_outputs(request)
        return request.max_tokens * 1.0 - outputs, request.input_tokens + outputs

    def insert(self, request: RequestView) -> None:
        """Insert a request; as in SGLang, one that stays longest comes before the last."""
        state = self._state(request)
        if state[0] <= 0:
            return
        at = 0
        for at, other in enumerate(self._states):  # noqa: B007 - the last index if none stays as long
            if state[0] <= other[0]:
                break
        self._states.insert(at, state)

    def fits(self, memory: float) -> bool:
        """True if memory is enough at each departure; `memory` tokens are free now."""
        freed = 0
        for place, (left, held) in enumerate(self._states):
            stay = len(self._states) - place
            if memory + freed - left * stay <= IGNORE_EOS_RESERVE_TOKENS * stay:
                return False
            freed += held
        return True


# SGLang's `scheduler_recv_interval`: the scheduler looks at what has arrived in one pass of several.
#
# `SchedulerRecvSkipper` (managers/scheduler_components/recv_skipper.py, SGLang 0.5.23), which `recv_requests` asks
# before each batch. Its counter grows by 1 with a batch of decodes or a pass without a batch, by 1,000 with any
# other batch. Requests are received when it reaches the interval, and it starts again. So arrivals are seen after
# each step with prompts, and at every n-th step of a run of decodes. Passes of an idle server take no time: it
# looks at once.

PROMPT_WEIGHT = 1000


class ReceiveNote(NamedTuple):
    """State of the receiver from plan to plan, and the `note` of the scheduler behind it.

    The counter is the number of decode steps since `since`, less one more interval each time it was reached while
    nobody waited. `leaps`: the last plan counted for more or less than a decode step.
    """

    since: int
    last: int  # the latest request that was received: rows are in order of arrival
    leaps: bool
    note: Any  # mypyc finds no `object` where it makes a named tuple


_AT_REST = ReceiveNote(0, -1, leaps=True, note=None)


class _Received:
    """A view without the requests that were not received yet."""

    def __init__(self, view: View, waiting: list[RequestView], note: object) -> None:
        self._view = view
        self.waiting = waiting
        self.note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def plan_with_interval(view: View, limits: SglangLimits, interval: int) -> StepPlan:
    """Return the plan of `step` for the requests that have been received."""
    note = view.note if isinstance(view.note, ReceiveNote) else _AT_REST
    now, since, last = view.decode_steps, note.since, note.last
    count = now - since
    if not view.running or count % interval == 0 or (note.leaps and count >= interval):
        waiting = list(view.waiting)
        if waiting or note.leaps:
            since, last = now, max([last, *[request.row for request in waiting]])
    else:
        waiting = [request for request in view.waiting if request.row <= last]
    plan = step(cast("View", _Received(view, waiting, note.note)), limits)
    if plan.note is None:
        return plan  # at rest
    weight = PROMPT_WEIGHT if plan.prefill else 1
    decodes = int(plan.decode and view.num_decoding > len(plan.preempt))
    if plan.holds is not Holds.STEP and (view.waiting or plan.holds is Holds.CHANGE):
        plan = plan._replace(holds=Holds.CHANGE, hold_steps=interval - (now - since) % interval)
    return plan._replace(note=ReceiveNote(since - weight + decodes, last, weight != decodes, plan.note))
