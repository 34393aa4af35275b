"""Surfaces fitted to rows, first physics, then its residuals; and the kernels of a step as such surfaces."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.rows import Table
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.kernels import expert_features
from simulator.timing.profile.surface import Array, Physics, Sum, Surface, SurfaceAxis, decode_features, prompt_features
from simulator.timing.tables.attention import CHIPS
from simulator.timing.tables.products import WEIGHT_BYTES, product_features
from simulator.timing.tables.table_schema import fill, steadiness

# Least squares by scipy where it is installed, else in numpy alone, for a device that has nothing more.
#
# Both minimise the same cost over the same bounds; their results agree to what a profile is worth (a test compares
# them), not to the last digit.


def nnls(columns: Array, target: Array) -> tuple[Array, float]:
    """Find coefficients x of at least 0 that bring columns @ x nearest to the target, and the distance that is left."""
    try:
        from scipy.optimize import nnls as solve
    except ImportError:
        return nnls_in_numpy(columns, target)
    x, rest = solve(columns, target)
    return np.asarray(x), float(rest)


def robust_least_squares(
    residuals: Callable[..., Array], start: Array, scale: float, args: tuple[Any, ...]
) -> tuple[Array, float]:
    """Find coefficients of at least 0 with the least sum of soft_l1(residual / scale), from `start` on, and that cost.

    soft_l1(r) = 2 (sqrt(1 + r^2) - 1): quadratic for small residuals, linear for large ones.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        return robust_in_numpy(residuals, start, scale, args)
    found = least_squares(
        residuals, start, bounds=(0.0, np.inf), loss="soft_l1", f_scale=scale, x_scale="jac", args=args, max_nfev=200
    )
    return np.asarray(found.x), float(found.cost)


def nnls_in_numpy(columns: Array, target: Array) -> tuple[Array, float]:
    """Lawson and Hanson's active sets (Solving Least Squares Problems, 1974, chapter 23)."""
    size = columns.shape[1]
    x, free = np.zeros(size), np.zeros(size, dtype=bool)
    tolerance = 1e-10 * max(1e-300, float(np.abs(columns.T @ target).max(initial=0.0)))
    for _ in range(3 * size):
        gradient = columns.T @ (target - columns @ x)
        gradient[free] = -np.inf
        if not (~free).any() or gradient.max() <= tolerance:
            break
        free[int(gradient.argmax())] = True
        while True:
            wanted = np.zeros(size)
            wanted[free] = np.linalg.lstsq(columns[:, free], target, rcond=None)[0]
            below = free & (wanted <= 0.0)
            if not below.any():
                break
            step = float((x[below] / np.maximum(x[below] - wanted[below], 1e-300)).min())
            x = x + step * (wanted - x)
            free &= x > 1e-12 * max(1.0, float(np.abs(x).max()))
            x[~free] = 0.0
        x = wanted
    return x, float(np.linalg.norm(columns @ x - target))


def robust_in_numpy(
    residuals: Callable[..., Array], start: Array, scale: float, args: tuple[Any, ...]
) -> tuple[Array, float]:
    """Levenberg and Marquardt's steps on reweighted squares, cut off at 0."""

    def cost_of(x: Array) -> tuple[float, Array]:
        rest = residuals(x, *args)
        return float(scale**2 * (np.sqrt(1.0 + (rest / scale) ** 2) - 1.0).sum()), rest

    x = np.asarray(start, dtype=np.float64).copy()
    cost, rest = cost_of(x)
    damping = 1e-3
    for _ in range(200):
        slopes = _slopes(residuals, x, rest, args)
        weights = 1.0 / np.sqrt(1.0 + (rest / scale) ** 2)
        gradient = slopes.T @ (weights * rest)
        moving = (x > 0.0) | (gradient < 0.0)
        if not moving.any():
            break
        normal = (slopes * weights[:, None]).T @ slopes
        taken = False
        while damping < 1e12:
            bent = normal + damping * np.diag(np.maximum(np.diag(normal), 1e-12))
            step = np.zeros_like(x)
            step[moving] = -np.linalg.solve(bent[np.ix_(moving, moving)], gradient[moving])
            there = np.maximum(x + step, 0.0)
            new_cost, new_rest = cost_of(there)
            if new_cost < cost:
                taken = True
                break
            damping *= 4.0
        if not taken:
            break
        gained = cost - new_cost
        x, cost, rest, damping = there, new_cost, new_rest, max(damping / 6.0, 1e-12)
        if gained <= 1e-8 * cost:
            break
    return x, cost


