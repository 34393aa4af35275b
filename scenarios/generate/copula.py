"""Outputs whose ranks go with those of the inputs: a Gaussian copula.

Both lengths of a request are the inverse CDFs of uniform numbers. If these numbers are the CDFs of two normal variables
with the correlation 2 sin(pi rho / 6), the rank correlation (Spearman's) of the lengths is rho, whatever their
distributions (Kruskal, Ordinal measures of association, JASA 53 (1958) 814-861). Rounding to whole tokens makes ties,
which weaken it where lengths have few values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from scenarios import normal
from scenarios.generate.lengths import draw_lengths, lengths_at
from scenarios.schema.lengths import Empirical, LengthConfig, Uniform
from simulator.workload import Floats, Ints


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
    own = normal.inverse_cdf(_inside(stream("output").random(count)))
    given = normal.inverse_cdf(_inside(_ranks(inputs, input_tokens, stream)))
    joint = normal_corr * given + math.sqrt(max(0.0, 1.0 - normal_corr * normal_corr)) * own
    return lengths_at(output, normal.cdf_of(joint))


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
