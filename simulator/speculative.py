"""Speculative decoding: what a method fixes, and how many drafts are accepted."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from typing import Annotated, Final, Literal, NamedTuple, Protocol

import numpy as np
from annotated_types import Ge, Le, doc

from simulator.division import cdiv
from simulator.parameters import Count, check_parameters
from simulator.request import Request, RequestView

# How many of a step's drafts are accepted: data of the workload, and public measurements of it.

# How many of a step's drafts are accepted: data of the workload, which no policy sees.
#
# A law is a list of unconditional rates: `rates[i]` is the share of verify steps in which at least i + 1 drafts are
# accepted, so that a step delivers 1 + sum(rates) tokens on average. vLLM's synthetic acceptance has the same form
# (`SpeculativeConfig` in vllm/config/speculative.py, 0.33): it walks the positions, accepts position i with
# probability rates[i] / rates[i - 1], and stops at the first failure.

_BLOCK_BITS: Final = 6
_BLOCK: Final = 1 << _BLOCK_BITS  # draws of a request that are made together
_BLOCKS_KEPT: Final = 8192


class Acceptance(Protocol):
    """Accepted drafts by request and verify step: the same whatever the policy, the batch, or the way time passes."""

    def enter(self, request: Request) -> None:
        """A request has arrived, about whose verify steps `accepted` will be asked."""

    def accepted(self, row: int, verify_step: int) -> int:
        """Leading drafts that the model would accept, however many were proposed: the caller takes the smaller.

        `row` is the request's place in the workload, `verify_step` the number of its verify steps before this one.
        """


class DrawnAcceptance:
    """Acceptance by a law. Draws come from a counter-based generator: any of them can be asked for at any time.

    `key` names the stream, 64 bits. ValueError for rates that are no law.
    """

    def __init__(self, rates: Sequence[float], key: int) -> None:
        check_rates(rates)
        self.rates = tuple(rates)
        self._ascending = -np.asarray(self.rates, dtype=np.float64)
        self._key = key
        self._blocks: dict[int, list[int]] = {}

    def enter(self, request: Request) -> None:
        pass

    def accepted(self, row: int, verify_step: int) -> int:
        block = self._blocks.get(row << 32 | verify_step >> _BLOCK_BITS)
        if block is None:
            block = self._draw(row, verify_step >> _BLOCK_BITS)
        return block[verify_step & _BLOCK - 1]

    def _draw(self, row: int, number: int) -> list[int]:
        counter = np.array([0, number, 0, 0], dtype=np.uint64)
        key = np.array([self._key, row], dtype=np.uint64)
        uniform = np.random.Generator(np.random.Philox(counter=counter, key=key)).random(_BLOCK)
        block: list[int] = np.searchsorted(self._ascending, -uniform, side="left").tolist()  # rates above the draw
        if len(self._blocks) >= _BLOCKS_KEPT:
            self._blocks.clear()  # those of running requests are drawn again, the same
        self._blocks[row << 32 | number] = block
        return block


class RequestAcceptance:
    """Acceptance that depends on the request: by its own list in turn, else by its class, else as usual."""

    def __init__(self, usual: Acceptance, by_class: Mapping[str, Acceptance]) -> None:
        self._usual = usual
        self._by_class = by_class
        self._listed: dict[int, tuple[int, ...]] = {}
        self._classed: dict[int, Acceptance] = {}

    def enter(self, request: Request) -> None:
        if request.accepted_drafts:
            self._listed[request.row] = request.accepted_drafts
        elif request.class_name in self._by_class:
            self._classed[request.row] = self._by_class[request.class_name]

    def accepted(self, row: int, verify_step: int) -> int:
        listed = self._listed.get(row)
        if listed is not None:
            return listed[verify_step % len(listed)]
        return self._classed.get(row, self._usual).accepted(row, verify_step)


def check_rates(rates: Sequence[float]) -> None:
    """Raise ValueError unless the rates lie within 0 and 1, none above the one before it."""
    for place, rate in enumerate(rates):
        if not (isfinite(rate) and 0 <= rate <= 1):
            raise ValueError(f"a rate is a share from 0 to 1, not {rate:g}")
        if place and rate > rates[place - 1]:
            before = rates[place - 1]
            raise ValueError(f"rates do not grow with the position, and {rate:g} comes after {before:g}")


def least_variance(length: float, drafts: int) -> tuple[float, ...]:
    """The rates of a mean acceptance length with the least variance: vLLM's and SGLang's law for a mean.

    floor(length - 1) drafts are accepted always, one more with the probability that is left. ValueError outside of 1
    to drafts + 1.
    """
    if not 1 <= length <= drafts + 1:
        raise ValueError(f"a mean length with {drafts} drafts lies within 1 and {drafts + 1}, and is not {length:g}")
    accepted = length - 1
    full = int(accepted)
    return (*[1.0] * full, accepted - full, *[0.0] * drafts)[:drafts]


def geometric(length: float, drafts: int) -> tuple[float, ...]:
    """The rates of a mean acceptance length where each draft is accepted with the same probability.

    That probability p solves 1 + p + ... + p^drafts = length, by bisection.
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**n for n in range(drafts + 1)) < length else (low, middle)
    return tuple(low**position for position in range(1, drafts + 1))