def _slopes(residuals: Callable[..., Array], x: Array, rest: Array, args: tuple[Any, ...]) -> Array:
    """Derivatives by differences, a column a coefficient."""
    columns = []
    for place in range(len(x)):
        width = 1.5e-8 * max(1.0, abs(float(x[place])))
        moved = x.copy()
        moved[place] += width
        columns.append((residuals(moved, *args) - rest) / width)
    return np.column_stack(columns)


# Physics fitted to rows: non-negative coefficients, relative errors, a robust loss.

Features = Mapping[str, Array]

POWERS = (1.0, 1.5, 2.0, 4.0, 8.0)
"""Powers of the p-norm by which one resource hides another: tried in turn, the best is kept."""

ROBUST_FROM = 0.1  # relative errors beyond this count less and less (scipy's soft_l1)


MOST_ROWS = 4000
"""Most rows that a fit uses, drawn at random from a larger table: a handful of coefficients needs no more."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of a kernel's physics, without coefficients: `terms` add up, `roofs` hide each other."""

    terms: tuple[str, ...]
    roofs: tuple[tuple[str, ...], ...]
    constant: bool = True

    @property
    def features(self) -> tuple[str, ...]:
        return (*self.terms, *(name for roof in self.roofs for name in roof))


def fit_physics(shape: Shape, features: Features, us: Array) -> Physics:
    """Find the physics of that form with the least robust relative error over the rows."""
    names = shape.features
    if len(us) > MOST_ROWS:
        some = np.sort(np.random.default_rng(0).permutation(len(us))[:MOST_ROWS])
        features, us = {name: np.asarray(features[name])[some] for name in names}, us[some]
    columns = np.column_stack([np.asarray(features[name], dtype=np.float64) for name in names])
    columns = np.column_stack([np.ones(len(us)) if shape.constant else np.zeros(len(us)), columns])
    start, _ = nnls(columns / us[:, None], np.ones(len(us)))
    # Coefficients in units in which each column's typical share of the time is 1.
    unit = np.array([1.0 / max(np.quantile(column / us, 0.9), 1e-12) for column in columns.T])
    seen = columns.any(axis=0)  # a feature that no row has gets no cost
    start, unit = np.where(seen, np.maximum(start / unit, 1e-3), 0.0), np.where(seen, unit, 0.0)
    best: tuple[float, Array, float] | None = None
    for p in POWERS if len(shape.roofs) > 1 else (1.0,):
        x, cost = robust_least_squares(_errors, start, ROBUST_FROM, (columns * unit, us, shape, p))
        if best is None or cost < best[0] * 0.999:
            best = cost, x * unit, p
    assert best is not None
    return _physics(shape, best[1], best[2])


def _errors(coefficients: Array, columns: Array, us: Array, shape: Shape, p: float) -> Array:
    parts = columns * coefficients
    total = parts[:, 0] + parts[:, 1 : 1 + len(shape.terms)].sum(axis=1)
    place = 1 + len(shape.terms)
    powers = np.zeros(len(us))
    for roof in shape.roofs:
        powers += np.maximum(parts[:, place : place + len(roof)].sum(axis=1), 1e-9) ** p
        place += len(roof)
    if shape.roofs:
        total = total + powers ** (1.0 / p)
    return np.asarray(np.log(np.maximum(total, 1e-9) / us))


