"""A whole search: the race on one part of the traffic, the proof on the other; its words and its files."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.assembly.engines import build_policy, policy_label
from scenarios.assembly.workloads import build_workload
from scenarios.bound.bound import Bounds, bound, of_run, weakest
from scenarios.plan.answer import deployed
from scenarios.plan.candidate import POLICY, Candidate, make_candidate
from scenarios.plan.goal import OF_LIMITS, Goal
from scenarios.runs.result import Result
from scenarios.runs.runner import run_on
from scenarios.runs.storage.run_folder import POLICY as FILE
from scenarios.runs.storage.run_folder import SCHEDULER
from scenarios.schema.loader import dump, load
from scenarios.schema.scenario import Scenario
from scenarios.search.race import Aim, Parts, Race, Space, Trial, mean, parts_of, with_part
from scenarios.servers.flags import line
from scenarios.studies.run_sweep import SweepExecutor
from simulator.errors import InputError
from simulator.metrics.confidence import metric_difference
from simulator.metrics.latency import Slo, e2el_s, meets_slo, queue_s, tpot_s, ttft_s
from simulator.metrics.metric import FRACTION, MS
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.summary import METRICS
from simulator.metrics.window import Bools, measured_window
from simulator.policies import DEFAULT_POLICY, policy_class, policy_parameters
from simulator.queues import Order
from simulator.results.records import Floats, Ints, Records
from simulator.statistics import BATCHES, LEAST, RESAMPLES, Interval

# The proof of a search: the best candidate on traffic that it never saw, and which requests pay for it.

# The best candidate beside the scenario's own policy on traffic that the search never saw, and the gap to the
# bound.
#
# Both serve the same requests. Over several seeds the interval of the difference is Student's, paired by seed. On
# one trace it is a bootstrap over blocks of neighbouring requests, the same blocks of both runs: requests wait in
# one queue, and a sample that tore them apart would be too sure (see `simulator.statistics`).

_GOODPUT = "request_goodput"
_OF_REQUESTS = {"ttft": ttft_s, "tpot": tpot_s, "e2el": e2el_s, "queue_time": queue_s}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What both reach on held-out traffic, the difference, best less baseline, and how much of the gap is closed.

    `bound` is what no scheduler can do better, the mean over the seeds; None where none is proven. `closed` is a share
    of the gap between the baseline and the bound.
    """

    best: float | None
    baseline: float | None
    difference: Interval
    bound: float | None
    closed: Interval | None


def held_out(best: Sequence[Result], baseline: Sequence[Result], metric: str) -> HeldOut:
    """Hold the runs of one against those of the other: a run a seed, each pair on the same requests."""
    ours, theirs = ([run.summary.get(metric) for run in runs] for runs in (best, baseline))
    difference = metric_difference(metric, ours, theirs) if len(best) > 1 else _of_one(best[0], baseline[0], metric)
    mine, other = _mean(ours), _mean(theirs)
    at_best = _bound(list(zip(best, baseline, strict=True)), metric)
    closed = None
    if at_best is not None and other is not None and at_best != other:
        gap = at_best - other
        ends = sorted((difference.low / gap, difference.high / gap))
        closed = Interval(difference.mean / gap, ends[0], min(ends[1], 1.0), difference.n)  # none closes more
    return HeldOut(mine, other, difference, at_best, closed)


