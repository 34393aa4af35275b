"""How many of a step's drafts are accepted: data of the workload, and public measurements of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final, Protocol

import numpy as np

from simulator.request import Request

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
