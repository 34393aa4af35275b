"""Errors of a kernel's surface on held-out rows: some rows are held out, and the surface is fitted again to the rest.

Regimes: `random` (a tenth of the rows, at random; of a small table each tenth in turn), `off_grid` (all rows between
the cells of a table that has such), `unmixed` (fitted without mixed steps, tested on them), `beyond` (fitted below half
of the largest context and batch, tested above), `few` (20 rows fitted, all others tested; the 20 fill the space of the
logarithms, as a good choice of few points does).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from calibration.fit import GRID, decode_surface, joint_surface, prefill_surface
from calibration.rows import KernelRows, Table, select
from calibration.surface_fit import (
    DECODE,
    GEMM,
    JOINT_AXES,
    PREFILL,
    SMALLEST,
    Kernel,
    KernelLaunch,
    find_launch,
    gemm_surface,
    joint,
)
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.surface import Array, Surface

Mask = NDArray[np.bool_]
Errors = dict[str, dict[str, dict[str, float]]]

FOLDS = 10
SMALL = 2000
"""A table of at most this many rows is tested by each tenth in turn: one tenth alone is too few to judge by."""

FEW = 20
SEED = 0
REPEATS_OF_FEW = 5  # few rows are drawn so many times; the errors of all draws count together


@dataclass(frozen=True, slots=True)
class _Test:
    """A kernel's rows, the fit of a surface to them, and the columns of its coordinates."""

    kind: str
    table: Table
    fit: Callable[[Table], tuple[Surface, Kernel]]
    columns: tuple[str, ...]

    def coordinates(self, table: Table) -> list[Array]:
        return [table[name] for name in self.columns]


def held_out(rows: KernelRows, model: Model, gpu: Gpu) -> Errors:
    """Errors by kind of kernel and regime, in percent; `noise` is the spread of rows measured twice.

    Joint attention is fitted and tested on steps that the GPU can come to: whose KV fits in its memory beside the
    weights. Most of that table is of steps that no server sees.
    """
    found: Errors = {}
    launch = find_launch(model, gpu, rows.tensor_parallel)
    for test in _tests(rows, _reachable(rows, model, gpu), launch):
        regimes: dict[str, dict[str, float]] = {}
        for regime, splits in _regimes(test):
            errors = [_errors(test, train, rest) for train, rest in splits]
            regimes[regime] = summary(np.concatenate(errors))
        if test.kind == "joint_attention":
            regimes["unmixed"] = summary(_unmixed(_reachable(rows, model, gpu).table("attention"), launch))
        regimes |= _noise(test)
        found[test.kind] = regimes
    return found


def summary(errors: Array) -> dict[str, float]:
    """MAPE, median and P95 of the absolute relative errors, their signed mean, all in percent; and the rows."""
    size = np.abs(errors) * 100.0
    return {
        "mape": round(float(size.mean()), 2),
        "median": round(float(np.median(size)), 2),
        "p95": round(float(np.percentile(size, 95)), 2),
        "bias": round(float(errors.mean() * 100.0), 2),
        "rows": len(errors),
    }


def _reachable(rows: KernelRows, model: Model, gpu: Gpu) -> KernelRows:
    left = gpu.memory_bytes - model.weight_bytes(rows.tensor_parallel)
    table = rows.table("attention")
    keys = table["seqs"] * table["context"] + table["chunks"] * (table["chunk"] + table["cached"])
    return rows.keep("attention", keys <= left / model.kv_bytes_per_token(rows.tensor_parallel))


def _tests(rows: KernelRows, reachable: KernelRows, launch: KernelLaunch | None) -> Iterator[_Test]:
    fit_joint = partial(_fit_joint, launch=launch)
    attention = rows.table("attention")
    alone = (attention["chunk"] == 0) & (attention["seqs"] > 0)
    prompts, mixed = attention["chunk"] > 0, (attention["chunk"] > 0) & (attention["seqs"] > 0)
    if alone.any():
        decodes = select(attention, alone)
        yield _Test("decode_attention", decodes, lambda table: (decode_surface(table), DECODE), ("seqs", "context"))
    if mixed.any():
        fresh = select(attention, prompts & ~mixed)
        fresh["context"] = np.zeros(len(fresh["us"]))
        possible = reachable.table("attention")
        together = select(possible, possible["chunk"] > 0)
        together["context"] = np.where(together["seqs"] > 0, together["context"], 0.0)
        yield _Test("prefill_attention", fresh, fit_joint, JOINT_AXES)
        yield _Test("joint_attention", together, fit_joint, JOINT_AXES)
    elif prompts.any():
        fresh = select(attention, prompts)
        yield _Test("prefill_attention", fresh, lambda table: (prefill_surface(table), PREFILL), ("chunks", "chunk"))
    gemm = rows.table("gemm")
    if len(gemm["us"]):
        chosen = select(gemm, (gemm["n"] >= SMALLEST) & (gemm["k"] >= SMALLEST))
        yield _Test("gemm", chosen, lambda table: (gemm_surface(table), GEMM), GEMM.axes)


