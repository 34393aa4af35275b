"""The cost model of a profile: the kernels of a step, added up, and straight lines below that sum."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp
from typing import Any

import numpy as np

from simulator.hardware.stages import Stage
from simulator.timing.cost import TABULATED, StepCounts, StepFloor, StepShape, check_seconds, lines_below
from simulator.timing.profile.kernels import Experts, PrefillTable
from simulator.timing.profile.prices import StepPrices
from simulator.timing.profile.profile_schema import Profile
from simulator.timing.profile.surface import Surface, scaled

# The cost model of a profile: the kernels of a step, added up.
#     step_s = host + dense(tokens) + rows(sampled rows) + experts(tokens) + all-reduce(tokens)
#              + layers x (attention of all its requests together + what unequal contexts cost)
#
# A step of decodes alone takes its attention from a row that is worked out once for each number of decodes:
# straight lines over the mean context, so that a run of steps is a few arithmetic progressions.


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a profile's server that a scenario may give, beside the profile.

    `host_s` and `host_per_seq_s` replace the profile's seconds by which the host holds up a step, and those for each
    request in it (`scenarios.servers` has those of real engines).
    `cuda_graphs` False computes batches at their size, True pads them to the sizes for which vLLM captures graphs up to
    `max_capture_tokens`. `skew` and `all_reduce` leave these parts out when False: to see what they amount to.
    `samples_drafts` False is for a drafter, as in `simulator.timing.formula_cost.Roofline`. A layer of a step with
    prompts that no graph holds takes `layer_launch_s` to launch; graphs hold those of up to `launched_above` tokens.
    `prompt_times` is of a server's older version, or of kernels without tables (`scenarios.servers`): at least 1.
    """

    host_s: float | None = None
    host_per_seq_s: float | None = None
    cuda_graphs: bool = True
    max_capture_tokens: int = 512
    skew: bool = True
    all_reduce: bool = True
    samples_drafts: bool = True
    layer_launch_s: float = 0.0
    launched_above: int = 0
    prompt_times: float = 1.0


@dataclass(frozen=True, slots=True)
class ProfileCost:
    """Step costs by a profile. Implements CostModel."""

    profile: Profile
    options: Options = Options()
    _prices: StepPrices = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_seconds(self.options, "profile cost", "host_s", "host_per_seq_s")
        profile, options = self.profile, self.options
        prices = StepPrices(
            profile,
            capture_sizes(options.max_capture_tokens) if options.cuda_graphs else [],
            profile.host_s if options.host_s is None else options.host_s,
            profile.host_per_seq_s if options.host_per_seq_s is None else options.host_per_seq_s,
            skew=options.skew,
            all_reduce=options.all_reduce,
            samples_drafts=options.samples_drafts,
            launch_s=options.layer_launch_s * profile.layers,
            launched_above=options.launched_above,
            prompt_times=options.prompt_times,
        )
        object.__setattr__(self, "_prices", prices)  # the way to a derived field of a frozen dataclass

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.profile, self.options)

    @property
    def wants_context_stats(self) -> bool:
        return self.options.skew and self.profile.skew is not None

    def step_s(self, shape: StepShape) -> float:
        return self._prices.step_s(shape)

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        return self._prices.decode_run_s(shape, repeat)

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return _remarks(self.profile, steps)

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """Lines below the prices: see `profile_floors`."""
        return profile_floors(self.profile, self._prices, most_tokens)

    def stage(self, stage: Stage) -> "ProfileCost":
        """The cost of a stage of the model: its layers, each of the mean kind. Implements `Staged`."""
        whole, reduce = self.profile, self.profile.all_reduce
        part = replace(
            whole,
            layers=stage.model.layers,
            step_curves=whole.step_curves if stage.is_first else {},
            row_curves=whole.row_curves if stage.is_last else {},
            all_reduce=None if reduce is None else scaled(reduce, stage.share),
        )
        return replace(self, profile=part)

    def padded(self, tokens: int) -> int:
        return self._prices.padded(tokens)


def capture_sizes(most: int) -> list[int]:
    """The batch sizes for which vLLM captures CUDA graphs, up to `most` tokens (vllm/config/vllm.py, 0.19)."""
    sizes = [*(1, 2, 4), *range(8, min(most + 1, 256), 8), *range(256, most + 1, 16)]
    return [size for size in sizes if size <= most]


def _remarks(profile: Profile, steps: StepCounts) -> tuple[str, ...]:
    """A warning where steps were extrapolated, with how many and why; nothing where none was."""
    covered = profile.covered()
    prefilling = steps.prefill_tokens > 0
    decoding = steps.decoding + steps.held
    alone = ~prefilling & (decoding > 0)
    seqs = np.maximum(decoding, 1)
    # The contexts of a run grow by one a step: so many of its steps are still within.
    within = np.floor_divide(covered["context"] * seqs - steps.context_tokens, seqs) + 1
    beyond = {
        f"{covered['context']:,} as a mean context": np.where(
            alone, steps.repeat - np.clip(within, 0, steps.repeat), 0
        ),
        f"{covered['seqs']:,} decodes": np.where(decoding > covered["seqs"], steps.repeat, 0),
        f"{covered['tokens']:,} tokens": np.where(steps.tokens > covered["tokens"], steps.repeat, 0),
    }
    either = np.max(np.stack(list(beyond.values())), axis=0).sum() if len(steps.repeat) else 0
    if not either:
        return ()
    why = "; ".join(f"{int(counts.sum()):,} with more than {words}" for words, counts in beyond.items() if counts.any())
    total = int(steps.repeat.sum())
    return (f"warning: {int(either):,} of {total:,} steps lie outside of what {profile.name} measured: {why}",)


