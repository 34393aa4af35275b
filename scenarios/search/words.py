"""A search as a person reads it: the answer in sentences, and its tables as plain rows."""

import json
import math
from collections.abc import Mapping

from scenarios.assembly.engine_policy import policy_label
from scenarios.plan.candidate import POLICY
from scenarios.search.race import mean
from scenarios.search.search import Searched
from simulator.metrics.metric import FRACTION, MS
from simulator.metrics.table import METRICS
from simulator.statistics.intervals import Interval

Row = tuple[str, ...]
MISSING = "-"


def answer(found: Searched) -> str:
    """The answer in a few sentences."""
    about, proof = METRICS[found.aim.metric], found.proof
    if found.best is found.trials[0]:
        return (
            f"Nothing found: of {len(found.trials):,} candidates none was better than the scenario's own policy on the "
            "traffic of the search. Keep it."
        )
    change = f"{about.title} {number(found.aim.metric, proof.baseline)} becomes {number(found.aim.metric, proof.best)}"
    moved = f"{change} on traffic that the search never saw ({difference(found.aim.metric, proof.difference)})"
    if math.isnan(proof.difference.low):
        few = f"{proof.difference.n:,} requests are too few"
        why = few if proof.difference.n > 1 else "the metric is not one of single requests, and there is one run"
        return (
            f"Nothing proven: {moved}; there is no interval of it, for {why}. "
            "Keep the scenario's own policy, or search on drawn traffic."
        )
    if not found.is_better:
        return (
            f"Nothing found: the best of {len(found.trials):,} candidates is no better beyond doubt. {moved}. "
            "Keep the scenario's own policy."
        )
    closed = ""
    if proof.closed is not None:
        low, high = f"{100 * proof.closed.low:.0f}", f"{100 * proof.closed.high:.0f}"
        closed = f" {100 * proof.closed.mean:.0f} % of the gap to the bound closed (95 %: {low} to {high})."
    return f"Take {label(found)}: {moved}.{closed}"


def label(found: Searched) -> str:
    """The best candidate in words."""
    settings = found.best.candidate.settings
    policy = str(settings.get(POLICY, found.base.engine.policy))
    said = [f"{key.rpartition('.')[2]} {_plain(value)}" for key, value in settings.items() if key != POLICY]
    return ", ".join([policy_label(policy), *said])


def number(metric: str, value: float | None) -> str:
    """A value of a metric with its unit."""
    if value is None or math.isnan(value):
        return MISSING
    unit = METRICS[metric].unit
    if unit == FRACTION:
        return f"{100 * value:.1f} %"
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.3g}"
    return f"{text} {'ms' if unit == MS else unit}".rstrip()


def difference(metric: str, of: Interval) -> str:
    """A difference with its interval."""
    scale = 100.0 if METRICS[metric].unit == FRACTION else 1.0
    ends = "" if math.isnan(of.low) else f", 95 %: {of.low * scale:+,.3g} to {of.high * scale:+,.3g}"
    return f"difference {of.mean * scale:+,.3g}{ends}"


HELD_OUT_HEAD = ("metric", "own policy", "found", "bound")
_SHOWN = (
    "request_goodput", "slo_attainment", "request_throughput", "output_throughput", "mean_ttft_ms", "p50_ttft_ms",
    "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms", "p99_e2el_ms", "completed", "rejected", "preemptions",
)  # fmt: skip


def held_out_rows(found: Searched) -> tuple[Row, ...]:
    """What both reach on held-out traffic, the objective first: a line a metric."""
    rows = []
    for metric in dict.fromkeys((found.aim.metric, *(goal.metric for goal in found.aim.goals), *_SHOWN)):
        values = [[run.summary.get(metric) for run in runs] for runs in found.runs]
        if metric not in METRICS or any(value is None for side in values for value in side):
            continue
        means = [sum(float(value) for value in side if value is not None) / len(side) for side in values]
        at_best = number(metric, found.proof.bound) if metric == found.aim.metric else ""
        rows.append((METRICS[metric].title, *(number(metric, value) for value in means), at_best))
    return tuple(rows)


GROUP_HEAD = ("requests", "count", "TTFT own", "TTFT found", "E2E own", "E2E found", "within SLO own", "found")


def group_rows(found: Searched) -> tuple[Row, ...]:
    """Which requests pay: a line a group of requests."""
    return tuple(
        (
            each.name,
            f"{each.count:,}",
            *(number("mean_ttft_ms", value) for value in each.ttft_ms),
            *(number("mean_e2el_ms", value) for value in each.e2el_ms),
            *((MISSING, MISSING) if each.within is None else (f"{100 * share:.1f} %" for share in each.within)),
        )
        for each in found.groups
    )


def payers(found: Searched) -> str:
    """Who pays, in a sentence; '' where no group does."""
    shares = [(each.name, *each.within) for each in found.groups if each.within is not None]
    title = "within the SLO"
    said = [f"{name} ({100 * own:.0f} to {100 * now:.0f} %)" for name, own, now in shares if own - now > 0.005]
    if not said:
        title, times = "in mean E2E", [(each.name, *each.e2el_ms) for each in found.groups]
        said = [f"{name} ({number('mean_e2el_ms', own)} to {number('mean_e2el_ms', now)})"
                for name, own, now in times if now > 1.01 * own]  # fmt: skip
    return f"They pay, {title}: {'; '.join(said)}." if said else ""


def trial_rows(found: Searched) -> list[dict[str, object]]:
    """A row a candidate: its number, the draw it is of, its settings, and the objective in each round."""
    rows: list[dict[str, object]] = []
    for place, trial in enumerate(found.trials):
        values = [mean(found.aim.metric, of_round) for of_round in trial.rounds]
        rounds = {f"round_{number}": value for number, value in enumerate(values, 1)}
        error = next((one.error for of_round in trial.rounds for one in of_round if one.error), "")
        settings: Mapping[str, object] = trial.candidate.settings
        rows.append({"trial": place, "draw": trial.draw, **settings, **rounds, "rounds": len(values), "error": error})
    return rows


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