def _fit_joint(table: Table, launch: KernelLaunch | None) -> tuple[Surface, Kernel]:
    surface, knee = joint_surface(table, launch)
    return surface, joint(knee)


def _regimes(test: _Test) -> Iterator[tuple[str, list[tuple[Mask, Mask]]]]:
    """Masks of the rows to fit and of those to test, by regime."""
    table, size = test.table, len(test.table["us"])
    random = np.random.default_rng(SEED)
    fold = random.permutation(size) % FOLDS
    yield "random", [(fold != i, fold == i) for i in range(FOLDS if size <= SMALL else 1)]
    off, inside = np.zeros(size, dtype=bool), np.ones(size, dtype=bool)
    for name in set(test.columns) & {"chunk", "cached", "context"}:
        on = np.isin(table[name], (0.0, *GRID))
        off |= ~on
        if on.any():
            inside &= (table[name] >= table[name][on].min()) & (table[name] <= table[name][on].max())
    off &= inside
    if 20 <= off.sum() <= 0.8 * size:
        yield "off_grid", [(~off & inside, off)]
    large = np.zeros(size, dtype=bool)
    for name in test.columns:
        large |= table[name] > table[name].max() / 2
    if 20 <= large.sum() <= 0.8 * size:
        yield "beyond", [(~large, large)]
    few = _few(test, random)
    if few:
        yield "few", few


def _few(test: _Test, random: np.random.Generator) -> list[tuple[Mask, Mask]]:
    """Splits with few rows to fit: of the whole table, or of matrix products of a few sizes (n, k), each for itself."""
    size = len(test.table["us"])
    tables = [np.ones(size, dtype=bool)] * REPEATS_OF_FEW
    if test.kind == "gemm":
        n, k = test.table["n"], test.table["k"]
        sizes = [(n_, k_) for n_ in np.unique(n) for k_ in np.unique(k) if 2**22 <= n_ * k_ <= 2**28]
        chosen = random.permutation(len(sizes))[: 2 * REPEATS_OF_FEW]
        tables = [(n == sizes[i][0]) & (k == sizes[i][1]) for i in chosen.tolist()]
    splits = []
    for table in tables:
        train = np.zeros(size, dtype=bool)
        train[_spread_out(test, table, FEW, random)] = True
        if (table & ~train).sum() >= FEW:
            splits.append((train, table & ~train))
    return splits


def _spread_out(test: _Test, among: Mask, count: int, random: np.random.Generator) -> Sequence[int]:
    """Rows that fill the space of the logarithms: each the farthest from those before, of a random third."""
    places = np.column_stack([np.log1p(column) for column in test.coordinates(test.table)])
    spread = places.std(axis=0)
    places = places[:, spread > 0] / spread[spread > 0]
    pool = random.permutation(np.flatnonzero(among))
    pool = pool[: max(count * 10, len(pool) // 3)]
    chosen = [int(pool[0])]
    distance = np.full(len(pool), np.inf)
    while len(chosen) < min(count, len(pool)):
        distance = np.minimum(distance, ((places[pool] - places[chosen[-1]]) ** 2).sum(axis=1))
        chosen.append(int(pool[distance.argmax()]))
    return chosen


def _errors(test: _Test, train: Mask, rest: Mask) -> Array:
    surface, kernel = test.fit(select(test.table, train))
    tested = select(test.table, rest)
    coordinates = test.coordinates(tested)
    predicted = surface.us_many(coordinates, kernel.features(*coordinates))
    return np.asarray(predicted / tested["us"] - 1.0)


def _unmixed(table: Table, launch: KernelLaunch | None) -> Array:
    """Errors on mixed steps where none was measured: prompts and decodes apart, added, the launch counted once."""
    decoding = table["seqs"] > 0
    prompting = table["chunk"] > 0
    decode = decode_surface(select(table, decoding & ~prompting))
    fresh = {**select(table, prompting & ~decoding)}
    prompt, kernel = _fit_joint({**fresh, "context": np.zeros(len(fresh["us"]))}, launch)
    mixed = select(table, prompting & decoding)
    none = np.zeros(len(mixed["us"]))
    decodes, prompts = [mixed["seqs"], mixed["context"]], [mixed["chunk"], mixed["cached"], none, none]
    together = decode.us_many(decodes, DECODE.features(*decodes)) + prompt.us_many(prompts, kernel.features(*prompts))
    launch_us = min(decode.physics.constant_us, prompt.physics.constant_us)
    return np.asarray((together - launch_us) / mixed["us"] - 1.0)


def _noise(test: _Test) -> Mapping[str, dict[str, float]]:
    """The distance of rows from the mean of their place, where a place was measured twice."""
    places = np.column_stack(test.coordinates(test.table))
    _, place, count = np.unique(places, axis=0, return_inverse=True, return_counts=True)
    place = place.ravel()
    if not (count > 1).any():
        return {}
    mean = np.bincount(place, test.table["us"]) / count
    again = count[place] > 1
    return {"noise": summary(test.table["us"][again] / mean[place[again]] - 1.0)}
