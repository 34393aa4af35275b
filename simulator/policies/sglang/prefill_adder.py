"""The prompts of an SGLang prefill, and how many tokens of each.

`PrefillAdder` in python/sglang/srt/managers/schedule_policy.py, `PrefillBudget` in mem_cache/prefill_budget.py and the
loop of `_get_new_batch_prefill_raw` in managers/scheduler.py (SGLang 0.5.23). Line numbers are those of that release.
"""

from enum import Enum
from typing import NamedTuple

from simulator.division import cdiv
from simulator.plan import Chunk, View
from simulator.policies.parts.plans import chunk_of
from simulator.policies.sglang.eos_forecast import EosForecast
from simulator.policies.sglang.new_tokens import CLIP_MAX_NEW_TOKENS, tokens_to_come
from simulator.policies.sglang.prefill_delayer import DelayerPass, Delays, PrefillDelayer
from simulator.request import RequestView


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
