"""The kernels of a step as surfaces: their axes, their counts, and the form of their physics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from calibration.physics_fit import MOST_ROWS, Shape
from calibration.solvers import nnls
from calibration.surface_fit import Kernel
from simulator.timing.profile.experts import expert_features
from simulator.timing.profile.features import decode_features, prompt_features
from simulator.timing.profile.surface import Array

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
