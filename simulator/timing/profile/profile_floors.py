"""Straight lines below the prices of a profile (`simulator.timing.floor`).

What depends on the number of tokens alone is asked for each number. Attention is physics times a measured correction:

    us >= e^c x (constant + sum(terms) + roof),   c the least correction of the table, or 0

for any one of its roofs, as coefficients are 0 or more, a p-norm is at least each of its parts, and interpolation and
fading stay between the table's corrections and 0. Rows are at least as dear as the cheapest that was measured, and the
extra of unequal contexts is left out.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

import numpy as np

from simulator.timing.floor import TABULATED, StepFloor, lines_below
from simulator.timing.profile.experts import Experts
from simulator.timing.profile.step import PrefillTable
from simulator.timing.profile.surface import Surface

if TYPE_CHECKING:
    from simulator.timing.profile.prices import StepPrices
    from simulator.timing.profile.profile_schema import Profile


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
