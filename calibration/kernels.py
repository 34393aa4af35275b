"""The kernels of a step as surfaces: their axes, their counts, and the form of their physics."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from calibration.rows import Table
from calibration.surface_fit import MOST_ROWS, Kernel, Shape, fit_physics, fit_surface, nnls, smooth_residual
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.kernels import expert_features
from simulator.timing.profile.surface import Array, Physics, Surface, SurfaceAxis, decode_features, prompt_features
from simulator.timing.tables.attention import CHIPS
from simulator.timing.tables.products import WEIGHT_BYTES, product_features

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
