"""Token counts, times and images drawn from their distributions; outputs whose ranks go with those of the inputs.

Both lengths of a request are the inverse CDFs of uniform numbers. If these numbers are the CDFs of two normal variables
with the correlation 2 sin(pi rho / 6), the rank correlation (Spearman's) of the lengths is rho, whatever their
distributions (Kruskal, Ordinal measures of association, JASA 53 (1958) 814-861). Rounding to whole tokens makes ties,
which weaken it where lengths have few values.
"""

import math
from collections.abc import Callable
from typing import assert_never

import numpy as np

from scenarios import random_draws
from scenarios.schema.classes import ImagesConfig
from scenarios.schema.distributions import (
    Empirical,
    ExponentialTime,
    Fixed,
    LengthConfig,
    LogNormal,
    LogNormalPareto,
    LogNormalTime,
    Normal,
    TimeConfig,
    Uniform,
    UniformTime,
)
from simulator.request import Image
from simulator.workload import Floats, Ints

_PIECE = 1 << 17  # lengths that are worked out together
_BELOW_ONE = np.nextafter(1.0, 0.0)


def draw_lengths(config: LengthConfig, rng: np.random.Generator, count: int) -> Ints:
    """`count` lengths in tokens, at least 1 and within the distribution's bounds.

    Each length is the inverse CDF, cut at the bounds, of one uniform number: so the first k of n lengths are the
    same for every n, and with another median or bound the same requests are the long ones (common random numbers).
    Lengths that are equally likely are drawn as whole numbers.
    """
    if isinstance(config, Uniform):
        return rng.integers(config.min, config.max, size=count, endpoint=True)
    if isinstance(config, Empirical) and config.quantiles is None:
        kept = np.array(config.kept_values(), dtype=np.int64)
        return kept[rng.integers(0, len(kept), size=count)]
    lengths = np.empty(count, dtype=np.int64)
    for start in range(0, count, _PIECE):
        piece = lengths[start : start + _PIECE]
        piece[:] = lengths_at(config, rng.random(len(piece)))
    return lengths


def lengths_at(config: LengthConfig, uniform: Floats) -> Ints:
    """The inverse CDF of the lengths, cut at the bounds, at each of the uniform numbers."""
    if isinstance(config, Fixed):
        return np.full(len(uniform), config.value, dtype=np.int64)
    if isinstance(config, Uniform):
        return config.min + _place(uniform, config.max - config.min + 1)
    if isinstance(config, Empirical) and config.quantiles is None:
        kept = np.sort(np.array(config.kept_values(), dtype=np.int64))
        return kept[_place(uniform, len(kept))]
    tokens = _log_normal_pareto(config, uniform) if isinstance(config, LogNormalPareto) else _cut(config, uniform)
    # the cut leaves nothing beyond the bounds but a last bit
    return np.clip(np.rint(tokens), config.lowest, config.highest).astype(np.int64)


def _place(uniform: Floats, count: int) -> Ints:
    """Each uniform number as one of `count` equal parts, from 0."""
    return np.minimum((uniform * count).astype(np.int64), count - 1)


def _cut(config: Normal | LogNormal | Empirical, uniform: Floats) -> Floats:
    """Quantiles of the distribution given that it lies within its bounds."""
    low, high = config.limits()
    probability = np.minimum(low + (high - low) * uniform, _BELOW_ONE)
    if isinstance(config, Normal):
        return config.mean + config.sd * random_draws.inverse_cdf(probability)
    if isinstance(config, LogNormal):
        mu, sigma = config.mu_sigma()
        return np.exp(mu + sigma * random_draws.inverse_cdf(probability))
    if isinstance(config, Empirical):
        return np.interp(probability, *config.points())
    assert_never(config)


def _log_normal_pareto(config: LogNormalPareto, uniform: Floats) -> Floats:
    """The lower 1 - tail_share of the uniform numbers give the body, the rest the tail: x = x0 (1 - u)^(-1/alpha)."""
    mu, sigma = config.mu_sigma()
    low, high = config.body_limits()
    body_share = 1.0 - config.tail_share
    in_tail = uniform >= body_share
    tokens = np.empty_like(uniform)
    body = uniform[~in_tail] / body_share
    tokens[~in_tail] = np.exp(mu + sigma * random_draws.inverse_cdf(np.minimum(low + (high - low) * body, _BELOW_ONE)))
    tail = (uniform[in_tail] - body_share) / config.tail_share
    tokens[in_tail] = config.threshold * (1.0 - config.tail_limit() * tail) ** (-1.0 / config.alpha)
    return tokens


