"""Attention of any heads from tables of some: what was measured, what lies between, what lies beyond.

- Query heads that were not measured mix, by the logarithm, the corrections of two that were, with equal KV heads.
- Decodes with KV heads that were not measured: a kernel works through pairs of a sequence and a KV head, so a batch of
  b with 16 KV heads is one of 2 b with 8, as many query heads to each.
- Prompts hardly depend on KV heads: they take the nearest that were measured.
- Of a window that was not measured, decodes cost as without one at a context of the window, and prompts their pairs
  within it, corrected as prompts of its length are. Where windows were measured (8,192 with heads of 128, 1,024 with
  heads of 256; H100, H200, B200), that is 2 to 6 % off for contexts beyond the window, prompts 1 to 4 % and 8 to 20 %;
  of a window of 128 up to 31 %. So `SHORTEST_WINDOW` is the least that is estimated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from simulator.errors import InputError
from simulator.timing.profile.counts import TILE
from simulator.timing.profile.physics import Physics, Sum
from simulator.timing.profile.surface import Array, SurfaceAxis, mesh
from simulator.timing.tables.grid import fill, steadiness
from simulator.timing.tables.part_sources import EXTRAPOLATED, INTERPOLATED, MEASURED, neighbours
from simulator.timing.tables.table_schema import Heads, HeadTable

SHORTEST_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Found:
    """Log microseconds over the axes of a table for the heads that were asked for; how they were come by, in words."""

    log_us: Array
    how: str
    words: str = ""


def decode_counts(seqs: Array, context: Array, kv_heads: float | Array, window: int) -> Mapping[str, Array]:
    """The work of decodes on one GPU: (sequence, KV head) pairs, keys that they read, the longest chain of keys."""
    seen = np.minimum(context, window) if window else context
    return {"items": seqs * kv_heads, "keys": seqs * kv_heads * seen, "chain": seen}


def prompt_counts(chunks: Array, each: Array, heads: float | Array, window: int) -> Mapping[str, Array]:
    """The work of fresh prompts on one GPU: tiles, visible (query, key) pairs, rows, the longest chain of keys."""
    return {
        "tiles": chunks * heads * np.ceil(each / TILE),
        "pairs": heads * chunks * visible_pairs(each, window),
        "tokens": heads * chunks * each,
        "chain": np.minimum(each, window + TILE) if window else each,
    }


def visible_pairs(each: Array, window: int) -> Array:
    """(query, key) pairs of a fresh prompt of `each` tokens, of which a query sees at most `window` (0: all)."""
    beyond = np.maximum(each - window, 0.0) if window else 0.0
    return np.asarray(0.5 * each * (each + 1) - 0.5 * beyond * (beyond + 1))


def find_table(tables: Sequence[HeadTable], head_dim: int, kv_dtype: str, window: int, of: str) -> HeadTable:
    """The table of these heads; of a window that was not measured, an estimate. InputError that says what there is."""
    widths = sorted({table.head_dim for table in tables})
    if head_dim not in widths:
        raise InputError(f"no {of} for heads of {head_dim}", hint=f"measured: heads of {_listed(widths)}")
    kinds = sorted({table.kv_dtype for table in tables if table.head_dim == head_dim})
    if kv_dtype not in kinds:
        raise InputError(f"no {of} for heads of {head_dim} with {kv_dtype} KV", hint=f"measured: {_listed(kinds)} KV")
    windows = {table.window: table for table in tables if (table.head_dim, table.kv_dtype) == (head_dim, kv_dtype)}
    if window not in windows and window >= SHORTEST_WINDOW and 0 in windows:
        return within_window(windows[0], window)
    if window not in windows:
        there = _listed(["none" if not size else f"{size}" for size in sorted(windows)])
        raise InputError(
            f"no {of} for heads of {head_dim} that see a window of {window} tokens", hint=f"measured windows: {there}"
        )
    return windows[window]


def within_window(table: HeadTable, window: int) -> HeadTable:
    """The table without a window, as it would be with one."""
    values = np.asarray(table.axes[1].values)
    seen, places = np.log(np.minimum(values, window)), np.log(values)
    within = replace(table, window=window, estimated=True)
    log_us = {}
    for heads in table.log_us:
        clipped = [np.interp(seen, places, line) for line in _correction(table, heads)]
        log_us[heads] = _log_physics(within, heads) + np.asarray(clipped)
    return replace(within, log_us=log_us)


def decode_us(table: HeadTable, heads: Heads) -> Found:
    """Decodes of these heads over the table's axes (seqs, context)."""
    measured = sorted({kv_heads for _, kv_heads in table.log_us})
    query, kv_heads = heads
    if kv_heads in measured:
        correction, how, words = _between(table, query, kv_heads)
    else:
        like = max((each for each in measured if each <= kv_heads), default=measured[0])
        correction, _, words = _between(table, query * like / kv_heads, like)
        correction = _shifted(table.axes[0], correction, kv_heads / like)
        how = EXTRAPOLATED
        words = f"as {kv_heads / like:g} times the batch with {like} KV heads" + (f", {words}" if words else "")
    return Found(_log_physics(table, heads) + correction, how, words)