def of_curve(lengths: Sequence[float]) -> tuple[float, ...]:
    """The rates of mean acceptance lengths with 1, 2, ... drafts; their sum is that of the last length.

    What one more draft adds approximates the rate of its position. Measured lengths do not always give rates that fall:
    neighbours in the wrong order share their mean (isotonic regression, which keeps the sum), and where the longest
    drafts lower the length, the rates of all positions fall by one factor.
    """
    pools: list[tuple[float, int]] = []
    for step in np.diff(lengths, prepend=1.0).tolist():
        pool = (step, 1)
        while pools and pools[-1][0] / pools[-1][1] < pool[0] / pool[1]:
            before = pools.pop()
            pool = (before[0] + pool[0], before[1] + pool[1])
        pools.append(pool)
    rates = [max(0.0, total / count) for total, count in pools for _ in range(count)]
    factor = (lengths[-1] - 1) / sum(rates) if sum(rates) else 0.0
    return tuple(min(1.0, rate * factor) for rate in rates)


# Public measurements of how many drafts are accepted, by model, drafter and number of drafts.
#
# Lengths: SemiAnalysisAI/InferenceX, golden_al_distribution (Apache-2.0, commits 843c6254ff69, 1a3739748e76,
# 5625e8038c3a and 4b2d885b44d6). Tokens that a verify step delivers, the model's own among them, on SPEED-Bench
# (arXiv 2604.09557), category coding, 80 prompts, up to 4,096 output tokens, on B300 unless said. Rates:
# vllm-project/vllm, the baselines of its test of acceptance lengths (Apache-2.0, commit 029ba37503c5): MT-Bench, 80
# prompts, 256 output tokens, greedy. The figures alone are taken. A mean says nothing of the spread; `of_curve`
# says how rates follow.

_CODING = "SPEED-Bench, coding, InferenceX (Apache-2.0)"
_CHAT = "MT-Bench, greedy, vLLM's tests (Apache-2.0)"


@dataclass(frozen=True, slots=True)
class AcceptancePreset:
    """A measurement: mean lengths for 1, 2, ... drafts, or one for `drafts` of them, or rates by position."""

    model: str
    method: str
    of: str
    lengths: Sequence[float] = ()
    at: tuple[int, float] | None = None
    rates: Sequence[float] = ()

    @property
    def most_drafts(self) -> int:
        """The most drafts that were measured."""
        return self.at[0] if self.at is not None else len(self.lengths or self.rates)

    def rates_of(self, drafts: int) -> tuple[float, ...]:
        """The rates by position with so many drafts, at most `most_drafts`; a single mean has the geometric law."""
        if self.at is not None:
            return geometric(self.at[1], self.at[0])[:drafts]
        return of_curve(self.lengths[:drafts]) if self.lengths else tuple(self.rates[:drafts])


def _coding(model: str, method: str, *lengths: float, told: str = "") -> AcceptancePreset:
    return AcceptancePreset(model, method, _CODING + told, lengths)


def _chat(model: str, method: str, *rates: float) -> AcceptancePreset:
    return AcceptancePreset(model, method, _CHAT, rates=rates)


def _alone(model: str, drafts: int, length: float, told: str) -> AcceptancePreset:
    return AcceptancePreset(model, "mtp", f"InferenceX (Apache-2.0), {told}", at=(drafts, length))