def _mean(values: Sequence[object]) -> float | None:
    known = [float(value) for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if len(known) == len(values) else None


def _bound(pairs: Sequence[tuple[Result, Result]], metric: str) -> float | None:
    """The bound that holds for both runs of each pair, the mean over the pairs; None where one has none.

    The two have other limits, and one may turn requests away. Then the share within the SLO alone is bounded, and of it
    follows the goodput: so many requests within the shorter of the two runs.
    """
    found = []
    for pair in pairs:
        held = weakest([_held(run) for run in pair]).metrics
        if metric in held:
            found.append(held[metric].value)
        elif metric == _GOODPUT and ATTAINMENT in held:
            run = pair[0]
            count = int(measured_window(run.records, **run.scenario.measure.window(run.records)).measured.sum())
            found.append(held[ATTAINMENT].value * count / min(float(each.summary["duration"]) for each in pair))
        else:
            return None
    return sum(found) / len(found)


def _held(run: Result) -> Bounds:
    assert run.workload is not None
    cuts = run.scenario.measure.window(run.records)
    return of_run(bound(run.scenario, run.workload, **cuts), run.records, run.workload)


def _of_one(best: Result, baseline: Result, metric: str) -> Interval:
    """The difference of one pair of runs, with its interval where the metric is a statistic of the requests.

    A goodput is over the length of its run, which ends with one request. So the interval also holds the difference
    over equal lengths: equal requests in time are no difference, whenever the last of them ended.
    """
    ours, theirs = best.summary.get(metric), baseline.summary.get(metric)
    value = math.nan if ours is None or theirs is None else float(ours) - float(theirs)
    sides = [_samples(run, metric) for run in (best, baseline)]
    if any(side is None for side in sides):
        return Interval(value, math.nan, math.nan, 1)
    (a, of_a), (b, of_b) = (side for side in sides if side is not None)
    if len(a) != len(b) or len(a) < LEAST:
        return Interval(value, math.nan, math.nan, len(a))
    rng = np.random.default_rng(0)
    blocks = np.array_split(np.arange(len(a)), BATCHES)
    found = []
    for drawn in rng.integers(BATCHES, size=(RESAMPLES, BATCHES)):
        rows = np.concatenate([blocks[place] for place in drawn])
        found.append((of_a(a[rows]) - of_b(b[rows]), of_b(a[rows]) - of_b(b[rows])))
    ends = np.percentile(found, (2.5, 97.5), axis=0)
    return Interval(value, min(float(ends[0].min()), value), max(float(ends[1].max()), value), len(a))


def _samples(run: Result, metric: str) -> tuple[Floats, Callable[[Floats], float]] | None:
    """A value for each measured request, in order of arrival, and the statistic of them that the metric is."""
    records = run.records
    window = measured_window(records, **run.scenario.measure.window(records))
    order = np.argsort(records.requests.arrival_s, kind="stable")
    order = order[window.measured[order]]
    slo = run.scenario.resolve_slo()
    if metric in (ATTAINMENT, _GOODPUT):
        good = meets_slo(records, slo or Slo())[order].astype(np.float64)
        per = 1.0 if metric == ATTAINMENT else len(good) / window.duration_s
        return good, lambda values: per * float(values.mean())
    statistic, _, name = metric.removesuffix("_ms").partition("_")
    if name not in _OF_REQUESTS or statistic == "std":
        return None
    values = _OF_REQUESTS[name](records)[order] * 1e3
    if statistic == "mean":
        return values, lambda drawn: float(np.nanmean(drawn))
    percent = 50.0 if statistic == "median" else float(statistic[1:])
    return values, lambda drawn: float(np.percentile(drawn[~np.isnan(drawn)], percent))


# Which requests pay for a policy, and which win: both runs of the same requests, by what a request is.


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that have something in common: TTFT and E2E in milliseconds and shares within the SLO, of both runs.

    The first of each pair is of the scenario's own policy, the second of the found one. NaN where no request has one;
    `within` is None without limits of a request. `middle` is the median prompt of a group by prompts; 0 for others.
    """

    name: str
    count: int
    ttft_ms: tuple[float, float]
    e2el_ms: tuple[float, float]
    within: tuple[float, float] | None
    middle: float = 0.0


def groups(baseline: Sequence[Result], best: Sequence[Result], *, parts: int = 4) -> list[Group]:
    """All requests; those of each of so many parts of the prompts, and of the answers, by length; those of each class.

    Empty where the runs had different requests, as those of closed loops have.
    """
    first = baseline[0]
    if any(len(a.records.requests.row) != len(b.records.requests.row) for a, b in zip(baseline, best, strict=True)):
        return []
    slo = first.scenario.resolve_slo()
    inputs = np.concatenate([run.records.requests.input_tokens for run in baseline])
    outputs = np.concatenate([run.records.requests.output_tokens for run in baseline])
    found = [("all", np.ones(len(inputs), dtype=np.bool_))]
    found += [*_by_length("prompt", inputs, parts), *_by_length("answer", outputs, parts)]
    names = first.records.class_names
    if len(names) > 1:
        index = np.concatenate([run.records.requests.class_index for run in baseline])
        found += [(name, index == place) for place, name in enumerate(names)]

    def both(of: Callable[[Records], Floats | Bools]) -> list[Floats]:
        return [np.concatenate([of(run.records) for run in runs]).astype(np.float64) for runs in (baseline, best)]

    ttft, e2el = both(ttft_s), both(e2el_s)
    within = both(lambda records: meets_slo(records, slo)) if slo is not None and slo.limits else None
    return [
        Group(
            name,
            int(rows.sum()),
            _means(ttft, rows, 1e3),
            _means(e2el, rows, 1e3),
            None if within is None else _means(within, rows, 1.0),
            float(np.median(inputs[rows])) if name.startswith("prompt ") else 0.0,
        )
        for name, rows in found
        if rows.any()
    ]


def _by_length(noun: str, lengths: Ints, parts: int) -> Iterator[tuple[str, Bools]]:
    ends = np.unique(np.quantile(lengths, np.linspace(0.0, 1.0, parts + 1)).round())
    for place, (low, high) in enumerate(pairwise(ends.tolist())):
        rows = (lengths <= high) & ((lengths > low) if place else (lengths >= low))
        yield f"{noun} {int(low) + (1 if place else 0):,} to {int(high):,} tokens", rows


def _means(pair: Sequence[Floats], rows: Bools, scale: float) -> tuple[float, float]:
    first, second = (values[rows] for values in pair)
    known = [values[~np.isnan(values)] for values in (first, second)]
    a, b = (float(values.mean()) * scale if len(values) else float("nan") for values in known)
    return a, b


# The files of the policy that a search has found: a small class over a shipped one, and the class for vLLM.

CLASS = "Found"
_ORDER = "weighted"
_UNKNOWN = ("deadline_weight", "class_s")  # weights of what vLLM does not know of a request


def policy_text(scenario: Scenario, about: str) -> str:
    """Return the text of a file whose class `Found` decides as the scenario's policy does; `about` says what it is."""
    built, name = build_policy(scenario), scenario.engine.policy
    values = {key: getattr(built, key) for key in policy_parameters(type(built))}
    fields = [
        f"    {key}: Any = {values[key]!r}"
        for key, known in policy_parameters(type(built)).items()
        if (values[key], _weights(values[key])) != (known.default, _weights(known.default))
    ]
    imports = ["from dataclasses import dataclass", *(["from typing import Any"] if fields else []), ""]
    imports += ["from scenarios.servers import server_of", "from simulator.policies import policy_class"]
    if isinstance(values.get("order"), Order):
        imports.append("from simulator.queues import Order")
    made = [f"Base: Any = policy_class({name!r})" if fields else f"Base = policy_class({name!r})"]
    made.append(f"SERVER = server_of({name!r})")
    head = ["@dataclass(frozen=True, slots=True)", f"class {CLASS}(Base):"]
    doc = f'    """`{type(built).__name__}` with {"other defaults" if fields else "its own defaults"}."""'
    below = ["", *fields] if fields else []
    return "\n".join([f'"""{about}"""', "", *imports, "", *made, "", "", *head, doc, *below, ""])


def scenario_text(scenario: Scenario, path: str) -> str:
    """Return the scenario that runs the file at `path`, which stands beside it; the engine's own keys stay."""
    taken = scenario.engine.takes()
    data = scenario.model_dump(exclude_unset=True)
    kept = {key: value for key, value in data.get("engine", {}).items() if key not in taken}
    data["engine"] = {**kept, "policy": f"{path}:{CLASS}"}
    return dump(load(data, check_files=False)).replace(f"{path}:{CLASS}", f"{FILE}:{CLASS}")


def weights_of(scenario: Scenario) -> dict[str, Any] | None:
    """The weights of the queue's order, where vLLM's scheduler decides with them; None for any other policy.

    A class and a deadline of a request's own are nothing that vLLM knows.
    """
    built: Any = build_policy(scenario)
    order = getattr(built, "order", None)
    is_vllm = getattr(type(built), "plan", None) is getattr(policy_class(DEFAULT_POLICY), "plan", None)
    if not is_vllm or order != _ORDER or not isinstance(order, Order) or any(map(order.parameters.get, _UNKNOWN)):
        return None
    return {key: value for key, value in order.parameters.items() if key not in _UNKNOWN}


def scheduler_text(weights: Mapping[str, Any]) -> str:
    """Return the text of the file with the scheduler class for vLLM, with these weights."""
    text = (Path(__file__).parents[1] / "templates" / SCHEDULER).read_text(encoding="utf-8")
    for key, value in {"late_after_s": None, **weights}.items():
        text, count = re.subn(rf'"{key}": [^,]+,', f'"{key}": {value!r},', text)
        assert count == 1, key
    return text


def command_of(scenario: Scenario) -> str | None:
    """The command of a server that decides as the scenario's policy does; None where no flags say all of it.

    For weights of vLLM's queue it names the class of `scheduler_text`.
    """
    more = ""
    if weights_of(scenario) is not None:
        built = build_policy(scenario)
        values = {key: getattr(built, key) for key in policy_parameters(type(built)) if key != "order"}
        scenario = make_candidate(
            scenario, {POLICY: DEFAULT_POLICY, "engine.order": "fcfs", **{f"engine.{k}": v for k, v in values.items()}}
        ).scenario
        more = f" --scheduler-cls {SCHEDULER.removesuffix('.py')}.WeightedScheduler"
    server = deployed(scenario)
    if isinstance(server, str) or not server.launch.is_own or any("no flag says" in each for each in server.remarks):
        return None
    return f"{line(server.words)}{more}"


def _weights(value: object) -> Mapping[str, Any]:
    return value.parameters if isinstance(value, Order) else {}


@dataclass(frozen=True)  # no slots: who pays is worked out once
class Searched:
    """What a search came to.

    `best` is the candidate that won the race and was tried on held-out traffic; `is_better` says whether it is better
    there beyond doubt: the 95 % interval of the difference does not hold 0. `runs` are those on held-out traffic.
    """

    base: Scenario
    aim: Aim
    parts: Parts
    trials: Sequence[Trial]
    best: Trial
    proof: HeldOut
    runs: tuple[Sequence[Result], Sequence[Result]]  # of the scenario's own policy, of the best
    made: int
    reused: int
    cpu_s: float

    @property
    def is_better(self) -> bool:
        """Whether the best candidate is better than the scenario's own policy on held-out traffic."""
        difference = self.proof.difference
        low = difference.low if self.aim.better > 0 else -difference.high
        return self.best is not self.trials[0] and low > 0

    @property
    def taken(self) -> Candidate:
        """The candidate to take: the best, or the scenario's own policy where that is not better beyond doubt."""
        return (self.best if self.is_better else self.trials[0]).candidate

    @property
    def deploy(self) -> str | None:
        """The command of a server that decides so; None where no flag of a server says all of it."""
        return command_of(self.taken.scenario)

    @cached_property
    def groups(self) -> list[Group]:
        """Which requests pay."""
        return groups(*self.runs)

    def to_json(self) -> dict[str, Any]:
        """The answer, as `--json` prints it."""
        proof = self.proof
        return {
            "objective": self.aim.metric,
            "found": self.is_better,
            "best": settings_of(self.best.candidate),
            "baseline": settings_of(self.trials[0].candidate),
            "held_out": {
                "best": proof.best,
                "baseline": proof.baseline,
                "bound": proof.bound,
                "difference": _interval(proof.difference),
            },
            "gap_closed": None if proof.closed is None else _interval(proof.closed),
            "deploy": self.deploy,
            "trials": len(self.trials),
            "runs": self.made,
            "reused": self.reused,
            "cpu_s": self.cpu_s,
        }


def search(
    base: Scenario,
    objective: str,
    goals: Sequence[Goal],
    folder: Path,
    executor: SweepExecutor,
    *,
    trials: int,
    seeds: int,
    holdout: float,
    budget_s: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Searched:
    """Search a policy for a scenario; outcomes of runs are kept in `folder`, where a later search finds them.

    Raises InputError for an objective that is none, traffic that cannot be parted, and a scenario that cannot be run.
    """
    aim = Aim(checked(objective, base), tuple(goals))
    parts = parts_of(base, seeds, holdout)
    workload = build_workload(with_part(base, parts.rounds[-1][0]))
    space = Space(base, workload, sheds=objective in OF_LIMITS)
    race = Race(space, parts, aim, folder, executor, budget_s=budget_s, progress=progress)
    best = race.run(trials)
    runs = []
    for trial in (race.baseline, best):
        runs.append([_run(trial.candidate.scenario, part) for part in parts.held_out])
        if best is race.baseline:
            runs.append(runs[0])
            break
    proof = held_out(runs[1], runs[0], aim.metric)
    return Searched(base, aim, parts, race.trials, best, proof, (runs[0], runs[1]), race.runs, race.reused, race.cpu_s)


def checked(objective: str, base: Scenario) -> str:
    """Return the objective. Raises InputError unless it is a metric of a run of which more or less is better."""
    from scenarios.schema.source.hints import did_you_mean

    known = [key for key, metric in METRICS.items() if metric.better and metric.by_run and metric.of is not None]
    if objective not in known:
        hint = did_you_mean(objective, known) or "a key of summary.json of which more or less is better"
        raise InputError(f"unknown metric {objective!r}", file="--objective", hint=hint)
    slo = base.resolve_slo()
    if objective in OF_LIMITS and (slo is None or not slo.limits):
        what = f"{objective} counts requests within the limits of the SLO, and the scenario has none"
        raise InputError(what, file="--objective", hint="--set slo.ttft_ms=1000 --set slo.tpot_ms=50 gives limits")
    return objective


def settings_of(candidate: Candidate) -> dict[str, Any]:
    """The settings of a candidate, with its policy."""
    return {POLICY: policy_label(candidate.scenario.engine.policy), **candidate.settings}


def _run(scenario: Scenario, part: Sequence[str]) -> Result:
    chosen = with_part(scenario, tuple(part))
    return run_on(chosen, build_workload(chosen))


def _interval(found: Any) -> dict[str, float | None]:
    values = {"value": found.mean, "low": found.low, "high": found.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


# A search as a person reads it: the answer in sentences, and its tables as plain rows.

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
