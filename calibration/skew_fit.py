"""The cost of unequal contexts, from batches of two lengths: by batch size, share of long contexts, context."""

import numpy as np

from calibration.rows import Table
from simulator.timing.profile.skew import Skew
from simulator.timing.profile.surface import Array, SurfaceAxis
from simulator.timing.tables.grid import fill

SHARES = (0.0, 0.008, 0.016, 0.023, 0.031, 0.047, 0.0625, 0.09, 0.125, 0.1875, 0.25, 0.375, 0.5, 0.75, 0.9, 1.0)
"""Shares of long contexts at which the extra is kept."""


def fit_skew(table: Table) -> Skew | None:
    """Fit the skew to a table of `skew` rows; None where there are none.

    The extra is per key of (longest - mean), the median over whatever else the rows differ in, and at least 0: a batch
    that waits for its longest is not faster for it. With all of them long there is nothing to add.
    """
    if not len(table["us"]):
        return None
    seqs, share = table["seqs"], table["long_seqs"] / table["seqs"]
    mean = share * table["long"] + (1.0 - share) * table["short"]
    extra = (table["us"] - table["equal_us"]) / (table["long"] - mean)
    alone = table["chunk"] == 0
    sizes, contexts = np.unique(seqs), np.unique(table["short"])
    decode = np.full((len(sizes), len(SHARES)), np.nan)
    mixed = np.full((*decode.shape, len(contexts)), np.nan)
    for i, size in enumerate(sizes):
        here = seqs == size
        decode[i] = _along_shares(share[here & alone], extra[here & alone])
        for k, context in enumerate(contexts):
            there = here & ~alone & (table["short"] == context)
            mixed[i, :, k] = _along_shares(share[there], extra[there])
    decode, mixed = np.maximum(fill(decode), 0.0), np.maximum(fill(mixed), 0.0)
    return Skew(
        SurfaceAxis("seqs", tuple(sizes.tolist())),
        SurfaceAxis("share", SHARES),
        SurfaceAxis("context", tuple(contexts.tolist())),
        tuple(decode.ravel().tolist()),
        tuple(mixed.ravel().tolist()),
    )


def _along_shares(share: Array, extra: Array) -> Array:
    """Medians at the measured shares, straight lines between them, nothing at 1; unknown where nothing was measured."""
    known = np.unique(share)
    if not len(known):
        return np.full(len(SHARES), np.nan)
    medians = np.array([np.median(extra[share == value]) for value in known])
    return np.asarray(np.interp(SHARES, [*known, 1.0], [*medians, 0.0]))
