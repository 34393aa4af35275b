"""The prompts of an SGLang prefill, and how many tokens of each.

`PrefillAdder` in python/sglang/srt/managers/schedule_policy.py, `PrefillBudget` in mem_cache/prefill_budget.py and the
loop of `_get_new_batch_prefill_raw` in managers/scheduler.py (SGLang 0.5.23). Line numbers are those of that release.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from simulator.plan import Chunk, View, cdiv
from simulator.policies.parts.eos_forecast import EosForecast
from simulator.policies.parts.new_tokens import CLIP_MAX_NEW_TOKENS, tokens_to_come
from simulator.request import RequestView


class PrefillLimits(Protocol):
    """The parameters of a policy that bound a prefill."""

    @property
    def slots(self) -> int: ...

    @property
    def max_num_batched_tokens(self) -> int: ...

    @property
    def chunked_prefill_size(self) -> int | None: ...

    @property
    def max_prefill_tokens(self) -> int | None: ...

    @property
    def enable_mixed_chunk(self) -> bool: ...

    @property
    def ignore_eos(self) -> bool: ...


class Verdict(Enum):
    """What an attempt to add a request says of the next one: `AddReqResult` (schedule_policy.py:546)."""

    CONTINUE = "continue"
    NO_TOKEN = "no token"
    OTHER = "other"


class PrefillAdder:
    """A prefill under construction: what is left of its two budgets and of memory, all in tokens.

    `batch` are the requests that decode, in the order of SGLang's running batch. Budgets and memory are charged in
    whole pages (`_update_prefill_budget`, :894), and each request costs a page more for rounding
    (`PrefillBudget.reserve`, prefill_budget.py:161).
    """

    def __init__(self, view: View, policy: PrefillLimits, ratio: float, batch: list[RequestView]) -> None:
        self.view = view
        self.policy = policy
        self.ratio = 1.0 if policy.ignore_eos else ratio  # :785: a fixed length cannot end early
        self.batch = batch
        self.chunks: list[Chunk] = []
        self.tried: list[RequestView] = []  # waiting requests whose prefix was looked up, in order
        self.is_cut = False  # a prompt goes on in the next step
        self.is_full = False  # a request found no room or no slot: `batch_is_full`
        self.size = view.block_size
        self.is_chunked = policy.chunked_prefill_size != -1
        self.decodes = len(batch) if policy.enable_mixed_chunk and self.is_chunked else 0
        self.step = policy.max_num_batched_tokens
        self.chunk = min(self.step, policy.chunked_prefill_size or self.step) if self.is_chunked else self.step
        self.unit = min(self.size, self.chunk)  # a page; SGLang demands chunks of whole pages
        self.chunk_left = self.chunk - self.decodes
        self.input_left = min(policy.max_prefill_tokens or self.step, self.step if not self.is_chunked else 1 << 62)
        self.input_left -= self.decodes
        self.free = view.num_free_blocks * self.size
        self.reserved = self.decodes  # what was admitted takes and may come to take
        self.allocated = self.decodes  # without the answers
        self.blocks = 0  # that the chunks take
        self.matches = view.prefix_matches() if view.caches_prefixes else None
        self._estimate: float | None = None
        self._forecast: EosForecast | None = None

    # Memory

    @property
    def estimate(self) -> float:
        """What the running requests may still come to need: `_get_running_request_total_token_offset` (:783)."""
        if self._estimate is None:
            ratio, view = self.ratio, self.view
            self._estimate = sum([self._clipped(request, view) * ratio for request in self.batch])
        return self._estimate

    @staticmethod
    def _clipped(request: RequestView, view: View) -> int:
        return min(request.max_tokens - view.known_outputs(request), CLIP_MAX_NEW_TOKENS)

    @property
    def memory_left(self) -> float:
        """`PrefillBudget.remaining_total`."""
        return self.free - (self.reserved + self.estimate)

    @property
    def blocks_left(self) -> int:
        """Free blocks beside those that the chunks take."""
        return self.free // self.size - self.blocks

    def _has_room(self, tokens: int) -> bool:
        """Whether less than the memory left is asked for (prefill_budget.py:123)."""
        left = self.free - self.reserved - tokens
        if left > len(self.batch) * CLIP_MAX_NEW_TOKENS * self.ratio:
            return True  # whatever the running requests still need
        return tokens < self.memory_left

    def _reserve(self, tokens: int, answer: int, blocks: int) -> None:
        """Charge a request (`_update_prefill_budget`, :894)."""
        paged = cdiv(tokens, self.size) * self.size
        self.reserved += paged + self.size + answer
        self.allocated += paged + self.size
        charge = cdiv(tokens, self.unit) * self.unit
        self.input_left -= charge
        self.chunk_left -= charge
        self.blocks += blocks

    def _verdict(self) -> Verdict:
        """`budget_state` (:874)."""
        if not (self._has_room(0) and self.free > self.allocated):
            return Verdict.NO_TOKEN
        return Verdict.OTHER if self.is_spent else Verdict.CONTINUE

    @property
    def is_spent(self) -> bool:
        """Whether a budget is used up."""
        return self.input_left <= 0 or (self.is_chunked and self.chunk_left <= 0)

    # The prompt under way

    def continue_prompt(self) -> None:
        """Continue the prompt that is computed in chunks: `add_chunked_req` (:1128).

        Its chunk is bounded by the memory that the running requests' estimate leaves, and by nothing but the chunk's
        size if that is none, for it must go on to free its KV (prefill_budget.py:142).
        """
        for request in self.view.prefilling:
            if self.chunk_left <= 0:
                self._hold_decodes()  # the real chunk would be empty or negative
            left = min(self.chunk_left, int(self.memory_left))
            tokens = self._within_memory(request, left if left > 0 else self.chunk_left)
            if not tokens:
                self._hold_decodes()
                tokens = self._within_memory(request, self.chunk_left)
            self.is_cut = tokens < request.num_tokens_to_compute
            if tokens:
                blocks = cdiv(request.num_computed_tokens + tokens, self.size) - request.num_blocks
                self.chunks.append(Chunk(request, tokens))
                self._reserve(tokens, 0 if self.is_cut else self._answer(request), blocks)

    def continue_alone(self, freed: int) -> None:
        """Continue that prompt after all decodes have left, `freed` blocks with them."""
        self._hold_decodes()
        self.free += freed * self.size
        self.batch, self._estimate = [], 0.0
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

    def _answer(self, request: RequestView) -> int:
        """Tokens that a complete prompt reserves in the prefill that completes it, those answered included."""
        return min(request.max_tokens, CLIP_MAX_NEW_TOKENS)

    # New prompts

    def admit(self) -> None:
        """Admit requests in the queue's order until one does not fit: the loop of scheduler.py:4203."""
        running = len(self.batch) + len(self.view.prefilling)
        new = 0
        for request in self.view.waiting:
            if self.is_spent and self._verdict() is Verdict.OTHER:
                return  # a spent budget admits no request, and tries none (:4207)
            if running + new >= self.policy.slots:
                self.is_full = True
                return
            self.tried.append(request)
            verdict = self._add(request)
            new += bool(self.chunks) and self.chunks[-1].request is request
            if verdict is not Verdict.CONTINUE:
                if verdict is Verdict.NO_TOKEN:
                    self.is_full = bool(self.chunks or self.batch)
                return

    def _add(self, request: RequestView) -> Verdict:
        """`add_one_req` (:1382)."""
        if self.policy.ignore_eos and self.matches is None:
            return self._add_of_fixed_length(request)
        hits = unused = 0
        if self.matches is not None:
            hits, unused = self.matches.look(request)
        extend = request.num_tokens - hits * self.size
        self.free -= unused * self.size  # locked while it is tried
        verdict = self._select(request, hits, extend)
        if verdict is not Verdict.CONTINUE:
            self.free += unused * self.size
            return verdict
        if self.matches is not None:
            self.matches.keep(request)
        return self._verdict()

    def _select(self, request: RequestView, hits: int, extend: int) -> Verdict:
        """`_select_prefill_admission` (:1560) and its commit."""
        if not self._has_room(extend + tokens_to_come(request) + self.size):
            return Verdict.NO_TOKEN
        paged = cdiv(extend, self.unit) * self.unit
        if not self.is_chunked and self.chunks and paged >= self.input_left:
            return Verdict.OTHER
        tokens = extend
        if paged > self.chunk_left and (self.is_chunked or extend > self.chunk_left):
            # A prompt is cut if its length in whole pages exceeds the budget, and at the end of a page (:1617).
            tokens = (hits * self.size + self.chunk_left // self.unit * self.unit) // self.unit * self.unit
            tokens -= hits * self.size
            if tokens <= 0:
                return Verdict.OTHER
        self._commit(request, tokens, extend)
        return Verdict.CONTINUE

    def _add_of_fixed_length(self, request: RequestView) -> Verdict:
        """`add_one_req_ignore_eos` (:1241), where no prefix is cached: a forecast of when the others leave."""
        extend = request.num_tokens
        paged = cdiv(extend, self.size) * self.size + self.size
        left = self.free - self.allocated
        if paged > min(left, self.memory_left):
            return Verdict.NO_TOKEN
        if self._forecast is None:
            begun = [chunk.request for chunk in self.chunks]
            self._forecast = EosForecast([request, *self.batch, *begun], self.view)
        else:
            self._forecast.insert(request)
        is_alone = not (self.batch or self.chunks)  # refused there, it would wait for ever, as it does in SGLang
        if not (is_alone or self._forecast.fits(left - paged)):
            return Verdict.NO_TOKEN
        if extend > self.chunk_left and self.chunks and not self.is_chunked:
            return Verdict.OTHER
        if self.chunk_left <= 0:
            return Verdict.OTHER
        self._commit(request, min(extend, self.chunk_left), extend)
        return self._verdict()

    def _commit(self, request: RequestView, tokens: int, extend: int) -> None:
        self.chunks.append(Chunk(request, tokens))
        self.is_cut = tokens < extend
        self._reserve(tokens, 0 if self.is_cut else self._answer(request), cdiv(tokens, self.size))
