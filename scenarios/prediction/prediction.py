"""The entry `prediction` of summary.json: where metrics of the real server lie, by how far others were off."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scenarios.assembly.fleet_parts import BuiltGroup
from scenarios.schema.workload import GeneratedWorkload
from scenarios.servers import server_of
from simulator.errors import InputError
from simulator.hardware.models import Model
from simulator.metrics.summary import E2E, PREDICTION, PRICE, THROUGHPUT, TPOT, TTFT
from simulator.parameters import CHANGED
from simulator.results.records import Ints, Records

if TYPE_CHECKING:
    from scenarios.schema.scenario import Scenario
    from simulator.timing.profile import Profile
    from simulator.timing.tables.table_schema import PartSource


# How far runs of real servers were from their predictions: quantiles by engine, tested on what was left out.
#     {"schema": "batchlab residuals", "version": 2, "source": ..., "rows": n, "cells": m, "levels": [...],
#      "strata": {"vllm": {"mean_tpot_ms": [...], ...}, ..., "any": {...}, "roofline": {...}},
#      "spread": {"mean_tpot_ms": {"basis": {"measured": -0.1, ...}, ...}, ...},
#      "wider": {"outside": 1.5}, "gpus": [...], "most": {"batch": n}}
#
# A quantile is of log(measured / predicted) over the spread of its run, at one of the `levels`; a cell (engine,
# model, GPU, precision) with many rows counts as some. The spread is e to the sum of what `spread` has of the run's
# traits: how its price was come by, the kind of model, the load, the GPUs (`traits_of`). So an interval is narrow
# where errors of such runs were small: conformal prediction with normalised residuals (Papadopoulos, Gammerman,
# Vovk, 2008; Lei et al., 2018). A stratum is of an engine or of all runs. `docs.writers.accuracy` makes the file.
# There the quantiles are moved away from their median until they hold so many of the runs of a model, a GPU, a
# version or an engine that they know nothing of.

METRICS = (TTFT, TPOT, E2E)
WARM = "mean_ttft_ms, warm"
"""TTFT of servers that have compiled their kernels: without the measured runs that began before theirs had."""
ANY, ROOFLINE = "any", "roofline"
LOADS = (4, 16, 64, 256, 1024)
"""Prompt tokens a step of a full batch, between which spreads differ: with more, a run is less of decodes."""
FEW_GPUS, SOME_GPUS = 1, 4  # of a replica
OUTSIDE = "outside"  # among `wider`: beyond the measured envelope
SCHEMA, VERSION = "batchlab residuals", 2
FILE = Path(__file__).with_name("residuals.json")


@dataclass(frozen=True, slots=True)
class Residuals:
    """Quantiles of normalised log(measured / predicted) by stratum and metric, and the spreads by trait."""

    levels: tuple[float, ...]
    strata: Mapping[str, Mapping[str, Sequence[float]]]
    spread: Mapping[str, Mapping[str, Mapping[str, float]]]
    wider: Mapping[str, float]
    gpus: tuple[str, ...]
    most: Mapping[str, float]
    rows: int
    cells: int

    def factors(
        self, stratum: str, metric: str, coverage: float, traits: Mapping[str, str], times: float = 1.0
    ) -> tuple[float, float]:
        """Return the factors between which the real metric lies with this probability, given the predicted one.

        Those of the stratum if it is known, or of all runs, for a run with these traits, made so many times as wide.
        """
        quantiles = self.strata.get(stratum, self.strata[ANY])[metric]
        known = self.spread.get(metric, {})
        spread = exp(sum(known.get(trait, {}).get(value, 0.0) for trait, value in traits.items()))
        middle = float(np.interp(0.5, self.levels, quantiles))
        ends = [float(np.interp(level, self.levels, quantiles)) for level in (0.5 - coverage / 2, 0.5 + coverage / 2)]
        low, high = (exp(spread * (middle + times * (end - middle))) for end in ends)
        return low, high


def traits_of(basis: str, model: Model, gpus: int, load: float | None) -> dict[str, str]:
    """Return what the errors of such runs differ by.

    `gpus` are those in tensor parallel. `load` is the mean batch times prompt tokens over answers' tokens, None where
    it is not known.
    """
    kind = "latent attention" if model.kv_lora_rank else "experts" if model.experts else "dense"
    size = "one" if gpus <= FEW_GPUS else "some" if gpus <= SOME_GPUS else "many"
    found = {"basis": basis, "kind": kind, "gpus": size}
    return found if load is None else {**found, "load": str(sum(load > most for most in LOADS))}


@cache
def shipped_residuals() -> Residuals:
    """Read the residuals that come with batchlab. InputError where the file is damaged."""
    try:
        held = json.loads(FILE.read_text(encoding="utf-8"))
        assert (held["schema"], held["version"]) == (SCHEMA, VERSION)
        return Residuals(
            tuple(held["levels"]),
            held["strata"],
            held["spread"],
            held["wider"],
            tuple(held["gpus"]),
            held["most"],
            int(held["rows"]),
            int(held["cells"]),
        )
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise InputError(f"the residuals of predictions cannot be read: {error}", file=str(FILE)) from None


def check_coverage(coverage: float) -> float:
    """Return a probability that an interval can have. InputError for any other."""
    least, most = 0.5, 0.98
    if not least <= coverage <= most:
        raise InputError(f"a confidence is from {least} to {most}, not {coverage:g}", file="--confidence")
    return coverage


# The basis of a run's step times: measured kernels, or how far from these.

MEASURED, INTERPOLATED, EXTRAPOLATED = "measured", "interpolated", "extrapolated"
OTHER_ENGINE = "other engine"
BASES = (MEASURED, INTERPOLATED, EXTRAPOLATED, OTHER_ENGINE, ROOFLINE)
"""From the surest to the least sure."""

_HOW = {"borrowed": OTHER_ENGINE, "extrapolated": EXTRAPOLATED, "interpolated": INTERPOLATED}
_SMALL = ("router", "lm_head", "top_k", "sampler", "shared_", "dense_")
"""Parts that no step consists of: what is said of them says little of it."""


OWN = "own_steps"
"""The key of a profile that `calibrate fit` made of what an engine measured of itself."""


@dataclass(frozen=True, slots=True)
class Off:
    """The sizes of log(measured / predicted) below which a step lies with each of the `levels`."""

    levels: tuple[float, ...]
    log_ratio: tuple[float, ...]

    def factors(self, coverage: float, times: float) -> tuple[float, float]:
        """Return the factors between which the real time lies with this probability, made so many times as wide."""
        off = times * float(np.interp(coverage, self.levels, self.log_ratio))
        return exp(-off), exp(off)


@dataclass(frozen=True, slots=True)
class Basis:
    """One of `BASES`, and which parts of a step it is by; of a user's own measured steps how far these are off."""

    name: str
    why: str
    own: Off | None = None


