"""How far the estimate of unequal contexts holds where they were measured: each card with the numbers of the others.

The rows are batches of two lengths, each measured beside one of equal contexts with the same sum. To the time of the
latter comes the estimate (`simulator.timing.tables.attention`), as a step would be given it, with the time for a
key that the card's own decodes have. Its two numbers are fitted: `least` to decodes alone, `late` to decodes beside
prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibration.fit import decode_surface
from calibration.rows import KernelRows, Table, select
from simulator.timing.cost import StepShape
from simulator.timing.profile.kernels import Skew
from simulator.timing.profile.surface import Surface
from simulator.timing.tables.attention import beside_factor, estimated_skew
from tools.tables.profiles import measured_together, read_shipped

Array = NDArray[np.float64]

LEAST = np.arange(0.20, 0.501, 0.02)
LATE = np.arange(0.0, 1.001, 0.02)
MOST_KEYS = 400_000
MOST_ROWS = 1500
"""Most rows of a kind that are looked up, evenly from all."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Unequal batches of a profile's card, of one kind: their times, and those of equal contexts."""

    shapes: Sequence[StepShape]
    us: Array
    equal_us: Array

    def errors(self, skew: Skew | None, factor: float = 1.0) -> Array:
        """Relative errors with so many times this skew on top; with None, of equal contexts alone."""
        extra = np.zeros(len(self.us)) if skew is None else np.array([skew.us(shape) for shape in self.shapes])
        return np.asarray((self.equal_us + factor * extra) / self.us - 1.0)


@dataclass(frozen=True, slots=True)
class Uneven:
    """Unequal batches that a profile's source measured: decodes alone, and beside prompts."""

    name: str
    card: str
    heads: int
    kv_heads: int
    key_us: float
    alone: Rows
    beside: Rows

    def skew(self, least: float, late: float) -> Skew | None:
        """The estimate for these heads on this card."""
        factor = beside_factor(self.card, self.heads, self.kv_heads)
        return estimated_skew(self.card, self.heads, self.kv_heads, self.key_us, factor, least, late)


@dataclass(frozen=True, slots=True)
class LeftOutKind:
    """A profile's rows of one kind with the number of the other cards: mean size of the errors and bias with the
    estimate, and without it. Fractions."""

    name: str
    kind: str
    rows: int
    number: float
    mean: float
    bias: float
    plain_mean: float
    plain_bias: float


def read_uneven(root: Path) -> list[Uneven]:
    """The unequal batches of all shipped profiles whose source measured them; `root` holds the sources."""
    return [
        uneven_rows(read_shipped(entry, root), entry.name, heads, kv_heads)
        for entry, heads, kv_heads in measured_together()
    ]


def uneven_rows(rows: KernelRows, name: str, heads: int, kv_heads: int) -> Uneven:
    """The unequal batches among the rows of a card."""
    attention, skew = rows.table("attention"), rows.table("skew")
    decodes = decode_surface(select(attention, (attention["chunk"] == 0) & (attention["seqs"] > 0)))
    share = skew["long_seqs"] / skew["seqs"]
    mean = share * skew["long"] + (1.0 - share) * skew["short"]
    few = skew["seqs"] * mean + skew["chunk"] + skew["cached"] <= MOST_KEYS
    alone, beside = (_rows(select(skew, few & ((skew["chunk"] > 0) == mixed))) for mixed in (False, True))
    return Uneven(name, rows.gpu, heads, kv_heads, key_us(decodes), alone, beside)


def key_us(decodes: Surface) -> float:
    """Microseconds of a large batch of decodes for each key, by its physics."""
    return dict(decodes.physics.roofs[0])["keys"]


def fit_least(some: Sequence[Uneven]) -> float:
    """The `least` with the smallest mean error of decodes alone, each profile counting alike."""
    errors = [np.mean([_size(each.alone.errors(each.skew(least, 0.0))) for each in some]) for least in LEAST]
    return round(float(LEAST[int(np.argmin(errors))]), 2)


def fit_late(some: Sequence[Uneven]) -> float:
    """The `late` with the smallest mean error beside prompts, each profile counting alike."""
    total = np.zeros(len(LATE))
    for each in some:
        plain = each.beside.errors(None)
        whole = each.beside.errors(each.skew(0.0, 1.0)) - plain
        total += [_size(plain + late * whole) for late in LATE]
    return round(float(LATE[int(np.argmin(total))]), 2)


def leave_one_card_out(some: Sequence[Uneven]) -> list[LeftOutKind]:
    """Each profile's rows of both kinds, with the numbers of all cards but its own."""
    found = []
    for each in some:
        others = [other for other in some if other.card != each.card]
        least, late = fit_least(others), fit_late(others)
        skew = each.skew(least, late)
        for kind, number, rows in (("alone", least, each.alone), ("beside prompts", late, each.beside)):
            errors, plain = rows.errors(skew), rows.errors(None)
            sizes = (_size(errors), float(errors.mean()), _size(plain), float(plain.mean()))
            found.append(LeftOutKind(each.name, kind, len(rows.us), number, *sizes))
    return found


def _rows(table: Table) -> Rows:
    size = len(table["us"])
    some = np.unique(np.linspace(0, size - 1, min(size, MOST_ROWS)).astype(int))
    names = ("seqs", "long_seqs", "short", "long", "chunk", "cached")
    shapes = [_shape(*map(int, row)) for row in zip(*(table[name][some].tolist() for name in names), strict=True)]
    return Rows(shapes, table["us"][some], table["equal_us"][some])


def _shape(seqs: int, longs: int, short: int, long: int, chunk: int, cached: int) -> StepShape:
    context = longs * long + (seqs - longs) * short
    squares = longs * long**2 + (seqs - longs) * short**2
    pairs = chunk * cached + chunk * (chunk + 1) // 2
    return StepShape(seqs, context, int(chunk > 0), chunk, chunk + cached, pairs, long, squares, chunk + cached)


def _size(errors: Array) -> float:
    return float(np.abs(errors).mean())
