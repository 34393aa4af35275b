"""Speculative decoding: what a server is told of it, what it takes ahead, and what a policy sees of it."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Final, Literal, NamedTuple, Protocol

from annotated_types import Ge, Le, doc

from simulator.division import cdiv
from simulator.parameters import Count, check_parameters
from simulator.request import RequestView
from simulator.speculative.acceptance import Acceptance

# Speculative decoding as a server is told of it, and what a method fixes for the scheduler.
#
# Names, limits and rules are vLLM's (0.33: `SpeculativeConfig` in vllm/config/speculative.py, `VllmConfig` in
# vllm/config/vllm.py). A drafter proposes tokens, and the model verifies them in its next step beside the sampled
# one.

Method = Literal["ngram", "draft_model", "eagle", "eagle3", "mtp"]
_EAGLE_KINDS: Final = ("eagle", "eagle3", "mtp")
Range = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Drafter and number of drafts. ValueError, which begins with the parameter's name, for what vLLM does not start.

    `num_speculative_tokens` of 0 is no drafting. `num_speculative_tokens_per_batch_size` has entries (first, last, K):
    a step that schedules so many requests drafts K tokens for each; gaps and the end keep the K before.
    `num_nextn_predict_layers` is the model's number of MTP modules, as its config.json names it. With
    `parallel_drafting` a draft model proposes all tokens in one pass (PARD). `model_runner` is vLLM's runner: v2 in
    live servers on GPUs, unless a feature forbids it. `eagle_topk` and `num_draft_tokens` are SGLang's
    (`tokens_ahead`): a tree, of which `num_speculative_tokens` is the depth.
    """

    method: Annotated[Method, doc("how drafts are proposed")]
    num_speculative_tokens: Annotated[int, Ge(0), Le(1000), doc("drafts a step, at most")]
    num_speculative_tokens_per_batch_size: Annotated[
        Sequence[Range] | None, doc("drafts by the requests of a step: [first, last, drafts]")
    ] = None
    num_nextn_predict_layers: Annotated[Count, doc("MTP modules of the model")] = 1
    parallel_drafting: Annotated[bool, doc("the draft model proposes all tokens in one pass")] = False
    disable_lookahead_block_hashes: Annotated[bool, doc("EAGLE and MTP: hashes cover their block alone")] = False
    disable_eagle_block_drop: Annotated[bool, doc("EAGLE and MTP: keep the last block of a prefix hit")] = False
    model_runner: Annotated[Literal["v1", "v2"], doc("vLLM's model runner")] = "v2"
    eagle_topk: Annotated[Count, doc("SGLang: branches that a step of its tree of drafts opens; 1: a chain")] = 1
    num_draft_tokens: Annotated[
        Count | None, doc("SGLang: tokens of its tree, the sampled one among them; null: those of the chain")
    ] = None

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.num_speculative_tokens_per_batch_size is not None:
            ranges = _ranges(self.num_speculative_tokens_per_batch_size)
            object.__setattr__(self, "num_speculative_tokens_per_batch_size", ranges)
        drafts, modules = self.num_speculative_tokens, self.num_nextn_predict_layers
        if self.method == "mtp" and drafts > modules and drafts % modules:
            raise ValueError(f"num_speculative_tokens must be a multiple of the {modules} MTP modules, not {drafts}")
        if self.method != "mtp" and modules > 1:
            raise ValueError(f"num_nextn_predict_layers is for method mtp, not {self.method}")
        if self.parallel_drafting and self.method != "draft_model":
            raise ValueError(f"parallel_drafting is for method draft_model, not {self.method}")
        if self.parallel_drafting and self.model_runner != "v1":
            raise ValueError("parallel_drafting needs model_runner v1: the runner v2 does not have it")
        for name in ("disable_lookahead_block_hashes", "disable_eagle_block_drop"):
            if getattr(self, name) and not self.drafts_from_hidden:
                raise ValueError(f"{name} is for the methods {', '.join(_EAGLE_KINDS)}, not {self.method}")
        if self.eagle_topk == 1:
            if self.num_draft_tokens not in (None, drafts + 1):
                raise ValueError(f"num_draft_tokens of a chain is {drafts + 1}, one more than its drafts")
        elif self.method == "ngram" or (self.num_draft_tokens or 0) < 2:
            raise ValueError("eagle_topk above 1 needs a drafter other than ngram, and num_draft_tokens of 2 or more")

    @property
    def drafts_from_hidden(self) -> bool:
        """The drafter reads the model's hidden states and shares its KV blocks: EAGLE and MTP."""
        return self.method in _EAGLE_KINDS

    @property
    def has_varying_drafts(self) -> bool:
        """A lookup proposes as many drafts as it finds; every other drafter proposes as many as it is asked for."""
        return self.method == "ngram" and self.model_runner == "v1"

    @property
    def num_lookahead_tokens(self) -> int:
        """Tokens behind those of a step for which a request owns blocks: the drafter writes KV there."""
        return 0 if self.method == "ngram" else self.num_speculative_tokens

    @property
    def draft_slots(self) -> int:
        """Input positions that a scheduled request takes beyond its tokens (`max_num_new_slots_for_drafting`)."""
        if self.method != "draft_model":
            return 0
        return self.num_speculative_tokens if self.parallel_drafting else 1

    @property
    def num_prefill_lookahead_tokens(self) -> int:
        """Tokens of a prompt beyond a chunk that the drafter reads: one, or one for each of several MTP modules."""
        if not self.drafts_from_hidden:
            return 0
        is_multi_module = self.method == "mtp" and min(self.num_nextn_predict_layers, self.num_speculative_tokens) > 1
        return self.num_speculative_tokens if is_multi_module else 1

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its hash in the prefix cache covers too."""
        if self.disable_lookahead_block_hashes or self.disable_eagle_block_drop:
            return 0
        return self.num_prefill_lookahead_tokens

    @property
    def drops_hit_block(self) -> bool:
        """The last block of every prefix hit is computed again: its KV of the drafter is that of another token."""
        return self.drafts_from_hidden and self.disable_lookahead_block_hashes and not self.disable_eagle_block_drop

    @property
    def can_skip_drafts(self) -> bool:
        """No drafts are proposed in steps after which no request would verify any."""
        return self.model_runner == "v2" and self.num_lookahead_tokens > 0

    def in_ranks(self) -> "SpeculativeConfig":
        """The configuration of a data-parallel rank: its batch has no say in the number of drafts.

        vLLM turns that off (0.33, vllm/config/vllm.py:1110), as ranks would choose different numbers.
        """
        return replace(self, num_speculative_tokens_per_batch_size=None)

    def with_transfers(self) -> "SpeculativeConfig":
        """The configuration of a server that sends or takes KV: hashes cover their block alone (vllm.py:688)."""
        return replace(self, disable_lookahead_block_hashes=self.drafts_from_hidden)

    def drafts_of(self, num_requests: int) -> int:
        """Drafts that a step of so many scheduled requests proposes for each."""
        ranges = self.num_speculative_tokens_per_batch_size
        if not ranges or not num_requests:
            return self.num_speculative_tokens
        place = bisect_right(ranges, num_requests, key=lambda entry: entry[0])
        return min(ranges[place - 1][2], self.num_speculative_tokens)

    def check_engine(
        self,
        *,
        max_num_batched_tokens: int,
        long_prefill_token_threshold: int,
        block_size: int,
        caches_prefixes: bool,
        async_scheduling: bool,
    ) -> None:
        """Raise ValueError for an engine in which vLLM would not start, or would fail or hang later."""
        drafts, tail = self.num_speculative_tokens, self.num_prefill_lookahead_tokens
        if not drafts:
            return
        if self.eagle_topk > 1:
            raise ValueError("eagle_topk is SGLang's: vLLM verifies chains of drafts, no trees")
        if async_scheduling and self.has_varying_drafts:
            raise ValueError("async_scheduling needs model_runner v2 with method ngram: the runner v1 turns it off")
        if max_num_batched_tokens <= max(self.num_lookahead_tokens, self.draft_slots):
            least = max(self.num_lookahead_tokens, self.draft_slots) + 1
            raise ValueError(
                f"max_num_batched_tokens must be at least {least:,} with {drafts} drafts, not {max_num_batched_tokens}"
            )
        threshold = long_prefill_token_threshold
        pads = self.num_speculative_tokens_per_batch_size is None
        if pads and 0 < threshold <= drafts:
            raise ValueError(
                f"long_prefill_token_threshold must be 0 or at least {drafts + 1}, 1 + num_speculative_tokens, not "
                f"{threshold}: vLLM stops with an assertion (scheduler.py:1579)"
            )
        if tail > 1:
            if caches_prefixes and block_size < drafts:
                raise ValueError(f"block_size must be at least num_speculative_tokens = {drafts}, not {block_size}")
            least = min(max_num_batched_tokens, threshold or max_num_batched_tokens)
            if least < tail:
                raise ValueError(
                    f"num_speculative_tokens is {drafts}, and a step takes at most {least} tokens of a prompt: its "
                    "end would never be computed"
                )


def _ranges(given: Sequence[Range]) -> tuple[Range, ...]:
    """The ranges of batch sizes in order; ValueError unless each is (first, last, drafts) and the first begins at 1."""
    name = "num_speculative_tokens_per_batch_size"
    found: list[Range] = []
    for entry in given:
        if not isinstance(entry, (list, tuple)) or len(entry) != 3 or not all(type(n) is int for n in entry):
            raise ValueError(f"{name} must have entries [first, last, drafts], not {entry!r}")
        first, last, drafts = entry
        if not 1 <= first <= last or drafts < 0:
            raise ValueError(f"{name} must have 1 <= first <= last and drafts of 0 or more, not {list(entry)}")
        found.append((first, last, drafts))
    found.sort()
    if not found or found[0][0] != 1:
        raise ValueError(f"{name} must begin at batch size 1")
    for before, after in pairwise(found):
        if after[0] <= before[1]:
            raise ValueError(f"{name} has ranges that overlap: {list(before)} and {list(after)}")
    return tuple(found)


# Speculative decoding (v2) of SGLang: how much memory it takes ahead, and what a step verifies.
#
# `get_alloc_len_per_decode` and its neighbours in python/sglang/srt/mem_cache/allocation_sizing.py, limits in
# arg_groups/speculative_hook.py (SGLang 0.5.23). `num_speculative_tokens` is its `speculative_num_steps`: the
# drafts of the longest branch, all of which may be accepted.

_IN_MIXED_STEPS = ("eagle", "eagle3", "mtp")


def verified_tokens(config: SpeculativeConfig) -> int:
    """Return the tokens of a request that a decode step computes: its tree, or the sampled token and the chain."""
    return config.num_draft_tokens or config.num_speculative_tokens + 1


def most_accepted(config: SpeculativeConfig) -> int:
    """Return how many drafts of a request a step accepts at most."""
    return min(config.num_speculative_tokens, verified_tokens(config) - 1)


def tokens_ahead(config: SpeculativeConfig, page_size: int) -> int:
    """Return the tokens behind its committed ones for which a request owns memory in a decode step.

    Twice what one step may write, since with overlap the committed tokens are those of a step before (:65). In a tree
    each branch writes whole pages of its own where pages hold several tokens (:49).
    """
    steps, branches, verified = config.num_speculative_tokens, config.eagle_topk, verified_tokens(config)
    if page_size == 1 or branches == 1:
        return 2 * max(steps * branches, verified)
    return 2 * max(cdiv(page_size - 1 + steps, page_size) * page_size * branches, verified)


def check_server(config: SpeculativeConfig, *, mixes: bool, max_num_seqs: int, max_num_batched_tokens: int) -> None:
    """Raise ValueError, which begins with the parameter's name, for what SGLang does not do or is not modelled."""
    for name in ("num_speculative_tokens_per_batch_size", "parallel_drafting", "disable_lookahead_block_hashes",
                 "disable_eagle_block_drop"):  # fmt: skip
        if getattr(config, name):
            raise ValueError(f"{name} is vLLM's: SGLang does not have it")
    if mixes and config.method not in _IN_MIXED_STEPS:
        raise ValueError(f"method {config.method} turns enable_mixed_chunk off in SGLang: set it to false")
    if not config.num_speculative_tokens:
        return
    tokens = max_num_seqs * verified_tokens(config)
    if tokens > max_num_batched_tokens:
        raise ValueError(
            f"num_speculative_tokens makes steps of up to {tokens:,} tokens with max_num_seqs = {max_num_seqs:,}: "
            f"max_num_batched_tokens must be as large, not {max_num_batched_tokens:,}"
        )


