"""Predicted output lengths, made from the true ones. No other module sees both.

A prediction is a column of the workload, between 1 and the request's `max_tokens`. Queue orders read that column alone.
"""

import math
from dataclasses import replace

import numpy as np

from scenarios.random_draws import stream
from scenarios.schema.client import ClassMeanPredictor, NoisyPredictor, NoPredictor, OraclePredictor, Predictor
from simulator.workload import ClosedLoop, Floats, Workload

_SAMPLE = 4096  # chains of a pool without an end, whose mean output stands for all


def predict(workload: Workload, predictor: Predictor, seed: int) -> Workload:
    """Return the workload with the predictions of `predictor` in place of any earlier ones.

    Each class draws its errors from a random stream of their own: they move no arrival and no length.
    """
    loops = tuple(_told(loop, predictor, seed) for loop in workload.loops)
    if isinstance(predictor, NoPredictor):
        return replace(workload, predicted_output_tokens=None, loops=loops)
    true = _true(workload)
    if isinstance(predictor, OraclePredictor):
        found = true
    elif isinstance(predictor, NoisyPredictor):
        found = true * _errors(workload, predictor.cv, seed)
    else:
        found = _class_means(workload)[workload.class_index]
    predicted = np.clip(np.rint(found), 1, workload.max_tokens).astype(np.int64)
    return replace(workload, predicted_output_tokens=predicted, loops=loops)


def _told(loop: ClosedLoop, predictor: Predictor, seed: int) -> ClosedLoop:
    """Return the closed loop with predictions. A request keeps its prediction as the pool grows."""
    if not isinstance(predictor, ClassMeanPredictor):
        return replace(loop, draw=lambda count: predict(loop.draw(count), predictor, seed))
    means = np.rint(_class_means(loop.draw(_SAMPLE if loop.requests is None else loop.requests)))

    def draw(count: int) -> Workload:
        pool = loop.draw(count)
        predicted = np.clip(means[pool.class_index], 1, pool.max_tokens).astype(np.int64)
        return replace(pool, predicted_output_tokens=predicted)

    return replace(loop, draw=draw)


def _true(workload: Workload) -> Floats:
    return np.minimum(workload.output_tokens, workload.max_tokens).astype(np.float64)


def _class_means(workload: Workload) -> Floats:
    """The mean output of each class; 0 for one without a request."""
    counts = np.bincount(workload.class_index, minlength=len(workload.class_names))
    sums = np.bincount(workload.class_index, _true(workload), minlength=len(workload.class_names))
    return np.asarray(sums / np.maximum(counts, 1))


def _errors(workload: Workload, cv: float, seed: int) -> Floats:
    """A factor for each request: lognormal, mean 1."""
    variance = math.log1p(cv * cv)
    factors = np.ones(len(workload))
    for index, name in enumerate(workload.class_names):
        rows = np.flatnonzero(workload.class_index == index)
        normal = stream(seed, name, "prediction").standard_normal(len(rows))
        factors[rows] = np.exp(math.sqrt(variance) * normal - variance / 2)
    return factors
