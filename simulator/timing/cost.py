"""The seam between a step and its seconds: a step's shape, the protocol of cost models, and floors below them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError

Ints = NDArray[np.int64]


class StepShape(NamedTuple):
    """Counts of a step's work. All of them include padding, which costs as much as real tokens.

    `*_context` are KV tokens after the step, summed over the requests named. `prefill_pairs` is the number of
    (query, key) pairs that causal attention visits in the prompt chunks: for a chunk of n tokens behind c computed
    ones, n * c + n * (n + 1) / 2. A named tuple, because one is made for every step.

    `decode_longest` is the longest of the contexts that `decode_context` sums up, `decode_squares` the sum of their
    squares: both 0 unless the cost model asks for them. `prefill_longest` is the longest context of a prompt chunk.

    Speculative decoding alone has the three after these: `draft_seqs` of the decodes verify `draft_tokens` drafts
    together, which are query tokens beyond one for each decode and are part of its context; the drafter proposes
    `drafted_tokens` at the end of the step. LoRA alone has the three after that: the adapters in use, the step's tokens
    that one of them computes, and the adapters that are copied to the device before it. `embeddings` are those that
    the encoder computes for images.
    """

    decode_seqs: int
    decode_context: int
    prefill_seqs: int = 0
    prefill_tokens: int = 0
    prefill_context: int = 0
    prefill_pairs: int = 0
    decode_longest: int = 0
    decode_squares: int = 0
    prefill_longest: int = 0
    draft_seqs: int = 0
    draft_tokens: int = 0
    drafted_tokens: int = 0
    loras: int = 0
    lora_tokens: int = 0
    loaded_loras: int = 0
    embeddings: int = 0

    @property
    def tokens(self) -> int:
        return self.decode_seqs + self.prefill_tokens + self.draft_tokens

    @property
    def context(self) -> int:
        return self.decode_context + self.prefill_context

    def later(self, steps: int) -> StepShape:
        """The shape of a decode step so many steps later, without drafts: every context grows by a token a step."""
        seqs, context, _, _, _, _, longest, squares, *_, loras, lora_tokens, _, _ = self
        if longest:
            longest, squares = longest + steps, squares + steps * (2 * context + steps * seqs)
        context += steps * seqs
        return StepShape(seqs, context, 0, 0, 0, 0, longest, squares, 0, 0, 0, 0, loras, lora_tokens)


COUNTS = StepShape._fields[: StepShape._fields.index("draft_seqs")]
"""The fields that steps without drafts and adapters have."""


class StepCounts(Protocol):
    """Columns of a run's steps, as far as cost models look at them: a part of `simulator.results.records.RowColumns`.

    One entry a step, or a run of `repeat` equal decode steps; counts are those of the first of them.
    """

    @property
    def repeat(self) -> Ints: ...

    @property
    def decoding(self) -> Ints: ...

    @property
    def held(self) -> Ints: ...

    @property
    def prefill_tokens(self) -> Ints: ...

    @property
    def tokens(self) -> Ints: ...

    @property
    def context_tokens(self) -> Ints: ...


def check_seconds(of: object, called: str, *names: str) -> None:
    """Raise InputError for an attribute that is neither finite seconds of 0 or more nor None."""
    for name in names:
        value = getattr(of, name)
        if value is not None and not 0 <= value < inf:
            raise InputError(f"{called}: {name} must be 0 or more seconds, not {value}")


class CostModel(Protocol):
    """Seconds for a step. `step_s` and `decode_run_s` agree to the last bit: the second is the first, repeated."""

    @property
    def wants_context_stats(self) -> bool:
        """True if the model needs `decode_longest` and `decode_squares`, which the engine keeps at a small cost."""

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step; 0.0 for a step without tokens."""

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        """Seconds of each of `repeat` successive steps of the same `shape.decode_seqs` > 0 decoding requests.

        The first has that shape, which computes no prompts and no drafts. Element i equals `step_s(shape.later(i))`,
        bit for bit.
        """

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        """Sentences about a run's steps for its reader, such as how many lie outside of what was measured."""


class GroupCost(Protocol):
    """Seconds of a common step of data-parallel ranks."""

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        """Seconds of a common step, by each rank's shape; an idle rank's, of a dummy batch, has no token."""


# Straight lines below a cost model, for proofs: what a step of some shape costs at least.
#
# A bound on what schedulers can reach needs prices that add up. A cost model's do not: the weights are read once
# for all tokens of a step, and each kernel waits for the slower of two resources. So a model gives several floors,
# each of them linear in the counts of a step and nowhere above the model. Whatever follows from one floor holds for
# the model.

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
