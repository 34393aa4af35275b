"""Errors of tables on rows that they do not hold, or that are left out for the test.

Regimes: `thinned` (products between the rows that were kept), `sizes` (every other width of a product, from those
beside it), `random` (a tenth of the cells of attention, each from its neighbours, so from twice as far as any step is),
`heads` (all of one pair of query and KV heads, from the others), `kv_heads` (all with the most KV heads, from those
with fewer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from calibration.heldout import FOLDS, SEED, Errors, summary
from calibration.kernels import stands_for
from simulator.timing.profile.surface import Array, Surface
from simulator.timing.tables.attention import Found, decode_us, prompt_us
from simulator.timing.tables.products import WEIGHT_BYTES, product_curve, product_features, without_widths
from simulator.timing.tables.table_schema import Heads, HeadTable, Tables

if TYPE_CHECKING:
    import pandas as pd

Predict = Callable[[HeadTable, Heads], Found]


def errors_of(tables: Tables, products: pd.DataFrame) -> Errors:
    """Errors by kind and regime, in percent (`calibration.heldout.summary`)."""
    found: Errors = {}
    for dtype in tables.products:
        regimes = {"thinned": _thinned(tables, dtype, products), "sizes": _sizes(tables.products[dtype], dtype)}
        found[f"gemm_{dtype}"] = {name: summary(errors) for name, errors in regimes.items() if len(errors)}
    kinds: tuple[tuple[str, tuple[HeadTable, ...], Predict], ...] = (
        ("decode_attention", tables.decode, decode_us),
        ("prefill_attention", tables.prompt, prompt_us),
    )
    for kind, parts, predict in kinds:
        parted = {
            "random": [each for table in parts for each in _cells(table, predict)],
            "heads": [each for table in parts for each in _one_left_out(table, predict)],
            "kv_heads": [each for table in parts for each in _most_left_out(table, predict)],
        }
        found[kind] = {name: summary(np.concatenate(errors)) for name, errors in parted.items() if errors}
    return found


def _thinned(tables: Tables, dtype: str, rows: pd.DataFrame) -> Array:
    """Relative errors of products within the grid that are not among its cells."""
    surface = tables.products[dtype]
    m_axis, n_axis, k_axis = surface.axes
    rows = rows[(rows["precision"] == dtype) & stands_for(dtype, rows["m"].to_numpy(float))]
    for name, axis in (("m", m_axis), ("n", n_axis), ("k", k_axis)):
        rows = rows[(rows[name] >= axis.values[0]) & (rows[name] <= axis.values[-1])]
    errors = []
    for _, some in rows.groupby(["n", "k"]):
        n, k = float(some["n"].iloc[0]), float(some["k"].iloc[0])
        m, us = some["m"].to_numpy(float), some["us"].to_numpy(float)
        left = ~np.isin(m, m_axis.values) if n in n_axis.values and k in k_axis.values else np.ones(len(m), dtype=bool)
        curve = product_curve(surface, n, k, np.asarray(m_axis.values), WEIGHT_BYTES[dtype])
        errors.append(np.array([curve.at(size) for size in m[left]]) / us[left] - 1.0)
    return np.concatenate(errors) if errors else np.empty(0)


def _sizes(surface: Surface, dtype: str) -> Array:
    """Relative errors at every other n and k, from a grid of the others: from twice as far as any product is."""
    m, n, k = [np.asarray(axis.values) for axis in surface.axes]
    thin = without_widths(surface, n[1::2], k[1::2])
    places = np.meshgrid(m, n, k, indexing="ij")
    left = ~(np.isin(places[1], thin.axes[1].values) & np.isin(places[2], thin.axes[2].values))
    at = [place[left] for place in places]
    features = product_features(at[0], at[1], at[2], WEIGHT_BYTES[dtype])
    return np.asarray(thin.us_many(at, features) / surface.us_many(at, features) - 1.0)


def _cells(table: HeadTable, predict: Predict) -> Iterator[Array]:
    """Errors of single cells, a tenth of them at a time."""
    generator = np.random.default_rng(SEED)
    for heads, values in table.log_us.items():
        known = np.flatnonzero(~np.isnan(values))
        if len(known) < FOLDS:
            continue
        left = generator.permutation(known)[: len(known) // FOLDS]
        holes = values.copy()
        holes.ravel()[left] = np.nan
        found = predict(replace(table, log_us={**table.log_us, heads: holes}), heads).log_us
        yield np.exp(found.ravel()[left] - values.ravel()[left]) - 1.0


def _one_left_out(table: HeadTable, predict: Predict) -> Iterator[Array]:
    """Errors of each pair of heads that lies between others."""
    for heads, values in table.log_us.items():
        beside = [query for query, kv_heads in table.log_us if kv_heads == heads[1]]
        if min(beside) < heads[0] < max(beside):
            rest = {each: known for each, known in table.log_us.items() if each != heads}
            yield _errors(predict(replace(table, log_us=rest), heads).log_us, values)


def _most_left_out(table: HeadTable, predict: Predict) -> Iterator[Array]:
    """Errors of the pairs with the most KV heads."""
    most = max(kv_heads for _, kv_heads in table.log_us)
    rest = {heads: known for heads, known in table.log_us.items() if heads[1] < most}
    if rest:
        for heads, values in table.log_us.items():
            if heads[1] == most:
                yield _errors(predict(replace(table, log_us=rest), heads).log_us, values)


def _errors(found: Array, values: Array) -> Array:
    known = ~np.isnan(values)
    return np.asarray(np.exp(found[known] - values[known]) - 1.0)