_OFF = ", thinking off"
_V4, _V4_0813, _M3 = "DeepSeek V4 Pro", "DeepSeek V4 Pro 0813", "MiniMax-M3"
_K2, _K3, _QWEN = "Kimi K2.5 NVFP4", "Kimi K3", "Qwen3.5 397B-A17B NVFP4"
_LIKELY = ", probabilistic draft"
PRESETS: Mapping[str, AcceptancePreset] = {
    "dsv4_mtp": _coding(_V4, "mtp", 1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58),
    "dsv4_mtp_thinking_off": _coding(_V4, "mtp", 1.92, 2.61, 2.97, 3.00, 3.10, 3.16, 3.00, 3.11, told=_OFF),
    "dsv4-pro-0813-dspark": _coding(_V4_0813, "dspark", 1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47, told=_LIKELY),
    "glm5.2_mtp": _coding("GLM-5.2 FP8", "mtp", 1.84, 2.50, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06),
    "kimik2.5_eagle3": _coding(_K2, "eagle3", 1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77),
    "kimik2.5_eagle3_thinking_off": _coding(_K2, "eagle3", 1.80, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51, told=_OFF),
    "kimik3_dspark": _coding(_K3, "dspark", 1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88),
    "kimik3_dspark_block": _coding(
        _K3, "dspark", 1.85, 2.51, 3.00, 3.36, 3.62, 3.75, 3.84, 4.00, told=f"{_LIKELY}, block verification"
    ),
    "minimaxm3_eagle3": _coding(_M3, "eagle3", 1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74),
    "minimaxm3_eagle3_thinking_off": _coding(_M3, "eagle3", 1.84, 2.52, 2.93, 3.41, 3.59, 3.57, 3.85, 4.06, told=_OFF),
    "minimaxm3_eagle3_gqa": _coding(
        _M3, "eagle3", 1.79, 2.39, 2.78, 3.02, 3.21, 3.30, 3.52, 3.51, told=", draft with grouped queries"
    ),
    "minimaxm3_eagle3_gqa_thinking_off": _coding(
        _M3, "eagle3", 1.83, 2.46, 2.97, 3.29, 3.72, 3.76, 3.75, 3.93, told=f", draft with grouped queries{_OFF}"
    ),
    "qwen3.5_mtp": _coding(_QWEN, "mtp", 1.93, 2.73, 3.39, 3.97, 4.41, 4.80, 5.04, 5.21),
    "qwen3.5_mtp_thinking_off": _coding(_QWEN, "mtp", 1.92, 2.70, 3.33, 3.83, 4.20, 4.48, 4.73, 4.71, told=_OFF),
    "dsv4_dspark_probabilistic": _coding(
        f"{_V4} DSpark", "dspark", 1.86, 2.55, 3.08, 3.43, 3.74, 3.82, 3.86, 3.75, told=_LIKELY
    ),
    "dsv4_dspark_probabilistic_thinking_off": _coding(
        f"{_V4} DSpark", "dspark", 1.93, 2.76, 3.47, 4.10, 4.52, 4.87, 4.94, 4.94, told=_LIKELY + _OFF
    ),
    "dsv4_0813_dspark_probabilistic": _coding(
        _V4_0813, "dspark", 1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47, told=f"{_LIKELY}, values of 2026-08-17"
    ),
    "dsv4_0813_dspark_probabilistic_thinking_off": _coding(
        _V4_0813, "dspark", 1.94, 2.81, 3.58, 4.17, 4.74, 5.12, 5.24, 4.95, told=f"{_LIKELY}, 2026-08-17{_OFF}"
    ),
    "qwen3.8_27b_bf16_mtp": _alone("Qwen3.8-27B", 3, 2.52, "84,995 verify steps of vLLM at concurrency 64"),
    "qwen3.8_27b_fp8_mtp": _alone("Qwen3.8-27B FP8", 3, 2.51, "87,994 verify steps of vLLM at concurrency 64"),
    "qwen3.8_27b_int4_mtp": _alone("Qwen3.8-27B AWQ-INT4", 7, 3.67, "55,993 verify steps of SGLang on Arc Pro B70"),
    "llama-3.1-8b_eagle3": _chat("Llama-3.1-8B-Instruct", "eagle3", 0.7296, 0.5208, 0.3545),
    "qwen3-8b_eagle3": _chat("Qwen3-8B", "eagle3", 0.6541, 0.3993, 0.2020),
    "gpt-oss-20b_eagle3": _chat("gpt-oss-20b", "eagle3", 0.7165, 0.5120, 0.3337),
    "gpt-oss-20b_rocm_eagle3": _chat("gpt-oss-20b on ROCm", "eagle3", 0.7040, 0.4820, 0.3350),
    "qwen3-vl-30b-a3b_eagle3": _chat("Qwen3-VL-30B-A3B-Instruct-FP8", "eagle3", 0.2900, 0.0620, 0.0115),
    "deepseek-v3_mtp": _chat("DeepSeek-V3", "mtp", 0.882),
    "deepseek-v4-flash_mtp": _chat("DeepSeek-V4-Flash NVFP4", "mtp", 0.70),
}
"""Presets by name. Without another word, curves of coding are those with thinking on."""


def preset_of(model: str, method: str) -> str | None:
    """The name of the preset that was measured with a built-in model and a method; None where there is none."""
    name = f"{model}_{method}"
    return name if name in PRESETS else None


# Speculative decoding: what a server is told of it, what it takes ahead, and what a policy sees of it.

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