# A KV connector as a policy sees it: KV that need not be computed, since another memory or server has it.


class Found(NamedTuple):
    """Tokens behind the local prefix hit that can be loaded; between steps (`later`), or within the step."""

    tokens: int
    later: bool


class ConnectorView(Protocol):
    """Requests whose KV is elsewhere. Reading it changes nothing."""

    @property
    def holding(self) -> Collection[RequestView]:
        """Requests that neither wait nor run, and hold blocks for their load; in the order of the queue."""

    def look(self, request: RequestView, computed_tokens: int) -> Found | None:
        """What can be loaded behind these tokens of a waiting request; None if that is not known yet."""

    def is_loading(self, request: RequestView) -> bool:
        """True if the KV of a holding request is on its way."""

    def is_settled(self, request: RequestView) -> bool:
        """True if the KV of a holding request is in its blocks, and known to the prefix cache."""

    def is_fenced(self, request: RequestView) -> bool:
        """True if a running request's blocks cannot be freed yet, as a step in flight writes them."""


Send = Callable[[int, int], float]
"""Sends so many blocks of the request with this row, which is no transfer where there are none; returns its end."""


class Loader(Protocol):
    """A replica's connector as its fleet sees it."""

    def attach(self, send: Send) -> bool:
        """Let the fleet send what is loaded; returns whether the KV comes from another server."""

    def offer(self, row: int, *, fails: bool) -> None:
        """Another server has a request's KV, whose transfer may fail."""