def basis_of(fleet: Sequence[BuiltGroup]) -> Basis | None:
    """Return the least sure basis of a fleet's groups; None where one of them has a cost of the user's own."""
    found = [_of_group(built) for built in fleet]
    bases = [each for each in found if each is not None]
    return max(bases, key=lambda each: BASES.index(each.name)) if len(bases) == len(found) else None


def _of_group(built: BuiltGroup) -> Basis | None:
    kind = built.group.scenario.resolve_cost().kind
    if kind == "roofline":
        return Basis(ROOFLINE, "operations and bytes of the model, no measured kernel")
    if kind != "profile":
        return None
    from simulator.timing.profile import ProfileCost
    from simulator.timing.tables import parts_of

    cost = built.parts.cost
    while not isinstance(cost, ProfileCost) and hasattr(cost, "cost"):
        cost = cost.cost
    if not isinstance(cost, ProfileCost):
        return None
    found = _of_profile(cost.profile, parts_of(cost.profile))
    return replace(found, why="; ".join((found.why, *_left_open(cost.profile))))


def _left_open(profile: Profile) -> list[str]:
    """What no kernel was measured of, so that it costs nothing here: its cost lies within the interval or not."""
    from simulator.timing.tables import parts_of
    from simulator.timing.tables.table_schema import NOTHING, UNEQUAL, fitted_parts

    parts = (*parts_of(profile), *fitted_parts(profile))
    nothing = any(part.name == UNEQUAL and part.words.startswith(NOTHING) for part in parts)
    return ["assumed: requests of mixed length cost as much as equal ones (not measured)"] if nothing else []