# Straight lines below the prices of a profile (`simulator.timing.cost`).
#
# What depends on the number of tokens alone is asked for each number. Attention is physics times a measured
# correction:
#     us >= e^c x (constant + sum(terms) + roof),   c the least correction of the table, or 0
#
# for any one of its roofs, as coefficients are 0 or more, a p-norm is at least each of its parts, and interpolation
# and fading stay between the table's corrections and 0. Rows are at least as dear as the cheapest that was
# measured, and the extra of unequal contexts is left out.


def profile_floors(profile: Profile, prices: StepPrices, most_tokens: int) -> list[StepFloor]:
    """Lines below the prices of steps of up to so many tokens; none where unequal contexts may save time."""
    skew = profile.skew
    if skew is not None and min(*skew.decode, *skew.mixed) < 0:
        return []
    rows_s = sum(min(curve.us) for curve in profile.row_curves.values()) * 1e-6  # without the host
    found = []
    for at_once, token in lines_below(*_of_tokens(profile, prices, most_tokens)):
        line = StepFloor(at_once + rows_s, token, prices.host_per_seq_s)
        found += [line.plus(attention) for attention in _attention(profile)]
    return found


def _of_tokens(profile: Profile, prices: StepPrices, most: int) -> tuple[list[int], list[float]]:
    """Numbers of tokens, and the seconds at them, between which no price lies below the straight line.

    Beyond `TABULATED` tokens the curves are straight between their counts, and a table of experts is left out.
    """
    tokens = list(range(1, min(most, TABULATED) + 1))
    seconds = [prices.of_tokens_s(count) for count in tokens]
    if most > TABULATED:
        curves = [*profile.layer_curves.values(), *profile.step_curves.values()]
        curves += [profile.all_reduce] if profile.all_reduce is not None else []
        if profile.experts is not None and not isinstance(profile.experts, Experts):
            curves.append(profile.experts.alone)
        bends = {int(count) + more for curve in curves for count in curve.counts for more in (0, 1)}
        for count in sorted({TABULATED + 1, most, *(bend for bend in bends if TABULATED < bend < most)}):
            left_out = profile.layers * profile.experts.us(count) if isinstance(profile.experts, Experts) else 0.0
            tokens.append(count)
            seconds.append(prices.of_tokens_s(count) - left_out * 1e-6)
    return tokens, seconds


def _attention(profile: Profile) -> list[StepFloor]:
    """Floors of attention in all layers: that of no decode in any step, and those of decodes and prompts together."""
    attention, a_layer_s = profile.attention, profile.layers * 1e-6
    prompt, decode = attention.prompt, attention.decode.surface
    found = []
    for roof in range(max(1, len(prompt.surface.physics.roofs))):
        at_prompt_us, of_prompt = _below(prompt.surface, roof)
        at_decode_us, keys_us = max(
            (_key(_below(decode, each)) for each in range(max(1, len(decode.physics.roofs)))), key=lambda both: both[1]
        )
        if isinstance(prompt, PrefillTable):
            pairs_us = of_prompt.get("pairs", 0.0) * (1.0 - prompt.windowed)
            beside = min(1.0, attention.beside)  # decodes, less their launch, are added to prompts
            mixed_us = at_prompt_us + beside * (at_decode_us - attention.launch_us)
            at_once_us, keys_us = min(at_decode_us, at_prompt_us, mixed_us), beside * keys_us
        else:
            pairs_us = of_prompt.get("pairs", 0.0)
            at_once_us, keys_us = min(at_decode_us, at_prompt_us), min(keys_us, of_prompt.get("keys", 0.0))
        found.append(StepFloor(0.0, pair=a_layer_s * pairs_us))
        if at_once_us >= 0:
            found.append(
                StepFloor(a_layer_s * at_once_us, decode_context=a_layer_s * keys_us, pair=a_layer_s * pairs_us)
            )
    return found


def _below(surface: Surface, roof: int) -> tuple[float, dict[str, float]]:
    """A line below a surface by one roof of its physics: microseconds at once, and for one of each feature."""
    least = exp(min(0.0, float(np.min(surface.correction))))
    physics = surface.physics
    coefficients: dict[str, float] = {}
    for name, coefficient in (*physics.terms, *(physics.roofs[roof] if physics.roofs else ())):
        coefficients[name] = coefficients.get(name, 0.0) + least * coefficient
    return least * physics.constant_us, coefficients


def _key(line: tuple[float, dict[str, float]]) -> tuple[float, float]:
    """A line's microseconds at once and for a key."""
    return line[0], line[1].get("keys", 0.0)