def _physics(shape: Shape, coefficients: Array, p: float) -> Physics:
    values = [float(f"{value:.6g}") for value in coefficients]
    place = 1 + len(shape.terms)
    roofs: list[Sum] = []
    for roof in shape.roofs:
        roofs.append(tuple(zip(roof, values[place : place + len(roof)], strict=True)))
        place += len(roof)
    terms = tuple(zip(shape.terms, values[1 : 1 + len(shape.terms)], strict=True))
    return Physics(values[0], terms, tuple(roofs), p)


# Surfaces: physics, and its residuals on a grid.

DENSE = 0.5
"""From this share of the grid's cells on, the rows are a table: the correction is theirs, and holes are filled."""

CLAMP = 0.5  # a correction learnt from scattered rows is at most this much (log)
REACH = 1.2  # how far a scattered row's correction reaches, in log units of an axis (the length of a Gaussian process)
NOISE = 0.1  # variance of a scattered row's error, as a share of the correction's
MOST_SCATTERED = 600  # most scattered rows that the correction uses, taken evenly from all; the physics uses all


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kind of surface: coordinates by axis name, counts for the physics, and the physics' form."""

    axes: tuple[str, ...]
    shape: Shape
    features: Callable[..., Mapping[str, Array]]
    """From the coordinates' arrays, in the order of the axes."""


def fit_surface(
    kernel: Kernel, coordinates: Sequence[Array], us: Array, grid: Sequence[Array] | None = None
) -> Surface:
    """Fit physics and correction to rows at these coordinates.

    Where the rows fill a grid it is used as a table; `grid` gives the values of the axes where only those are to be
    cells. Otherwise the correction is a smoothed one on a coarse grid that spans the rows.
    """
    features = kernel.features(*coordinates)
    physics = fit_physics(kernel.shape, features, us)
    residual = np.log(us / np.asarray(physics.us(features)))
    values = [np.unique(column) for column in coordinates] if grid is None else grid
    is_table = is_dense(coordinates, values)
    if not is_table:
        values = [_spanning(column) for column in coordinates]
    axes = tuple(SurfaceAxis(name, tuple(axis.tolist())) for name, axis in zip(kernel.axes, values, strict=True))
    if is_table:
        table = on_grid(values, coordinates, residual)
        correction = fill(table, steadiness(table))
    else:
        smooth = smooth_residual(axes, coordinates, np.clip(residual, -CLAMP, CLAMP))
        correction = np.clip(smooth, -CLAMP, CLAMP)
    return Surface(axes, physics, tuple(correction.ravel().tolist()))


def is_dense(coordinates: Sequence[Array], values: Sequence[Array]) -> bool:
    """Tell whether the rows fill half of the cells of a grid or more."""
    cells = 1
    for axis in values:
        cells *= len(axis)
    inside = np.ones(len(coordinates[0]), dtype=bool)
    for column, axis in zip(coordinates, values, strict=True):
        inside &= np.isin(column, axis)
    return bool(inside.sum() >= DENSE * cells)


def on_grid(axes: Sequence[Sequence[float] | Array], columns: Sequence[Array], values: Array) -> Array:
    """The means of the values at the cells of the axes, NaN at those of none; rows between the cells are left out."""
    shape = tuple(len(axis) for axis in axes)
    inside = np.ones(len(values), dtype=bool)
    places = []
    for column, axis in zip(columns, axes, strict=True):
        inside &= np.isin(column, axis)
        places.append(np.clip(np.searchsorted(axis, column), 0, len(axis) - 1))
    flat = np.ravel_multi_index(tuple(place[inside] for place in places), shape)
    size = int(np.prod(shape))
    with np.errstate(invalid="ignore"):
        mean: Array = np.bincount(flat, values[inside], minlength=size) / np.bincount(flat, minlength=size)
    return mean.reshape(shape)