def prompt_us(table: HeadTable, heads: Heads) -> Found:
    """Fresh prompts of these heads over the table's axes (chunks, each)."""
    query, kv_heads = heads
    measured = sorted({theirs for _, theirs in table.log_us})
    nearest = min(measured, key=lambda theirs: abs(log(theirs / kv_heads)))
    correction, how, words = _between(table, query, nearest)
    if nearest != kv_heads and heads not in table.log_us:
        how, words = EXTRAPOLATED, f"with {nearest} KV heads" + (f", {words}" if words else "")
    return Found(_log_physics(table, heads) + correction, how, words)


def decode_physics(table: HeadTable, kv_heads: int, whole: float = 1.0) -> Physics:
    """The physics of decodes in the features of a profile, of which a part (`whole`) sees whole contexts."""
    keys, chain = (dict(roof) for roof in table.physics.roofs)
    return Physics(
        table.physics.constant_us,
        (("seqs", _short(dict(table.physics.terms)["items"] * kv_heads)),),
        ((("keys", _short(keys["keys"] * kv_heads * whole)),), (("chain", _short(chain["chain"] * whole)),)),
        table.physics.p,
    )


def prompt_physics(table: HeadTable, heads: float, whole: float = 1.0) -> Physics:
    """The physics of prompts in the features of a profile, of which a part (`whole`) sees whole contexts."""
    work, chain = (dict(roof) for roof in table.physics.roofs)
    roof: Sum = (("pairs", _short(work["pairs"] * heads)), ("tokens", _short(work["tokens"] * heads)))
    return Physics(
        table.physics.constant_us,
        (("tiles", _short(dict(table.physics.terms)["tiles"] * heads)),),
        (roof, (("chain", _short(chain["chain"] * whole)),)),
        table.physics.p,
    )


def _between(table: HeadTable, query: float, kv_heads: int) -> tuple[Array, str, str]:
    """The correction for so many query heads beside measured KV heads, how it was come by, and in words."""
    known = sorted(heads for heads, theirs in table.log_us if theirs == kv_heads)
    if query in known:
        how, words = (INTERPOLATED, "as without a window, within it") if table.estimated else (MEASURED, "")
        return _correction(table, (int(query), kv_heads)), how, words
    low, high = neighbours(known, query)
    if low is None or high is None:
        edge = known[-1] if high is None else known[0]
        return _correction(table, (edge, kv_heads)), EXTRAPOLATED, f"as {edge} query heads"
    share = log(query / low) / log(high / low)
    below, above = _correction(table, (low, kv_heads)), _correction(table, (high, kv_heads))
    return (1.0 - share) * below + share * above, INTERPOLATED, f"between {low} and {high} query heads"


def _correction(table: HeadTable, heads: Heads) -> Array:
    """log(measured / physics) over the axes, its holes filled."""
    residual = table.log_us[heads] - _log_physics(table, heads)
    return fill(residual, steadiness(residual))


def _log_physics(table: HeadTable, heads: Heads) -> Array:
    """log(microseconds) over the axes by the physics, for these heads within the table's window."""
    first, second = mesh(table.axes)
    if table.axes[0].name == "seqs":
        counts = decode_counts(first, second, heads[1], table.window)
    else:
        counts = prompt_counts(first, second, heads[0], table.window)
    return np.asarray(np.log(table.physics.us(counts)))


def _shifted(axis: SurfaceAxis, correction: Array, factor: float) -> Array:
    """The correction at `factor` times the values of the first axis; beyond its end, that of the end."""
    known = np.log(np.asarray(axis.values))
    wanted = known + log(factor)
    return np.column_stack([np.interp(wanted, known, column) for column in correction.T])


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)