def _of_profile(profile: Profile, parts: Iterable[PartSource]) -> Basis:
    if (own := profile.document.get(OWN)) is not None:
        error = profile.document["errors"]["step"]["random"]["mape"]
        why = f"{own['rows']} steps by {profile.document['software']}, held out {error:.1f} % off ({profile.name})"
        return Basis(MEASURED, why, Off(tuple(own["levels"]), tuple(own["log_ratio"])))
    named: dict[str, list[str]] = {}
    for part in parts:
        if part.how in _HOW and not part.name.startswith(_SMALL):
            named.setdefault(_HOW[part.how], []).append(part.name)
    for basis in reversed(BASES):
        if basis in named:
            return Basis(basis, f"{basis}: {', '.join(named[basis])} ({profile.name})")
    return Basis(MEASURED, f"kernels of {profile.name}")


# The load of a server in an open loop, and what steps that take longer or shorter do to it.
#
# A step takes a fixed time, a time for each decode and one for each prompt token: `Load` fits the three to a run's
# steps. With so many requests a second, the work of all is a share `busy` of the time; the fixed part is needed as
# often as a full batch would need it. Where steps take f times as long, a batch grows until it is served again:
# decodes take f (1 - busy) / (1 - f busy) times as long, at most as long as in a full batch: of as many requests as
# have slots, and as the KV cache holds. Above f busy = 1 the queue grows.

MOST_ROWS = 20_000  # of a run's steps: evenly spaced ones stand for more
FULL = 0.98  # a server that is busy so long serves no more


@dataclass(frozen=True, slots=True)
class Load:
    """Share of the time that the requests' work takes; seconds of arrivals; slots; requests a second; seconds for which
    a request decodes alone."""

    busy: float
    arrivals_s: float
    slots: int
    rate: float
    alone_s: float

    def decodes(self, factor: float, decode_s: float) -> float:
        """Return how many times as long a request decodes, of `decode_s` now, if steps take `factor` times as long."""
        if decode_s <= 0.0:
            return factor
        full = factor * self.slots * self.busy / (self.rate * decode_s)
        grown = factor * self.busy
        if grown >= FULL:
            return max(factor, full) if self.busy < FULL else factor
        unloaded = 1.0 - self.busy if self.busy < FULL else self.alone_s / decode_s
        return min(max(min(factor, 1.0), full), factor * unloaded / (1.0 - grown))

    def queue_s(self, factor: float, queue_s: float) -> float:
        """Return the mean wait, of `queue_s` now, if steps take `factor` times as long."""
        grown = factor * self.busy
        backlog_s = max(0.0, grown - max(1.0, self.busy)) * self.arrivals_s / 2.0
        if max(grown, self.busy) < FULL:
            return queue_s * factor * (1.0 - self.busy) / (1.0 - grown)
        relief_s = max(0.0, self.busy - max(1.0, grown)) * self.arrivals_s / 2.0
        return max(0.0, max(queue_s, factor * queue_s if factor < 1.0 else queue_s) + backlog_s - relief_s)


def load_of(records: Records, slots: int) -> Load | None:
    """Return the load of a run in an open loop; None where it has too few steps or arrivals to say."""
    rows, arrival_s = records.rows, records.requests.arrival_s
    some = np.unique(np.linspace(0, len(rows.repeat) - 1, min(len(rows.repeat), MOST_ROWS)).astype(int))
    span_s = float(np.ptp(arrival_s)) if len(arrival_s) > 1 else 0.0
    if len(some) < 3 or span_s <= 0.0:
        return None
    repeat = rows.repeat[some].astype(float)
    step_s = (rows.end_s[some] - rows.start_s[some]) / repeat
    work = np.column_stack([np.ones(len(some)), rows.decoding[some], rows.prefill_tokens[some]]).astype(float)
    slots = _most_at_once(records, some, slots)
    weight = np.sqrt(repeat)
    found, *_ = np.linalg.lstsq(work * weight[:, None], step_s * weight, rcond=None)
    fixed_s, decode_s, token_s = np.maximum(found, 0.0).tolist()
    decodes = float((rows.decoding * rows.repeat).sum())
    tokens = float((rows.prefill_tokens * rows.repeat).sum())
    needed_s = decodes * (decode_s + fixed_s / slots) + tokens * token_s
    rate = len(arrival_s) / span_s
    alone_s = fixed_s * decodes / len(arrival_s)
    return Load(needed_s / (span_s * records.replicas), span_s, slots * records.replicas, rate, alone_s)


