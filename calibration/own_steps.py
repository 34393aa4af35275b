"""Fit a profile to what an engine measured of itself, from what tables or the roofline say before.

A few steps are enough: what they do not tell stays as it was believed (`calibration.belief`). Each step is held out
once; the errors without it are kept in the profile, and with them the interval in which a step of that server lies.
"""

from dataclasses import dataclass

import numpy as np

from calibration.belief import Belief
from calibration.engines.reader import DEVICE, KERNELS, WHOLE
from calibration.fit import ASSUMED_HOST
from calibration.heldout import FOLDS, SEED, summary
from calibration.rows import KernelRows, select
from calibration.steps import COUNTS_OF_TOKENS, document_of
from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.surface import Array
from simulator.timing.roofline_cost import ACTIVATION_BYTES, BANDWIDTH_EFFICIENCY
from simulator.timing.tables.assumed import sampler

FEWEST = 4
ALONE = 60  # up to so many steps each is held out alone, more in tenths
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98)
"""Probabilities for which the profile says how far off a step is."""
OWN = "own_steps"
"""The key of a profile that was fitted here."""


@dataclass(frozen=True, slots=True)
class OwnFit:
    """A profile's JSON, and how far steps were off before and are off now, held out (percent)."""

    document: dict[str, object]
    before: dict[str, float]
    held_out: dict[str, float]


def scope_of(rows: KernelRows) -> str | None:
    """What the times of an engine's own measurement hold; None for rows of another kind.

    InputError where sources are mixed whose times hold different things.
    """
    found = {str(source["scope"]) for source in rows.sources if "scope" in source}
    if len(found) > 1:
        raise InputError(f"sources of different kinds: times of {' and of '.join(sorted(found))}",
                         hint="fit one profile to each, and see which predicts the server better")  # fmt: skip
    return next(iter(found), None)


def noise_of(rows: KernelRows) -> float:
    """By how much a time may be off for what its source does not say, as a fraction."""
    return max(float(source["noise"]) for source in rows.sources if "noise" in source)


def fit_own_steps(rows: KernelRows, belief: Belief, model: Model, gpu: Gpu, name: str) -> OwnFit:
    """Fit the profile. InputError where there are too few steps."""
    scope, ranks = scope_of(rows) or WHOLE, rows.tensor_parallel
    table = rows.table("step")
    size = len(table["us"])
    if size < FEWEST:
        raise InputError(f"{size} steps are too few to fit", hint=f"at least {FEWEST}, of different sizes")
    if scope == KERNELS:
        head = head_us(model, gpu, ranks, table["decode_seqs"] + table["prefill_seqs"])
        table = {**table, "us": table["us"] + head}
    noise = np.full(size, noise_of(rows))
    fold = np.arange(size) if size <= ALONE else np.random.default_rng(SEED).permutation(size) % FOLDS
    errors, sure = np.empty(size), np.empty(size)
    for each in range(int(fold.max()) + 1):
        out = fold == each
        without, held = belief.given(select(table, ~out), noise[~out]), select(table, out)
        errors[out] = without.us(held) / held["us"] - 1.0
        sure[out] = np.sqrt(without.log_sd(held) ** 2 + noise[out] ** 2 + belief.form_error**2)
    before, after = summary(belief.us(table) / table["us"] - 1.0), summary(errors)
    document = document_of(
        belief.given(table, noise).physics(), COUNTS_OF_TOKENS, table, name, model.name, rows.gpu, ranks
    )
    if scope in (KERNELS, DEVICE):
        document["host"] = ASSUMED_HOST
    document |= {
        "software": rows.software,
        "sources": [dict(source) for source in rows.sources],
        "errors": {"step": {"random": after, "before": before}},
        OWN: {"rows": size, "levels": list(LEVELS), "log_ratio": _off(errors, sure)},
    }
    return OwnFit(document, before, after)


def _off(errors: Array, sure: Array) -> list[float]:
    """The sizes of log(measured / predicted) below which a step lies with each of `LEVELS`, at the median of `sure`.

    Conformal prediction over the held-out errors, each over what was to be expected of it: a step far from all others
    says little of the usual one. The ranks count the step to come; beyond the last rank the size grows with the rank.
    """
    off = np.sort(np.abs(np.log1p(np.maximum(errors, -0.99))) / sure)
    size = len(off)
    wanted = np.ceil((size + 1) * np.array(LEVELS))
    found = np.where(wanted <= size, off[np.minimum(wanted.astype(int), size) - 1], off[-1] * wanted / size)
    return [round(float(value), 5) for value in np.median(sure) * np.maximum.accumulate(found)]


def head_us(model: Model, gpu: Gpu, ranks: int, rows: Array) -> Array:
    """Microseconds of the head and the sampler for so many rows: its weights are read once."""
    weights = ACTIVATION_BYTES * model.vocab * model.hidden / ranks
    flops = 2.0 * model.vocab * model.hidden / ranks * rows
    longest = np.maximum(weights / (1e9 * gpu.bandwidth_gb_s * BANDWIDTH_EFFICIENCY), flops / (1e12 * gpu.bf16_tflops))
    curve = sampler(model, gpu)
    return np.asarray(1e6 * longest + np.array([curve.at(float(count)) for count in rows]))
