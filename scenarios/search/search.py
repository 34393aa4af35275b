"""A whole search: the race on one part of the traffic, the proof on the other; its words and its files."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scenarios.assembly.engine_policy import build_policy, policy_label
from scenarios.assembly.workloads import build_workload
from scenarios.plan.answer import deployed
from scenarios.plan.candidate import POLICY, Candidate, make_candidate
from scenarios.plan.goal import OF_LIMITS, Goal
from scenarios.runs.result import Result
from scenarios.runs.runner import run_on
from scenarios.runs.storage.run_folder import POLICY as FILE
from scenarios.runs.storage.run_folder import SCHEDULER
from scenarios.schema.loader import dump, load
from scenarios.schema.scenario import Scenario
from scenarios.search.proof import Group, HeldOut, groups, held_out
from scenarios.search.race import Aim, Parts, Race, Trial, mean, parts_of, with_part
from scenarios.search.space import Space
from scenarios.servers.flags import line
from scenarios.studies.executors import SweepExecutor
from simulator.errors import InputError
from simulator.metrics.metric import FRACTION, MS
from simulator.metrics.summary import METRICS
from simulator.policies import DEFAULT_POLICY, policy_class, policy_parameters
from simulator.queues import Order
from simulator.statistics import Interval

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