def _most_at_once(records: Records, some: Ints, slots: int) -> int:
    """Return how many requests like those of the fullest of `some` steps one replica holds: by slots and KV blocks."""
    rows = records.rows
    used = records.step_used_blocks[rows.first_step[some] + rows.repeat[some] - 1]
    fullest = (used >= 0.9 * used.max()) & (used > 0)
    if not fullest.any():
        return slots
    held = np.median(rows.running[some][fullest] * (records.num_blocks / used[fullest]))
    return max(1, min(slots, int(held)))


COVERAGE = 0.9
Interval = dict[str, float]


def prediction_entry(
    scenario: Scenario,
    fleet: Sequence[BuiltGroup],
    records: Records,
    summary: Mapping[str, Any],
    coverage: float = COVERAGE,
) -> dict[str, Any]:
    """Return `{PREDICTION: ...}` of a run; an empty mapping for a cost whose figures are the user's own."""
    basis = basis_of(fleet)
    if basis is None:
        return {}
    residuals = shipped_residuals()
    far = _outside(fleet, records, summary, residuals)
    batch = float(summary["mean_batch_size"] or 0.0)
    asked, answered = summary["total_input_tokens"], summary["total_output_tokens"]
    per_step = batch * asked / answered if answered else None
    load = None if has_loops(scenario) else load_of(records, scenario.engine.parameter("max_num_seqs"))
    is_warm = load is not None or scenario.measure.warmup_s != 0.0
    factors = step_factors(scenario, basis, per_step, coverage, is_outside=bool(far), is_warm=is_warm)
    metrics = _in_closed_loop(summary, factors) if load is None else _in_open_loop(summary, factors, load)
    if (price := summary.get(PRICE)) is not None and THROUGHPUT in metrics:  # the same hours for more or fewer tokens
        ends = metrics[THROUGHPUT]
        metrics[PRICE] = _interval(*(price * summary[THROUGHPUT] / ends[end] for end in ("high", "low")))
    why = f"outside the measured envelope: {'; '.join(far)}; {basis.why}" if far else basis.why
    return {
        PREDICTION: {
            "coverage": coverage,
            "basis": basis.name,
            "envelope": "outside" if far else "inside",
            "why": why,
            "metrics": metrics,
        }
    }


def step_factors(
    scenario: Scenario,
    basis: Basis,
    load: float | None,
    coverage: float,
    *,
    is_outside: bool = False,
    is_warm: bool = True,
) -> dict[str, tuple[float, float]]:
    """Return, by metric, the factors between which that of the real server lies in a closed loop.

    `load` is that of `traits_of`. Not `is_warm` is a server that may compile kernels on the way, as in a benchmark
    whose first requests count: a sixth of SGLang's measured runs did, and their first tokens came many times later.
    """
    residuals = shipped_residuals()
    stratum, traits = ROOFLINE, dict[str, str]()
    if basis.name != ROOFLINE:
        stratum = server_of(scenario.engine.policy).kernels
        traits = traits_of(basis.name, scenario.resolve_model(), scenario.hardware.tensor_parallel, load)
    times = residuals.wider[OUTSIDE] if is_outside else 1.0
    found = {metric: residuals.factors(stratum, metric, coverage, traits, times) for metric in METRICS}
    if is_warm:
        found[TTFT] = residuals.factors(stratum, WARM, coverage, traits, times)
    if basis.own is not None:  # the front end and the client are not in it: TTFT stays as uncertain
        found[TPOT] = found[E2E] = basis.own.factors(coverage, times)
    return found


