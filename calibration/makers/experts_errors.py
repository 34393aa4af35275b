"""Errors of tables of experts on what they leave out to see.

Regimes: `models` (all cells of a model, from those of the others), `parallel` (a cell, from the same model and the
others divided among other numbers of GPUs), `tokens` (every other size, from those beside it: from twice as far as any
step is).
"""

from collections.abc import Iterator

import numpy as np

from calibration.heldout import summary
from simulator.timing.profile.surface import Array
from simulator.timing.tables.expert_tables import Cell, ExpertKernels, ExpertTables
from simulator.timing.tables.routed_experts import BALANCED, GENTLE, estimated

Errors = dict[str, dict[str, dict[str, float]]]


def errors_of(tables: ExpertTables) -> Errors:
    """Errors by precision and regime, in percent (`calibration.heldout.summary`)."""
    found: Errors = {}
    for precision, kernels in tables.precisions.items():
        load = BALANCED if any(BALANCED in of.log_us for of in kernels.cells.values()) else GENTLE
        regimes = {
            "models": list(_left_out(tables, precision, kernels, load, models=True)),
            "parallel": list(_left_out(tables, precision, kernels, load, models=False)),
            "tokens": [_every_other(tables.tokens, of.log_us[load]) for of in kernels.cells.values()
                       if load in of.log_us],
        }  # fmt: skip
        regimes = {name: [each for each in errors if len(each)] for name, errors in regimes.items()}
        found[f"experts_{precision}"] = {
            name: summary(np.concatenate(errors)) for name, errors in regimes.items() if errors
        }
    return found


def _left_out(tables: ExpertTables, precision: str, kernels: ExpertKernels, load: str, models: bool) -> Iterator[Array]:
    for cell, of in kernels.cells.items():
        if load not in of.log_us:
            continue
        rest = {
            (other, precision): each
            for other, each in kernels.cells.items()
            if load in each.log_us and other != cell and not (models and _of_one_model(cell, other))
        }
        if rest:
            found, _ = estimated(tables, rest, cell, precision, load)
            known = ~np.isnan(of.log_us[load])
            yield np.exp(found[known] - of.log_us[load][known]) - 1.0


def _of_one_model(one: Cell, other: Cell) -> bool:
    """True if two cells come from one model, or from models of the same sizes."""
    return (one.hidden, one.experts, one.top_k) == (other.hidden, other.experts, other.top_k)


def _every_other(tokens: Array, log_us: Array) -> Array:
    known = np.flatnonzero(~np.isnan(log_us))
    left, kept = known[1:-1:2], np.union1d(known[::2], known[-1:])
    us = np.exp(log_us)
    return np.asarray(np.interp(tokens[left], tokens[kept], us[kept]) / us[left] - 1.0)