# Speculative decoding of a replica: what its policy sees of it, and what the drafter and the model do.


class Proposals(Protocol):
    """How many drafts a lookup finds: the same whatever a policy does."""

    def proposed(self, row: int, sampling_step: int) -> int:
        """Drafts found after the request's sampling step of this number, from 0; the engine caps it."""


class DraftingView(RequestView, Protocol):
    """A request whose drafts are verified, as a policy sees it: `num_tokens_to_compute` counts its drafts."""

    @property
    def num_output_placeholders(self) -> int:
        """Tokens and drafts of the step in flight, of which it is not known yet how many there will be."""

    @property
    def stale_tokens(self) -> int:
        """Tokens in flight that were scheduled before its last preemption."""


class Drafting(NamedTuple):
    """Speculative decoding as a policy sees it. `max_model_len` is the model's longest context, in tokens.

    A replica with a KV `connector` is planned like one with drafts, request by request, and has none.
    """

    config: SpeculativeConfig
    max_model_len: int
    connector: ConnectorView | None = None


class Speculation(NamedTuple):
    """Speculative decoding of a replica. A lookup of n-grams (runner v1) finds all drafts without `proposals`."""

    config: SpeculativeConfig
    acceptance: Acceptance
    max_model_len: int
    proposals: Proposals | None = None
