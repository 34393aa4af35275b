"""The entry `prediction` of summary.json: between which values the metrics of the real server lie.

In a closed loop the quantiles of `residuals` hold for the metrics themselves: so they were measured, most from the
first request on (`measure.warmup_s` 0). Any other server is warm: its kernels are compiled. In an open loop the
quantiles of TPOT say how much longer or shorter steps may take, and `load` what that does at this load: near saturation
it is everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scenarios.assembly.fleet_parts import BuiltGroup
from scenarios.prediction.basis import ROOFLINE, Basis, basis_of
from scenarios.prediction.load import Load, load_of
from scenarios.prediction.residuals import METRICS, OUTSIDE, WARM, Residuals, shipped_residuals, traits_of
from scenarios.schema.workload import GeneratedWorkload
from scenarios.servers import server_of
from simulator.hardware.dimensions import CHANGED
from simulator.metrics.predicted import E2E, PREDICTION, PRICE, THROUGHPUT, TPOT, TTFT

if TYPE_CHECKING:
    from scenarios.schema.scenario import Scenario
    from simulator.results.records import Records

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
