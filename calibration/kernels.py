"""The kernels of a step as surfaces: their axes, their counts, and the form of their physics."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from calibration.physics_fit import MOST_ROWS, Shape
from calibration.rows import Table
from calibration.solvers import nnls
from calibration.surface_fit import Kernel, fit_surface
from simulator.timing.profile.experts import expert_features
from simulator.timing.profile.physics import decode_features, prompt_features
from simulator.timing.profile.surface import Array, Surface
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
