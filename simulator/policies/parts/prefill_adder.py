"""The prompts of an SGLang prefill, and how many tokens of each.

`PrefillAdder` in python/sglang/srt/managers/schedule_policy.py (SGLang 0.5). Where that counts pages to be on the safe
side, tokens of the step are counted here as they are; its default page is one token.
"""

from __future__ import annotations

from typing import Protocol

from simulator.plan import Chunk, View, cdiv
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


class PrefillAdder:
    """A prefill under construction: what is left of the step and of memory, both in tokens."""

    def __init__(self, view: View, policy: PrefillLimits, ratio: float) -> None:
        self.view = view
        self.policy = policy
        self.ratio = ratio
        self.chunks: list[Chunk] = []
        self.is_cut = False  # a prompt does not fit the step
        self.is_refused = False  # a request found no room
        self.is_chunked = policy.chunked_prefill_size != -1
        self.decodes = view.num_decoding if policy.enable_mixed_chunk and self.is_chunked else 0
        self.begun = 0  # prompt tokens of the step
        self.running = len(view.running)  # and admitted in this step
        self.room = view.num_free_blocks * view.block_size
        if view.step_tokens is not None:  # the blocks of earlier parts are taken, and their prompts complete
            self.begun = view.step_tokens - self.decodes
            self.room -= sum([self._reserved(request) for request in view.prefilling])
        elif self.decodes:
            self.room -= view.decode_blocks_needed * view.block_size
        budget = policy.max_num_batched_tokens
        self.limit = (policy.max_prefill_tokens or budget) - self.decodes
        if self.is_chunked:
            budget = min(budget, policy.chunked_prefill_size or budget)
        self.unit = min(view.block_size, budget)
        self.budget = budget - self.decodes - self.begun

    def continue_prompt(self) -> None:
        """Continue the prompt that is computed in chunks."""
        view, size = self.view, self.view.block_size
        for request in view.prefilling:
            tokens = self._cut_to_memory(request)
            if not tokens:
                self._hold_decodes()  # they leave nothing of the step or of memory
                tokens = self._cut_to_memory(request)
            self.is_cut = tokens < request.num_tokens_to_compute
            if tokens:
                blocks = cdiv(request.num_computed_tokens + tokens, size) - request.num_blocks
                self._add(request, tokens, blocks)

    def continue_alone(self, freed: int) -> None:
        """Continue that prompt after all decodes have left, `freed` blocks with them."""
        self._hold_decodes()
        self.room += freed * self.view.block_size
        self.continue_prompt()

    def _hold_decodes(self) -> None:
        if self.decodes:
            self.budget += self.decodes
            self.room += self.view.decode_blocks_needed * self.view.block_size
            self.decodes = 0

    def _cut_to_memory(self, request: RequestView) -> int:
        owned = request.num_blocks * self.view.block_size - request.num_computed_tokens
        return max(0, min(request.num_tokens_to_compute, self.budget, owned + self.room))

    def admit(self) -> None:
        """Admit heads of the queue while they fit; with a prefix cache only one, as it alters what fits."""
        view = self.view
        if view.caches_prefixes and self.chunks:
            return
        for request in view.waiting:
            if self.running == self.policy.slots or self.is_cut or not self._take(request):
                return
            self.running += 1
            if view.caches_prefixes:
                return

    def _take(self, request: RequestView) -> bool:
        view, size = self.view, self.view.block_size
        hits, unused = view.prefix_hits(request) if view.caches_prefixes else (0, 0)
        extend = request.num_tokens - hits * size
        is_first = not (view.running or self.chunks)
        # SGLang allows a page for rounding.
        if not is_first and not self._has_room(extend + tokens_to_come(request) + (1 + unused) * size):
            self.is_refused = True
            return False
        if self.begun and (self.begun if self.is_chunked else self.begun + extend) >= self.limit:
            return False
        tokens = min(extend, self.budget)
        if tokens < extend:
            tokens -= tokens % self.unit
            if tokens <= 0 or (self.begun and not self.is_chunked):
                return False
            self.is_cut = True
        self._add(request, tokens, cdiv(tokens, size) + unused)
        return True

    def _has_room(self, tokens: int) -> bool:
        left = self.room - tokens
        if left > self.view.num_decoding * CLIP_MAX_NEW_TOKENS * self.ratio:
            return True  # whatever the running requests still need
        running = sum([tokens_to_come(request) for request in self.view.running if request.is_decoding])
        return left > running * self.ratio

    def _reserved(self, request: RequestView) -> int:
        """Tokens that a complete prompt reserves for its answer in the prefill that completes it."""
        return min(request.max_tokens, CLIP_MAX_NEW_TOKENS) + self.view.block_size

    def _add(self, request: RequestView, tokens: int, blocks: int) -> None:
        self.chunks.append(Chunk(request, tokens))
        self.budget -= tokens
        self.begun += tokens
        self.room -= blocks * self.view.block_size + self._reserved(request)
