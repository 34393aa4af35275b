"""Token counts of a trace: their distribution and tail, and how input and output go together."""

import math
from dataclasses import dataclass, field

import numpy as np

from simulator.workload import Floats, Ints

PERCENTS = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
TAIL_SHARE = 0.05
_PENDING = 1 << 16  # lengths gathered, at least, before they go into the table


@dataclass(frozen=True, slots=True)
class LengthFacts:
    """A distribution of token counts. `percentiles` (linear) belong to PERCENTS.

    `hill_alpha` is Hill's estimate of the Pareto tail's index from the largest 5 % of rows, above `hill_threshold`
    (B. M. Hill, Annals of Statistics 3, 1975): below 2 the variance does not settle. `tail_token_share` is the share
    of all tokens in those rows. Both are None for fewer than 20 rows, alpha also where the tail is flat.
    """

    min: int
    max: int
    mean: float
    cv: float
    percentiles: tuple[float, ...]
    hill_alpha: float | None
    hill_threshold: int | None
    tail_token_share: float | None


@dataclass(slots=True)
class LengthTable:
    """Count how often each length occurs: 16 bytes a different length, however many rows there are."""

    _values: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    _counts: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    _pending: list[Ints] = field(default_factory=list)
    _gathered: int = 0

    def add(self, lengths: Ints) -> None:
        """The next lengths, in any order."""
        self._pending.append(lengths)
        self._gathered += len(lengths)
        if self._gathered > max(_PENDING, len(self._values)):
            self._settle()

    def _settle(self) -> None:
        if not self._pending:
            return
        new, new_counts = np.unique(np.concatenate(self._pending), return_counts=True)
        self._pending, self._gathered = [], 0
        values = np.union1d(self._values, new)
        counts = np.zeros(len(values), dtype=np.int64)
        counts[np.searchsorted(values, self._values)] += self._counts
        counts[np.searchsorted(values, new)] += new_counts
        self._values, self._counts = values, counts

    def table(self) -> tuple[Ints, Ints]:
        """The lengths that occur, ascending, and how often each does."""
        self._settle()
        return self._values, self._counts

    def mean_and_sd(self) -> tuple[float, float]:
        values, counts = self.table()
        rows = int(counts.sum())
        mean = int((values * counts).sum()) / rows
        return mean, math.sqrt(float((counts * (values - mean) ** 2).sum()) / rows)

    def ranks(self) -> Floats:
        """The rank, from 0, of each length that occurs; equal lengths share the mean of theirs."""
        _, counts = self.table()
        ranks: Floats = np.cumsum(counts) - (counts + 1) / 2
        return ranks

    def facts(self) -> LengthFacts:
        """The facts about the lengths so far, at least one, each 1 or more."""
        values, counts = self.table()
        rows = int(counts.sum())
        mean, sd = self.mean_and_sd()
        alpha = threshold = share = None
        if tail := int(TAIL_SHARE * rows):
            threshold = int(self._at(np.array([rows - 1 - tail]))[0])
            above = np.minimum(counts, np.maximum(np.cumsum(counts) - (rows - tail), 0))  # rows of the tail, by length
            excess = float((above * np.log(values / threshold)).sum()) / tail
            alpha = 1.0 / excess if excess > 0 else None
            share = int((above * values).sum()) / int((counts * values).sum())
        return LengthFacts(
            min=int(values[0]),
            max=int(values[-1]),
            mean=mean,
            cv=sd / mean,
            percentiles=self._percentiles(rows),
            hill_alpha=alpha,
            hill_threshold=threshold,
            tail_token_share=share,
        )

    def _at(self, places: Ints) -> Ints:
        """The lengths at these places of the sorted rows."""
        values, counts = self.table()
        return values[np.searchsorted(np.cumsum(counts), places, side="right")]

    def _percentiles(self, rows: int) -> tuple[float, ...]:
        place = np.array(PERCENTS) / 100 * (rows - 1)
        low = np.floor(place).astype(np.int64)
        below, above = self._at(low), self._at(np.minimum(low + 1, rows - 1))
        return tuple((below + (above - below) * (place - low)).tolist())


class PairSums:
    """Correlations of two lengths whose tables are complete; the rows go by a second time."""

    def __init__(self, a: LengthTable, b: LengthTable) -> None:
        self._values = tuple(table.table()[0] for table in (a, b))
        self._ranks = tuple(table.ranks() for table in (a, b))
        self._moments = tuple(table.mean_and_sd() for table in (a, b))
        counts = [table.table()[1] for table in (a, b)]
        self._rows = int(counts[0].sum())
        self._middle = (self._rows - 1) / 2  # the mean rank
        self._rank_sds = [
            math.sqrt(float((each * (ranks - self._middle) ** 2).sum()) / self._rows)
            for each, ranks in zip(counts, self._ranks, strict=True)
        ]
        self._products = 0.0  # of deviations from the mean
        self._rank_products = 0.0

    def add(self, a: Ints, b: Ints) -> None:
        """The next rows."""
        (mean_a, _), (mean_b, _) = self._moments
        self._products += float(((a - mean_a) * (b - mean_b)).sum())
        one, other = (
            ranks[np.searchsorted(values, lengths)] - self._middle
            for ranks, values, lengths in zip(self._ranks, self._values, (a, b), strict=True)
        )
        self._rank_products += float((one * other).sum())

    def facts(self) -> tuple[float | None, float | None]:
        """Pearson's and Spearman's; None for fewer than two rows, or where all are equal."""
        (_, sd_a), (_, sd_b) = self._moments
        if self._rows < 2 or not sd_a or not sd_b:
            return None, None
        return (
            self._products / self._rows / (sd_a * sd_b),
            self._rank_products / self._rows / (self._rank_sds[0] * self._rank_sds[1]),
        )