def _spanning(column: Array) -> Array:
    """Up to nine of a column's values, the least and the most among them."""
    known = np.unique(column)
    return np.asarray(known[np.unique(np.round(np.linspace(0, len(known) - 1, min(len(known), 9))).astype(int))])


def smooth_residual(axes: Sequence[SurfaceAxis], coordinates: Sequence[Array], residual: Array) -> Array:
    """Smooth the residuals of scattered rows to all cells of the axes (flat, the last axis fastest)."""
    rows = np.column_stack([np.log1p(column / axis.unit) for column, axis in zip(coordinates, axes, strict=True)])
    mesh = np.meshgrid(*[np.asarray(axis.places) for axis in axes], indexing="ij")
    cells = np.column_stack([axis.ravel() for axis in mesh])
    some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_SCATTERED)).astype(int))
    rows, residual = rows[some], residual[some]
    weights = np.linalg.solve(_likeness(rows, rows) + NOISE * np.eye(len(rows)), residual)
    return np.asarray(_likeness(cells, rows) @ weights)


def _likeness(places: Array, rows: Array) -> Array:
    distance = (places**2).sum(axis=1)[:, None] + (rows**2).sum(axis=1)[None, :] - 2.0 * places @ rows.T
    return np.asarray(np.exp(-0.5 * np.maximum(distance, 0.0) / REACH**2))


# The kernels of a step as surfaces: their axes, their counts, and the form of their physics.

JOINT_AXES = ("chunk", "cached", "seqs", "context")
JOINT_SHAPE = Shape(("tiles", "seqs"), (("pairs", "keys", "tokens", "missed"), ("chain",)))
KNEES = tuple(float(2 ** (half / 2)) for half in range(30, 43))


def joint(knee_keys: float) -> Kernel:
    """Prompt chunk and decodes in one kernel that splits no sequence: their work adds up, a chain bounds it."""

    def features(chunk: Array, cached: Array, seqs: Array, context: Array) -> Mapping[str, Array]:
        pairs = chunk * cached + 0.5 * chunk * (chunk + 1)
        context = np.where(seqs > 0, context, 0.0)
        return prompt_features(np.ones_like(chunk), chunk, pairs, chunk + cached, seqs, context, knee_keys)

    return Kernel(JOINT_AXES, JOINT_SHAPE, features)


