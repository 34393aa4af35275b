"""Predicted output lengths, made from the true ones: the only place where the two meet.

A prediction is a column of the workload, between 1 and the request's `max_tokens`. Orders read that column alone, and
cannot know how it was made or how wrong it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from scenarios.schema.predictor import NoisyPredictor, NoPredictor, OraclePredictor, Predictor
from scenarios.streams import stream
from simulator.workload import Floats, Workload


def predict(workload: Workload, predictor: Predictor, seed: int) -> Workload:
    """The workload with the predictions that `predictor` makes, whatever predictions it had before.

    Errors are drawn by class from a random stream of their own: no arrival and no length moves with them.
    """
    if isinstance(predictor, NoPredictor):
        return replace(workload, predicted_output_tokens=None)
    true = np.minimum(workload.output_tokens, workload.max_tokens).astype(np.float64)
    if isinstance(predictor, OraclePredictor):
        found = true
    elif isinstance(predictor, NoisyPredictor):
        found = true * _errors(workload, predictor.cv, seed)
    else:
        counts = np.bincount(workload.class_index, minlength=len(workload.class_names))
        sums = np.bincount(workload.class_index, true, minlength=len(workload.class_names))
        found = (sums / np.maximum(counts, 1))[workload.class_index]
    predicted = np.clip(np.rint(found), 1, workload.max_tokens).astype(np.int64)
    return replace(workload, predicted_output_tokens=predicted)


def _errors(workload: Workload, cv: float, seed: int) -> Floats:
    """A factor for each request: lognormal, mean 1."""
    variance = math.log1p(cv * cv)
    factors = np.ones(len(workload))
    for index, name in enumerate(workload.class_names):
        rows = np.flatnonzero(workload.class_index == index)
        normal = stream(seed, name, "prediction").standard_normal(len(rows))
        factors[rows] = np.exp(math.sqrt(variance) * normal - variance / 2)
    return factors
