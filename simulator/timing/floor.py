"""Straight lines below a cost model, for proofs: what a step of some shape costs at least.

A bound on what schedulers can reach needs prices that add up. A cost model's do not: the weights are read once for all
tokens of a step, and each kernel waits for the slower of two resources. So a model gives several floors, each of them
linear in the counts of a step and nowhere above the model. Whatever follows from one floor holds for the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.timing.cost import CostModel, StepShape

Floats = NDArray[np.float64]
MOST_LINES = 6  # floors of a curve, beside the level one and the one through nought
TABULATED = 16_384  # tokens up to which a model is asked for each number of them


class StepFloor(NamedTuple):
    """A linear function of a step's counts that is at most its seconds, for every step with a token.

    Coefficients are seconds, 0 or more: of the `step` itself, of a computed `token`, of a `row` (a request in the
    step), of a KV token of a decoding request (`decode_context`) and of one with a prompt chunk (`prefill_context`),
    both after the step, and of a (query, key) `pair` of a chunk.
    """

    step: float
    token: float = 0.0
    row: float = 0.0
    decode_context: float = 0.0
    prefill_context: float = 0.0
    pair: float = 0.0

    def s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape takes at least."""
        return (
            self.step
            + self.token * shape.tokens
            + self.row * (shape.decode_seqs + shape.prefill_seqs)
            + self.decode_context * shape.decode_context
            + self.prefill_context * shape.prefill_context
            + self.pair * shape.prefill_pairs
        )

    def plus(self, other: StepFloor) -> StepFloor:
        """The floor of two parts of a step together."""
        return StepFloor(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def floors_of(cost: CostModel, most_tokens: int) -> list[StepFloor]:
    """The floors of a cost model for steps of up to so many tokens; none of a model that says nothing of them."""
    found = getattr(cost, "floors", None)
    return [] if found is None else list(found(most_tokens))


def lines_below(counts: Sequence[float] | Floats, seconds: Sequence[float] | Floats) -> list[tuple[float, float]]:
    """Lines (at nought, slope) with both 0 or more that lie on or below all the points, from their lower convex hull.

    The counts are ascending and above 0. The level line through the lowest point and the one through nought are among
    them: the first says most of small counts, the second of large ones.
    """
    x, y = np.asarray(counts, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    hull: list[int] = []
    for place in range(len(x)):
        while len(hull) > 1 and _is_above(x, y, hull[-2], hull[-1], place):
            hull.pop()
        hull.append(place)
    edges = []
    for first, second in pairwise(hull):
        slope = (y[second] - y[first]) / (x[second] - x[first])
        if slope > 0 and (level := float(np.min(y - slope * x))) > 0:
            edges.append((level, float(slope)))
    step = max(1, -(-len(edges) // MOST_LINES))
    return [(float(y.min()), 0.0), *edges[::step], (0.0, float(np.min(y / x)))]


def _is_above(x: Floats, y: Floats, first: int, middle: int, last: int) -> bool:
    """Whether the middle point lies on or above the line from the first to the last."""
    rise = (y[last] - y[first]) * (x[middle] - x[first])
    return bool((y[middle] - y[first]) * (x[last] - x[first]) >= rise)
