"""The form of a kernel's time: a launch, work that adds up, and the slowest resource.

    us = constant + sum(coefficient x feature) + pnorm(roof, roof, ...),   roof = sum(coefficient x feature)

All coefficients are at least 0, so a step that does more never takes less. Features are counts of a step; a
coefficient is microseconds for one of them. With p = 1 resources are used one after another, with a large p at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from simulator.timing.profile.arithmetic import Kernel, Weights
from simulator.timing.profile.counts import TILE

Sum = tuple[tuple[str, float], ...]  # coefficients by feature, in a fixed order: floats are added in it


@dataclass(frozen=True, slots=True)
class Physics:
    """A kernel's time in microseconds. Features may be numbers, or arrays of equal shape."""

    constant_us: float
    terms: Sum = ()
    roofs: tuple[Sum, ...] = ()
    p: float = 4.0

    def us(self, features: Mapping[str, Any]) -> Any:
        """Microseconds for these features: a float for numbers, an array for arrays."""
        total: Any = self.constant_us
        for name, coefficient in self.terms:
            total = total + coefficient * features[name]
        if not self.roofs:
            return total
        powers: Any = 0.0
        for roof in self.roofs:
            work: Any = 0.0
            for name, coefficient in roof:
                work = work + coefficient * features[name]
            if len(self.roofs) == 1:
                return total + work
            powers = powers + work**self.p
        return total + powers ** (1.0 / self.p)

    def kernel(self, features: Sequence[str]) -> Kernel:
        """This physics for numbers in this order. ValueError where one is not among them."""

        def placed(coefficients: Sum) -> Weights:
            return tuple((features.index(name), coefficient) for name, coefficient in coefficients)

        p = self.p if len(self.roofs) > 1 else 1.0  # of one roof the norm is the roof itself
        return self.constant_us, placed(self.terms), tuple(placed(roof) for roof in self.roofs), p


def decode_features(seqs: Any, context: Any) -> dict[str, Any]:
    """Counts of batches of equal decodes."""
    return {"seqs": seqs, "keys": seqs * context, "chain": context}


def prompt_features(
    chunks: Any, tokens: Any, pairs: Any, longest: Any, seqs: Any, context: Any, knee_keys: float = inf
) -> dict[str, Any]:
    """Counts of steps with prompt chunks."""
    keys = seqs * context
    return {
        "seqs": seqs,
        "keys": keys,
        "missed": keys * np.clip(np.log2(np.maximum(keys / knee_keys, 0.25)) + 0.5, 0.0, 1.0),
        "pairs": pairs,
        "tokens": tokens,
        "tiles": (chunks + seqs) * -(-tokens // (chunks * TILE)),
        "chain": np.maximum(longest, context),
    }
