"""Errors of latent attention on what its tables are made to forget.

Regimes: `random` (a tenth of the cells, each from its neighbours), `heads` (all of one number of heads, from those
beside it).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from calibration.heldout import FOLDS, SEED, summary
from simulator.timing.tables.latent import module_of
from simulator.timing.tables.latent_schema import LatentTables, Module, Modules, filled

Array = NDArray[np.float64]
Errors = dict[str, dict[str, dict[str, float]]]


def latent_errors(tables: LatentTables) -> Errors:
    """Errors by kind and regime, in percent (`calibration.heldout.summary`)."""
    found: Errors = {}
    for kind, parts in (("latent_decode", tables.decode), ("latent_prompt", tables.prompt)):
        parted = {
            "random": [errors for modules in parts for errors in _cells(modules)],
            "heads": [errors for modules in parts for errors in _one_left_out(modules)],
        }
        all_of = {regime: np.concatenate(errors) for regime, errors in parted.items() if errors}
        found[kind] = {regime: summary(errors) for regime, errors in all_of.items() if len(errors)}
    return found


def _cells(modules: Modules) -> Iterator[Array]:
    """Errors of single cells that were measured, a tenth of them at a time."""
    generator = np.random.default_rng(SEED)
    for module in modules.by_heads.values():
        known = np.flatnonzero(module.measured)
        left = generator.permutation(known)[: len(known) // FOLDS]
        holes = np.where(module.measured, module.log_us, np.nan)
        holes.ravel()[left] = np.nan
        found = filled(modules.axes, module.physics, holes)
        yield np.exp(found.ravel()[left] - module.log_us.ravel()[left]) - 1.0


def _one_left_out(modules: Modules) -> Iterator[Array]:
    """Errors of each number of heads that lies between others."""
    known = list(modules.by_heads)
    for heads in known[1:-1]:
        rest: dict[int, Module] = {each: module for each, module in modules.by_heads.items() if each != heads}
        found, _, _ = module_of(replace(modules, by_heads=rest), heads, "")
        module = modules.by_heads[heads]
        yield np.exp(found.log_us - module.log_us)[module.measured] - 1.0
