"""The shapes whose measurement makes the interval of a step narrowest: chosen one by one.

Each is the shape after which the mean variance over all steps of the grid is least, given those before it (greedy
I-optimal design of the regression in `calibration.belief`). No more are asked for than bring the mean interval to
within `ENOUGH` of what all shapes together would give.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.belief import Belief, grid, shape_of, table_of
from calibration.rows import Table, select

ENOUGH = 1.1
MOST = 24
LEVEL, TIMES = 0.9, 1.645
"""The probability of the intervals that are told, and the standard deviations to each side that it takes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch that a tool can be told to run: equal decodes, or equal prompts, fresh or behind cached tokens."""

    seqs: int = 0
    context: int = 0
    chunks: int = 0
    tokens: int = 0
    cached: int = 0

    def row(self) -> dict[str, float]:
        """Its counts."""
        return shape_of(self.seqs, self.context, self.chunks, self.tokens, self.cached)

    def case(self) -> str:
        """A case of `vllm bench forward`: a name, and its requests."""
        parts = [f"{self.seqs}*1@{self.context}"] if self.seqs else []
        if self.chunks:
            parts.append(f"{self.chunks}*{self.tokens}" + (f"@{self.tokens + self.cached}c" if self.cached else ""))
        name = "-".join(part.replace("*", "x").replace("@", "at") for part in parts)
        return f"{name}={','.join(parts)}"


@dataclass(frozen=True, slots=True)
class Asked:
    """The shapes in the order in which they were chosen, and the widths (upper over lower end) of the mean interval."""

    shapes: tuple[Shape, ...]
    now: float
    after: float
    with_all: float


def candidates(most_tokens: int, most_keys: float, longest: int) -> list[Shape]:
    """Shapes that can be measured: decodes, prompts and both, within the memory and the model's length."""
    found = [Shape(seqs, context) for seqs in (1, 4, 16, 32, 64, 128, 256, 512) for context in (256, 1024, 4096, 16384)]
    found += [Shape(0, 0, 1, tokens) for tokens in (128, 512, 1024, 2048, 4096, 8192)]
    found += [Shape(0, 0, 1, tokens, 8192) for tokens in (512, 2048)]
    found += [Shape(0, 0, 4, tokens) for tokens in (128, 512)]
    found += [Shape(32, 1024, 1, 512), Shape(32, 1024, 1, 2048)]
    return [
        each
        for each in found
        if each.seqs * each.context + each.chunks * (each.tokens + each.cached) <= most_keys
        and max(each.context, each.tokens + each.cached) < longest
        and each.seqs + each.chunks * each.tokens <= most_tokens
    ]


def ask(belief: Belief, shapes: Sequence[Shape], noise: float, most_tokens: int, most_keys: float) -> Asked:
    """Choose among the shapes. Some shape must be given."""
    known, targets = table_of([each.row() for each in shapes]), grid(most_tokens, most_keys)
    known = {**known, "us": belief.us(known)}
    every = np.arange(len(shapes))
    best = width(belief, known, every, noise, targets)
    chosen: list[int] = []
    now = after = width(belief, known, every[:0], noise, targets)
    while len(chosen) < min(MOST, len(shapes)) and after > best * ENOUGH:
        rest = [place for place in every.tolist() if place not in chosen]
        widths = [width(belief, known, np.array([*chosen, place]), noise, targets) for place in rest]
        place = int(np.argmin(widths))
        chosen.append(rest[place])
        after = widths[place]
    told = (math.exp(2.0 * TIMES * each) for each in (now, after, best))
    return Asked(tuple(shapes[place] for place in chosen), *told)


def width(belief: Belief, known: Table, chosen: NDArray[Any], noise: float, targets: Table) -> float:
    """The root mean variance of the targets' logarithms, once the chosen steps are measured and are as expected.

    What the form itself is off by is part of it: no measurement makes that less.
    """
    after = belief.narrowed(select(known, chosen), np.full(len(chosen), noise)) if len(chosen) else belief
    return float(np.hypot(np.sqrt(np.mean(after.log_sd(targets) ** 2)), belief.form_error))
