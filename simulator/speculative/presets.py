"""Public measurements of how many drafts are accepted, by model, drafter and number of drafts.

Lengths: SemiAnalysisAI/InferenceX, golden_al_distribution (Apache-2.0, commits 843c6254ff69, 1a3739748e76, 5625e8038c3a
and 4b2d885b44d6). Tokens that a verify step delivers, the model's own among them, on SPEED-Bench (arXiv 2604.09557),
category coding, 80 prompts, up to 4,096 output tokens, on B300 unless said. Rates: vllm-project/vllm, the
baselines of its test of acceptance lengths (Apache-2.0, commit 029ba37503c5): MT-Bench, 80 prompts, 256 output tokens,
greedy. The figures alone are taken. A mean says nothing of the spread; `of_curve` says how rates follow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.speculative.acceptance import geometric, of_curve

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