def draw_outputs(
    output: LengthConfig,
    inputs: LengthConfig,
    input_tokens: Ints,
    corr: float,
    stream: Callable[[str], np.random.Generator],
) -> Ints:
    """An output length for each input, with the rank correlation `corr`; with 0 those of `draw_lengths`.

    `input_tokens` are what `draw_lengths` made from the stream "input": none of them moves.
    """
    count = len(input_tokens)
    if corr == 0:
        return draw_lengths(output, stream("output"), count)
    normal_corr = 2.0 * math.sin(math.pi * corr / 6.0)
    own = random_draws.inverse_cdf(_inside(stream("output").random(count)))
    given = random_draws.inverse_cdf(_inside(_ranks(inputs, input_tokens, stream)))
    joint = normal_corr * given + math.sqrt(max(0.0, 1.0 - normal_corr * normal_corr)) * own
    return lengths_at(output, random_draws.cdf_of(joint))


def _ranks(config: LengthConfig, tokens: Ints, stream: Callable[[str], np.random.Generator]) -> Floats:
    """Uniform numbers in the order of the lengths: those that made them; for lengths drawn as whole numbers, others."""
    if isinstance(config, Uniform):
        return (tokens - config.min + stream("input ties").random(len(tokens))) / (config.max - config.min + 1)
    if isinstance(config, Empirical) and config.quantiles is None:
        values = np.sort(np.array(config.kept_values(), dtype=np.int64))
        below, upto = np.searchsorted(values, tokens, "left"), np.searchsorted(values, tokens, "right")
        ranks: Floats = (below + (upto - below) * stream("input ties").random(len(tokens))) / len(values)
        return ranks
    return stream("input").random(len(tokens))


def _inside(uniform: Floats) -> Floats:
    """Raise 0 to the least number above it: 0 is the CDF of no normal variable."""
    return np.maximum(uniform, 2.0**-54)


# Times drawn from a distribution.


def draw_times(config: TimeConfig, rng: np.random.Generator, count: int) -> Floats:
    """`count` times in seconds, each the inverse CDF of a uniform number: the first k are the same for all counts."""
    if isinstance(config, (int, float)):
        return np.full(count, float(config))
    uniform = rng.random(count)
    if isinstance(config, ExponentialTime):
        return -np.log1p(-uniform) * config.mean_s
    if isinstance(config, UniformTime):
        return config.min_s + (config.max_s - config.min_s) * uniform
    if isinstance(config, LogNormalTime):
        z = random_draws.inverse_cdf(np.clip(uniform, 1e-300, _BELOW_ONE))
        times: Floats = config.median_s * np.exp(config.sigma * z)
        return times
    assert_never(config)


# Images of a class's requests, drawn.


def draw_images(
    config: ImagesConfig, class_name: str, behind: int, count: int, stream: Callable[[str], np.random.Generator]
) -> list[tuple[Image, ...]]:
    """The images of each of `count` prompts, from token `behind` on. More prompts never change the first ones."""
    with_any = stream("images").random(count) < config.share
    number = config.count
    counts = np.full(count, number) if isinstance(number, int) else draw_lengths(number, stream("image_count"), count)
    counts = np.where(with_any, counts, 0)
    total = int(counts.sum())
    if config.different is None:
        sizes = draw_lengths(config.tokens, stream("image_tokens"), total)
        which = np.arange(total)
    else:
        which = stream("image").integers(config.different, size=total)
        sizes = draw_lengths(config.tokens, stream("image_tokens"), config.different)[which]
    entries = iter(zip(which.tolist(), sizes.tolist(), strict=True))
    found = []
    for images in counts.tolist():
        at, mine = behind, []
        for _ in range(images):
            name, tokens = next(entries)
            mine.append(Image(f"{class_name}-{name + 1}", at, tokens))
            at += tokens
        found.append(tuple(mine))
    return found
