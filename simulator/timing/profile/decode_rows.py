"""Attention of steps of decodes alone, as straight lines over their contexts: a row for each number of decodes."""

from __future__ import annotations

from array import array
from math import inf

import numpy as np

from simulator.timing.profile.arithmetic import Lines
from simulator.timing.profile.step import DecodeTable
from simulator.timing.profile.surface import Array

KNOTS_PER_OCTAVE = 8
LONGEST_KNOT = 2.0**21  # a row has knots up to this mean context; beyond, the last line goes on
ROWS_TOGETHER = 64  # rows that are tabulated at once: 64 take four times as long as one


class DecodeRows:
    """The rows of a model's layers, worked out as they are asked for; straight between knots that are close enough."""

    def __init__(self, table: DecodeTable, layers: int) -> None:
        octaves = np.log2(LONGEST_KNOT)
        knots = np.unique(np.round(2.0 ** np.linspace(0.0, octaves, int(octaves * KNOTS_PER_OCTAVE) + 1)))
        self._table = table
        self._layers = layers
        self._knots: Array = np.union1d(knots, np.asarray(table.surface.axes[1].values)[1:])
        self._ends: Array = np.append(self._knots[1:-1], inf)
        self._together: dict[int, tuple[Array, Array]] = {}

    def lines(self, seqs: int) -> Lines:
        block, place = divmod(seqs - 1, ROWS_TOGETHER)
        found = self._together.get(block)
        if found is None:
            found = self._together[block] = self._tabulate(block * ROWS_TOGETHER + 1)
        first_s, slope_s = found
        return _flat(self._ends * seqs), _flat(first_s[place]), _flat(slope_s[place])

    def _tabulate(self, least: int) -> tuple[Array, Array]:
        """First seconds and slopes of the rows from `least` decodes on."""
        knots, seqs = self._knots, np.arange(least, least + ROWS_TOGETHER, dtype=np.float64)[:, np.newaxis]
        seconds = self._layers * 1e-6 * self._table.us_many(seqs, knots)
        slope_s = np.diff(seconds) / np.diff(knots) / seqs  # for a token of context
        return seconds[:, :-1] - slope_s * knots[:-1] * seqs, slope_s


def _flat(row: Array) -> array[float]:
    return array("d", row.tobytes())