def find_knee(coordinates: Sequence[Array], us: Array) -> float:
    """Find the `knee_keys` with which a sum of all features fits best: the largest where no row comes near a knee."""
    best = (np.inf, KNEES[-1])
    some = slice(None, None, max(1, len(us) // MOST_ROWS))
    coordinates, us = [column[some] for column in coordinates], us[some]
    for knee in reversed(KNEES):
        kernel = joint(knee)
        features = kernel.features(*coordinates)
        columns = np.column_stack([np.ones(len(us)), *[features[name] for name in kernel.shape.features]])
        _, error = nnls(columns / us[:, None], np.ones(len(us)))
        if error < best[0] * 0.99:
            best = error, knee
    return best[1]


def _prefill(chunks: Array, each: Array) -> Mapping[str, Array]:
    none = np.zeros_like(each)
    return prompt_features(chunks, chunks * each, chunks * 0.5 * each * (each + 1), each, none, none)


DECODE = Kernel(("seqs", "context"), Shape(("seqs",), (("keys",), ("chain",))), decode_features)
"""Decodes alone: the longer of reading the whole cache once and one sequence's keys one after another."""


PREFILL = Kernel(("chunks", "each"), Shape(("tiles",), (("pairs", "tokens"), ("chain",))), _prefill)  # prompts alone

EXPERTS = Kernel(("tokens", "activated"), Shape(("tokens",), (("tokens",), ("activated",))), expert_features)
"""Routed experts: the longer of reading the activated weights and the tokens' operations."""


SMALLEST = 1024  # no layer of a served model has products narrower than this in n or k: they are left out of the fit


def gemm_kernel(precision: str = "bf16") -> Kernel:
    """Matrix products with weights of that precision."""
    features = partial(product_features, weight_bytes=WEIGHT_BYTES[precision])
    return Kernel(("m", "n", "k"), Shape(("depth",), (("flops",), ("bytes",))), features)


GEMM = gemm_kernel()


def stands_for(name: str, m: Array) -> NDArray[np.bool_]:
    """Which sizes m a precision's table holds for: with fp8_block 1, 2 and multiples of 4, to which batches are padded.

    In the source (vLLM 0.19 on H100) other sizes take another path, which costs a fifth more.
    """
    return np.asarray((m % 4 == 0) | (m <= 2) if name == "fp8_block" else m > 0)


def gemm_surface(table: Table) -> Surface:
    """Fit products over (m, n, k)."""
    chosen = (table["n"] >= SMALLEST) & (table["k"] >= SMALLEST)
    return fit_surface(GEMM, [table[name][chosen] for name in ("m", "n", "k")], table["us"][chosen])


# Joint attention as the GPU schedules it: thread blocks in waves over the SMs. For tables of a few rows.
#
# FlashAttention 2 with a paged cache gives a block to every head and every tile of `TILE` query rows, a decode
# being one tile, and splits no sequence (flash_fwd_launch_template.h, run_mha_fwd_splitkv_dispatch). The form, the
# 64 keys read at a time and the one block an SM were settled on LLMServingSim's whole tables, which step where they
# say; its held-out errors are those of the coefficients, not of that choice. Blocks start in the order of the grid,
# tiles fastest, then sequences, then heads, each on the SM that is free first: how long the last takes follows from
# the numbers alone. What is left to fit is
#     us = constant + tiles + seqs + pnorm(waves, bytes)
#
# five coefficients, a power and a start-up, where the free fit has eight, a power and a knee. `bytes` are those of
# the keys, read again for every query head of a group that does not run with the others, once a head's keys exceed
# the L2 cache.
#
# The simulator knows no schedule: a fit is handed on as a surface, its correction worked out on a grid of
# doublings.

TILE = 64
STARTS = (0.0, 50.0, 100.0, 150.0, 200.0)
"""Costs of a block before its first key, in keys: tried in turn, the best is kept."""

SHAPE = Shape(("tiles", "seqs"), (("waves",), ("bytes",)))

L2_MIB: Mapping[str, int] = {"rtx-pro-6000": 128, "rtx-5090": 96, "rtx-4090": 72, "l40s": 96, "l4": 48}
"""MiB of L2 cache (NVIDIA's Ada and RTX Blackwell whitepapers). All have 100 KB of shared memory an SM, which holds one
such block."""

PER_OCTAVE = {"chunk": 2, "cached": 1, "seqs": 1, "context": 1}
MOST_CELLS_FITTED = 2000


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A model's heads on one GPU, and the blocks that the GPU runs at once."""

    heads: int
    kv_heads: int
    head_dim: int
    sms: int
    l2_bytes: int

    @property
    def knee_keys(self) -> float:
        """Keys of one KV head that fill the L2 cache."""
        return self.l2_bytes / (4 * self.head_dim)


def find_launch(model: Model, gpu: Gpu, ranks: int) -> KernelLaunch | None:
    """Find a model's launch on one of `ranks` GPUs; None where the GPU or the model has other kernels."""
    if gpu.name not in L2_MIB or model.kv_lora_rank:
        return None
    heads = max(1, model.heads // ranks)
    return KernelLaunch(heads, model.local_kv_heads(ranks), model.head_dim, CHIPS[gpu.name].sms, L2_MIB[gpu.name] << 20)


def scheduled_surface(launch: KernelLaunch, axes: Sequence[str], coordinates: Sequence[Array], us: Array) -> Surface:
    """Fit a joint surface over a grid that spans these few rows: the schedule's times, corrected by its residuals."""
    _, start, physics = min(
        (_fit(launch, coordinates, us, start) for start in STARTS), key=lambda found: found[0]
    )  # fmt: skip

    def predict(places: Sequence[Array]) -> Array:
        return np.asarray(physics.us(features(launch, places, start)))

    residual = np.log(us / predict(coordinates))
    grid = [_between(column, PER_OCTAVE[name]) for name, column in zip(axes, coordinates, strict=True)]
    found = tuple(SurfaceAxis(name, tuple(values.tolist())) for name, values in zip(axes, grid, strict=True))
    mesh = [column.ravel() for column in np.meshgrid(*grid, indexing="ij")]
    known = predict(mesh) * np.exp(smooth_residual(found, coordinates, residual))
    kernel = joint(launch.knee_keys)
    plain = _plain(kernel.shape, kernel.features(*mesh), known)
    correction = np.log(known / np.asarray(plain.us(kernel.features(*mesh))))
    return Surface(found, plain, tuple(correction.tolist()))


def features(launch: KernelLaunch, coordinates: Sequence[Array], start: float) -> Mapping[str, Array]:
    """Counts of joint steps (chunk, cached, seqs, context): empty tiles, decodes, waves in keys, bytes in 10^3."""
    chunk, cached, seqs, context = coordinates
    keys = seqs * context
    group = launch.heads / launch.kv_heads
    over = np.clip(np.log2(np.maximum(keys / launch.knee_keys, 0.25)) + 0.5, 0.0, 1.0)
    reads = group / np.clip(launch.sms / np.maximum(seqs, 1.0), 1.0, group)
    rows = zip(*[column.tolist() for column in coordinates], strict=True)
    return {
        "tiles": (1.0 + seqs) * np.ceil(chunk / TILE),
        "seqs": seqs,
        "waves": np.array([last_end(launch.heads, launch.sms, start, *row) for row in rows]),
        "bytes": 4e-3 * launch.head_dim * launch.kv_heads * (keys * (1.0 + (reads - 1.0) * over) + chunk + cached),
    }


@lru_cache(maxsize=1 << 17)
def last_end(heads: int, sms: int, start: float, chunk: float, cached: float, seqs: float, context: float) -> float:
    """Time the last block's end, in keys: `heads` x (decodes, then the chunk's tiles), each on the SM free first."""
    tiles = int(-(-chunk // TILE))
    decodes = [start + _padded(context)] * int(seqs)
    blocks = heads * (decodes + [start + _padded(cached + min(chunk, TILE * (i + 1.0))) for i in range(tiles)])
    ends = blocks[:sms]
    heapq.heapify(ends)
    for block in blocks[sms:]:
        heapq.heapreplace(ends, ends[0] + block)
    return max(ends)


def _padded(keys: float) -> float:
    return -(-keys // TILE) * TILE


def _fit(launch: KernelLaunch, coordinates: Sequence[Array], us: Array, start: float) -> tuple[float, float, Physics]:
    found = features(launch, coordinates, start)
    physics = fit_physics(SHAPE, found, us)
    return float(np.abs(np.log(np.asarray(physics.us(found)) / us)).mean()), start, physics


def _between(column: Array, per_octave: int) -> Array:
    """Parts of octaves between a column's least and most, both of these, and 0 where the column has it."""
    above = column[column > 0]
    if not len(above):
        return np.zeros(1)
    steps = np.round(2.0 ** (np.arange(21 * per_octave) / per_octave))
    inside = steps[(steps > above.min()) & (steps < above.max())]
    return np.unique(np.concatenate([column[column == 0], [above.min()], inside, [above.max()]]))


def _plain(shape: Shape, found: Mapping[str, Array], us: Array) -> Physics:
    """The simulator's own physics, fitted to the schedule's times."""
    some = np.linspace(0, len(us) - 1, min(len(us), MOST_CELLS_FITTED)).astype(int)
    return fit_physics(shape, {name: values[some] for name, values in found.items()}, us[some])