def _in_closed_loop(summary: Mapping[str, Any], factors: Mapping[str, tuple[float, float]]) -> dict[str, Interval]:
    found = {}
    for metric in METRICS:
        if (value := summary[metric]) is not None:
            found[metric] = _interval(*(value * factor for factor in factors[metric]))
    if (rate := summary[THROUGHPUT]) is not None:
        low, high = factors[E2E]
        found[THROUGHPUT] = _interval(rate / high, rate / low)
    return found


def _in_open_loop(
    summary: Mapping[str, Any], factors: Mapping[str, tuple[float, float]], load: Load
) -> dict[str, Interval]:
    """Push longer and shorter steps through the load."""
    ttft, tpot, e2e, rate = (summary[name] for name in (*METRICS, THROUGHPUT))
    queue_ms = summary["mean_queue_time_ms"] or 0.0
    ends: dict[str, list[float]] = {name: [] for name in (*METRICS, THROUGHPUT)}
    for step, first in zip(factors[TPOT], factors[TTFT], strict=True):
        queue = 1e3 * load.queue_s(step, queue_ms / 1e3)
        answer = None if ttft is None or e2e is None else e2e - ttft
        times = step if answer is None else load.decodes(step, answer / 1e3)
        if ttft is not None:
            ends[TTFT].append((ttft - min(queue_ms, ttft)) * first + queue)
        if tpot is not None:
            ends[TPOT].append(tpot * times)
        if answer is not None:
            ends[E2E].append(ends[TTFT][-1] + answer * times)
        if rate:
            tail_s = max(0.0, summary["duration"] - load.arrivals_s)
            longer_s = load.arrivals_s * max(0.0, step * load.busy - max(1.0, load.busy)) + tail_s * times
            shorter_s = load.arrivals_s * max(0.0, load.busy - max(1.0, step * load.busy))
            ends[THROUGHPUT].append(summary["completed"] / max(load.arrivals_s + longer_s - shorter_s, 1e-9))
    return {name: _interval(*sorted(values)) for name, values in ends.items() if len(values) == 2}


def _interval(low: float, high: float) -> Interval:
    return {"low": float(low), "high": float(high)}


def _outside(
    fleet: Sequence[BuiltGroup], records: Records, summary: Mapping[str, Any], residuals: Residuals
) -> list[str]:
    """Return in words how the run lies outside of the runs and of the kernels that were measured; nothing if inside."""
    found: dict[str, None] = {}
    for built in fleet:
        gpu = built.group.scenario.resolve_gpu().name
        if gpu.removesuffix(CHANGED) not in residuals.gpus or gpu.endswith(CHANGED):
            found[f"no measured run of a server on {gpu} tests the prediction"] = None
        for remark in built.parts.cost.remarks(records.rows):
            if "lie outside of what" in remark:
                found[remark.removeprefix("warning: ")] = None
    users, most = summary["mean_batch_size"] or 0.0, residuals.most["batch"]
    if users > most:
        found[f"a mean batch of {users:,.0f}, {users / most:.1f} times the largest measured"] = None
    return list(found)


def has_loops(scenario: Scenario) -> bool:
    """Return whether users of a class wait for their answers, so that their number bounds the queue."""
    workload = scenario.workload
    if not isinstance(workload, GeneratedWorkload):
        return False
    arrivals = [each.arrival or workload.shared for each in workload.all_classes()]
    return any(getattr(arrival, "process", "") == "closed_loop" for arrival in arrivals)


# The interval of a prediction in a sentence.

_SHORT = {
    "mean_ttft_ms": ("mean TTFT", "ms"),
    "mean_tpot_ms": ("TPOT", "ms"),
    "mean_e2el_ms": ("E2E", "ms"),
    "request_throughput": ("throughput", "requests/s"),
    "usd_per_million_output_tokens": ("cost", "USD per million output tokens"),
}


def prediction_words(entry: Mapping[str, Any]) -> str:
    """Return where the real server lies: "with 90 %: mean TTFT 80 to 210 ms, ... (measured kernels of ...)"."""
    parts = [
        f"{_SHORT[name][0]} {_figure(ends['low'])} to {_figure(ends['high'])} {_SHORT[name][1]}"
        for name, ends in entry["metrics"].items()
    ]
    return f"{100 * entry['coverage']:g} % of similar real servers fell in {', '.join(parts)} ({entry['why']})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
