"""Curves of one count from rows: times at the counts that were measured, and a slope beyond."""

from __future__ import annotations

import numpy as np

from calibration.rows import STEP_OPS, Table
from simulator.timing.profile.surface import Array, Curve
from simulator.timing.tables.make_curves import make_curve

TILED = ("qkv", "output_projection", "gate_up", "down", "lm_head")
"""Matrix products: their kernels pad to a tile, so a count between two others costs as much as the upper one."""

TILE = 16  # their kernels pad rows to at least this many


def curve(counts: Array, us: Array, *, tiled: bool = False) -> Curve:
    """A curve through the medians of the rows at each count."""
    known = np.unique(counts)
    medians = np.array([np.median(us[counts == count]) for count in known])
    return make_curve(known, medians, TILE if tiled else 0)


def op_curves(table: Table, count: str) -> dict[str, Curve]:
    """A curve for each operator of a table of `dense` or `sampled` rows."""
    found = {}
    for op in np.unique(table["op"]).tolist():
        here = table["op"] == op
        found[str(op)] = curve(table[count][here], table["us"][here], tiled=op in TILED)
    return found


def split_ops(curves: dict[str, Curve]) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Curves of a layer's operators, and of those that run once a step."""
    step = {op: curve for op, curve in curves.items() if op in STEP_OPS}
    return {op: curve for op, curve in curves.items() if op not in step}, step
