"""A plan's answer about a candidate: how sure its rate is, how it is deployed, its JSON, and the files of `--out`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.assembly.engines import build_policy, policy_label, resolved_yaml
from scenarios.assembly.replica_parts import STATIC, memory_settings
from scenarios.bound.bound import bound_rate
from scenarios.plan.bottleneck import Shares
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal
from scenarios.plan.trial import Laboratory, Traffic, Trial
from scenarios.random_draws import stream
from scenarios.runs.storage.run_folder import CANDIDATES, DEPLOY, PLAN
from scenarios.schema.engine import UNSAID
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.servers import server_of
from scenarios.servers.flags import OPTIONS_FILE, flow, line, options_of, unsaid, variables_of, words_of
from scenarios.servers.manifests import Deployed, files_of
from simulator.errors import InputError
from simulator.hardware.models import HUGGING_FACE
from simulator.metrics.outcomes import ATTAINMENT
from simulator.plan import Policy
from simulator.results.records import Floats
from simulator.statistics import mean_interval

# The uncertainty of a rate: its interval at 95 %, and whether two candidates can be told apart.
#
# Two sources of doubt, by the traffic.
#
# - Drawn traffic: each seed has its own largest rate. The interval is Student's over the logarithms of these, or
# the bracket of the search where all seeds have the same.
# - A single trace: what the hour would have been like with other requests of its kind is asked of the trace itself.
# Its requests are cut, in order of arrival, into blocks, and blocks are drawn again with replacement (block
# bootstrap; Lahiri, Resampling Methods for Dependent Data, 2003). Each draw has its own percentiles at every rate
# that was run, with the same blocks everywhere; where they cross the limits, by a line through the rates, is the
# draw's largest rate. Its 2.5 % and 97.5 % quantiles, widened to the bracket of the search, are the interval.

DRAWS = 400
BLOCKS = 40
_LEAST_IN_A_BLOCK = 5
_STRETCH = math.log(1.5)  # a draw's rate lies at most so far outside of the rates that were run
_MOST_EXCESS = 3.0  # far from the limit, excesses say little of where it is crossed
_STEEPNESS = (1.0, 40.0)  # of excess over the logarithm of the rate, beyond the rates that were run


@dataclass(frozen=True, slots=True)
class Bounds:
    """A rate with its interval at 95 %. `draws` are logarithms of rates, one a seed or one a draw of the bootstrap."""

    value: float
    low: float
    high: float
    draws: Floats = field(repr=False, default_factory=lambda: np.empty(0))
    paired_by_seed: bool = False

    def spanning(self, other: Bounds) -> Bounds:
        """Return these bounds, their interval widened to that of another way to see the same rate."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def times(self, factor: float) -> Bounds:
        """Return the bounds of a multiple."""
        ends = self.value * factor, self.low * factor, self.high * factor
        return Bounds(*ends, self.draws + math.log(factor), self.paired_by_seed)


def bounds_of_seeds(rates: Sequence[float]) -> Bounds:
    """Return the geometric mean of the seeds' rates, and Student's interval of its logarithm."""
    logs = np.log(np.asarray(rates))
    found = mean_interval(logs.tolist())
    ends = (found.mean, found.mean) if found.n < 2 else (found.low, found.high)
    value, low, high = map(math.exp, (found.mean, *ends))
    return Bounds(value, low, high, logs, True)


def bounds_of_trace(trials: Sequence[Trial], held: float, failed: float | None) -> Bounds:
    """Return the bounds from trials of one trace at several rates, of which `held` is the largest that holds."""
    known = _known(trials)
    if not known:
        return Bounds(held, held, held if failed is None else failed)
    requests = max((len(tail) for tail in known[0].tails), default=0)
    draws = _crossings(known, known[0].goals, _weights(requests))
    low, high = np.exp(np.quantile(draws, (0.025, 0.975))).tolist()
    return Bounds(held, min(low, held), max(high, held if failed is None else failed), draws)


def moved(trials: Sequence[Trial], factor: float) -> float | None:
    """Return the share by which the largest rate moves if every step takes `factor` times as long, from the same runs.

    By the law of scaling it is the rate at which limits as much tighter hold, divided by `factor`. None where the runs
    do not tell.
    """
    known = _known(trials)
    if len(known) < 2:
        return None
    goals, weights = known[0].goals, np.ones((1, 1))
    here = float(_crossings(known, goals, weights)[0])
    there = float(_crossings(known, [goal.scaled(factor) for goal in goals], weights)[0]) - math.log(factor)
    return math.exp(there - here) - 1


def crossing(trials: Sequence[Trial]) -> float | None:
    """Return the rate at which the excess crosses 0, between the runs that were made; None where they do not tell."""
    known = _known(trials)
    if len(known) < 2:
        return None
    return math.exp(float(_crossings(known, known[0].goals, np.ones((1, 1)))[0]))


def difference(one: Bounds, other: Bounds) -> tuple[float, float] | None:
    """Return the interval at 95 % of log(one / other), draw by draw; None where the two cannot be paired."""
    if len(one.draws) != len(other.draws) or len(one.draws) < 2:
        return None
    apart = one.draws - other.draws
    if one.paired_by_seed:
        found = mean_interval(apart.tolist())
        return found.low, found.high
    low, high = np.quantile(apart, (0.025, 0.975)).tolist()
    return low, high


def draws_of(goal: Goal, per_request: Floats) -> Floats:
    """Return a goal's value in each draw of a trace's blocks, from the values of its requests, in order of arrival."""
    return _redrawn(goal, per_request, _weights(len(per_request)))


def _known(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that ran to their end, by rate, each rate once."""
    found = {trial.rate / trial.replicas: trial for trial in trials if not trial.stopped}
    return [found[rate] for rate in sorted(found)]


def _weights(requests: int) -> Floats:
    """Draw the number of times that each block is taken: one row a draw, one column a block."""
    blocks = max(min(BLOCKS, requests // _LEAST_IN_A_BLOCK), 1)
    drawn = stream(0, "", "plan bootstrap").multinomial(blocks, np.full(blocks, 1 / blocks), DRAWS)
    return drawn.astype(np.float64)


def _crossings(trials: Sequence[Trial], goals: Sequence[Goal], weights: Floats) -> Floats:
    """Return, for each draw, the logarithm of the rate at which the excess over all goals crosses 0."""
    rates = np.log([trial.rate / trial.replicas for trial in trials])
    excess = np.stack([_excesses(trial, goals, weights) for trial in trials])  # one row a trial, one column a draw
    excess = np.clip(excess, -_MOST_EXCESS, _MOST_EXCESS)
    replicas = math.log(trials[0].replicas)
    return np.array([_crossing(rates, column) for column in excess.T]) + replicas


def _crossing(rates: Floats, excess: Floats) -> float:
    """Return where the last stretch from below 0 to above it crosses 0."""
    below = np.flatnonzero(excess <= 0)
    last = len(rates) - 1
    if len(below) and below[-1] < last:
        i = int(below[-1])
        share = -excess[i] / (excess[i + 1] - excess[i])
        return float(rates[i] + share * (rates[i + 1] - rates[i]))
    at = last if len(below) else 0
    spread = rates[last] - rates[0]
    slope = (excess[last] - excess[0]) / spread if spread > 0 else _STEEPNESS[0]
    slope = min(max(float(slope), _STEEPNESS[0]), _STEEPNESS[1])
    return float(rates[at] + np.clip(-excess[at] / slope, -_STRETCH, _STRETCH))


def _excesses(trial: Trial, goals: Sequence[Goal], weights: Floats) -> Floats:
    """Return the largest excess over the goals, one entry a draw."""
    worst = np.full(len(weights), -math.inf)
    for goal, value, tail in zip(goals, trial.values, trial.tails, strict=True):
        drawn = _redrawn(goal, tail, weights) if len(tail) else np.array([value])
        worst = np.maximum(worst, [goal.excess(None if each is None else float(each)) for each in drawn])
    return worst


def _redrawn(goal: Goal, per_request: Floats, weights: Floats) -> Floats:
    """Return the goal's value in each draw."""
    counts = np.flatnonzero(~np.isnan(per_request))
    blocks = weights.shape[1]
    block = counts * blocks // max(len(per_request), 1)
    values = per_request[counts]
    if not len(values):
        return np.full(len(weights), np.nan)
    if goal.metric == ATTAINMENT or goal.quantile is None:
        sums, numbers = np.bincount(block, values, blocks), np.bincount(block, minlength=blocks)
        return (weights @ sums) / np.maximum(weights @ numbers, 1)
    total = weights @ np.bincount(block, minlength=blocks)
    # Only the largest values can be the percentile: sorted down, the first behind which enough of a draw lies.
    keep = min(len(values), math.ceil((1 - goal.quantile) * len(values)) * 4 + 100)
    order = np.argpartition(values, len(values) - keep)[len(values) - keep :] if keep < len(values) else np.arange(keep)
    order = order[np.argsort(-values[order], kind="stable")]
    behind = np.cumsum(weights[:, block[order]], axis=1)
    place = np.minimum((behind <= ((1 - goal.quantile) * total)[:, None]).sum(axis=1), keep - 1)
    drawn: Floats = values[order][place]
    return drawn


# The command that starts a server with a candidate's settings, as the server of its policy takes it.

UNKNOWN_MODEL = "MODEL"
"""The placeholder for the Hugging Face name of a model that is not a built-in one."""


def deploy(scenario: Scenario, replicas: int | None = None) -> str:
    """Return the command of one server with a remark on what it cannot say; a remark alone where no server does it."""
    found = deployed(scenario, replicas)
    if isinstance(found, str):
        return f"# {found}"
    options = [f"{OPTIONS_FILE}: {flow(found.options)}"] if found.options else []
    each = [f"on each of {found.replicas:,} replicas"] if found.replicas > 1 else []
    remarks = [*each, *found.remarks, *options]
    command = " ".join([*(f"{name}={value}" for name, value in found.variables.items()), line(found.words)])
    return f"{command}  # {'; '.join(remarks)}" if remarks else command


def deployed(scenario: Scenario, replicas: int | None = None) -> Deployed | str:
    """Return the start of a server with so many replicas, or the reason why there is none.

    Without a number it is that of one replica. Replicas that share experts, or have the balancer of the server itself,
    are data-parallel ranks of one server, by default as many as the scenario has.
    """
    policy = scenario.engine.policy
    if scenario.fleet is not None:
        return "each group has a command of its own: plan the groups one by one"
    launch = server_of(policy).launch
    if launch is None:
        return f"{policy_label(policy)} is not a server's policy: there is no command for it"
    built = build_policy(scenario)
    values: dict[str, object] = {f"engine.{key}": value for key, value in scenario.engine.resolved().items()}
    values |= {f"hardware.{key}": value for key, value in scenario.hardware.model_dump().items()}
    if any(flag.key == STATIC for flag in launch.flags) and values[STATIC] is None:
        values[STATIC] = _static_share(scenario, built)
    values["sampling"] = None if scenario.sampling is None else scenario.sampling.model_dump(exclude_none=True) or None
    count = scenario.replicas if replicas is None else replicas
    shares = scenario.hardware.enable_expert_parallel and count > 1
    is_own = scenario.routing.kind == launch.balancer
    has_ranks = any(flag.key == "replicas" for flag in launch.flags)
    ranks = count if has_ranks and (shares or is_own) else 1
    values["replicas"] = ranks if ranks > 1 else None
    values |= launch.written(built, values) if launch.written is not None else {}
    model = HUGGING_FACE.get(scenario.model, UNKNOWN_MODEL) if isinstance(scenario.model, str) else UNKNOWN_MODEL
    remarks = [*(launch.remarks(built, values) if launch.remarks is not None else ())]
    if ranks > 1 and not is_own:
        remarks.append(f"its own balancer instead of {scenario.routing.kind}")
    if shares and ranks == 1:
        remarks.append("no flag says hardware.enable_expert_parallel")
    if model == UNKNOWN_MODEL:
        name = scenario.resolve_model().name
        remarks = [f"{UNKNOWN_MODEL} is the Hugging Face name or the path of {name}", *remarks]
    defaults = {f"engine.{key}": known.default for key, known in scenario.engine.takes().items()}
    defaults |= dict.fromkeys([f"engine.{key}" for key in ("max_queued_requests", *UNSAID)])
    version = getattr(built, "version", None)
    return Deployed(
        launch,
        words_of(launch, model, values),
        options_of(launch, values),
        [*remarks, *unsaid(launch, values, defaults)],
        model,
        version,
        scenario.resolve_gpu().name,
        scenario.hardware.gpus * ranks,
        1 if ranks > 1 else replicas or 1,
        variables_of(launch, values),
    )


def _static_share(scenario: Scenario, built: Policy) -> float:
    """Return the share of memory for weights and KV that leaves the simulated cache, where its size is known."""
    try:
        return memory_settings(scenario, built).static_share()
    except InputError:  # drafts whose acceptance nobody said: a run of it would say so
        return scenario.hardware.gpu_memory_utilization


_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Answer:
    """A candidate with its largest rate.

    `bounds` are in requests per second of all `replicas` together; None where no rate holds, or none was looked for.
    `shown` is the run that costs and causes are taken from: at the largest rate or, of a load that was asked for, at
    that load. `load` is what `headroom` is held against. `slower` and `faster` are the shares by which the rate moves
    where every step takes 5 % more or less. `prediction` is the entry of summary.json of the run that is shown, at the
    prices as they are, in a plan with a confidence. `note` says what could not be settled or why there is no answer;
    `load_words`, how a trace comes to the rate of `shown`. No scheduler serves more than `rate_at_best` for ever.
    """

    candidate: Candidate
    feasible: bool
    replicas: int
    load: float
    bounds: Bounds | None = None
    shown: Trial | None = field(default=None, repr=False)
    trials: tuple[Trial, ...] = field(default=(), repr=False)
    binding: Goal | None = None
    shares: Shares = field(default_factory=lambda: Shares({}))
    slower: float | None = None
    faster: float | None = None
    advice: str = ""
    note: str = ""
    load_words: str = ""
    excess: float = math.inf
    rate_at_best: float | None = None
    equal_to_best: bool = False
    prediction: Mapping[str, Any] | None = None

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.candidate.gpus(self.replicas)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of these GPUs; None where it is not known."""
        return self.candidate.usd_per_hour(self.replicas)

    @property
    def usd_per_million(self) -> float | None:
        """USD for a million output tokens in the run that is shown, as in summary.json."""
        return None if self.shown is None else self.shown.usd_per_million

    @property
    def headroom(self) -> float | None:
        """The share by which the load may still grow before a goal fails; negative if the load is too much."""
        return None if self.bounds is None else self.bounds.value / self.load - 1

    @property
    def deploy(self) -> str:
        """The command of a server."""
        return deploy(self.candidate.scenario, self.replicas)

    def entry(self) -> dict[str, Any]:
        """The candidate in `--json`."""
        rate = {name: _short(getattr(self.bounds, name, None)) for name in ("value", "low", "high")}
        return {
            "settings": self.candidate.named_settings(),
            "feasible": self.feasible,
            "rate": rate,
            "rate_at_best": _short(self.rate_at_best),
            "replicas": self.replicas,
            "gpus": self.gpus,
            "usd_per_hour": _short(self.usd_per_hour),
            "usd_per_million_output_tokens": _short(self.usd_per_million),
            **({} if self.shown is None else {name: _short(value) for name, value in self.shown.energy.items()}),
            "binding_slo": None if self.binding is None else self.binding.text,
            "bottleneck": self.shares.bottleneck,
            "headroom": _short(self.headroom),
            "advice": " ".join(part for part in (self.note, self.advice) if part),
            "equal_to_best": self.equal_to_best,
            "deploy": self.deploy,
            **({} if self.prediction is None else {"prediction": self.prediction}),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The answers, best first; `notes` say what a reader must know of all of them."""

    find: str
    name: str
    goals: tuple[Goal, ...]
    load: float
    answers: tuple[Answer, ...]
    runs: int
    cpu_s: float
    notes: tuple[str, ...] = ()
    traffic: str = ""

    def to_json(self) -> dict[str, Any]:
        """The plan as `--json` prints it."""
        return {
            "find": self.find,
            "slo": [goal.text for goal in self.goals],
            "candidates": [answer.entry() for answer in self.answers],
            "runs": self.runs,
            "cpu_s": round(self.cpu_s, 2),
        }


def _short(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


# How far a plan's rate is from the largest that any scheduler can serve.


def with_rate_at_best(lab: Laboratory, answer: Answer) -> Answer:
    """Return the answer with `rate_at_best`, the mean over the seeds; without it where a seed has no proven bound."""
    if answer.bounds is None:
        return answer
    scenario = answer.candidate.with_replicas(answer.replicas)
    found = [bound_rate(scenario, lab.traffic.workload(lab.traffic.rate, seed)) for seed in lab.seeds]
    known = [bound.value for bound in found if bound is not None]
    if len(known) < len(found):
        return answer
    return replace(answer, rate_at_best=sum(known) / len(known))


# The files of `--out`: the plan as JSON; for each of the best candidates a scenario, and what starts its server.

_MOST = 5


def write_plan(folder: Path, plan: Plan, base: Scenario) -> None:
    """Write the files into an existing folder. Equal plans give equal bytes."""
    found = {key: value for key, value in plan.to_json().items() if key != "cpu_s"}  # a time of this machine
    text = json.dumps(found | {"load": plan.load, "notes": list(plan.notes)}, indent=2, ensure_ascii=False)
    (folder / PLAN).write_text(text + "\n", encoding="utf-8", newline="\n")
    traffic = Traffic(base)
    files = folder / CANDIDATES
    files.mkdir()
    for place, answer in enumerate(chosen(plan), 1):
        scenario = scenario_of(answer, plan, traffic)
        (files / f"{place}.yaml").write_text(resolved_yaml(scenario), encoding="utf-8", newline="\n")
        server = deployed(answer.candidate.scenario, answer.replicas)
        if not isinstance(server, str):
            (folder / DEPLOY / str(place)).mkdir(parents=True)
            for name, content in files_of(server).items():
                (folder / DEPLOY / str(place) / name).write_text(content, encoding="utf-8", newline="\n")


def chosen(plan: Plan) -> Sequence[Answer]:
    """Choose the best candidates: the first, and those that cannot be told apart from it."""
    return [answer for answer in plan.answers if answer.equal_to_best][:_MOST]


def scenario_of(answer: Answer, plan: Plan, traffic: Traffic) -> Scenario:
    """Make the scenario of a candidate at its largest rate, or at the load asked for, with the goals as its SLO."""
    rate = plan.load if answer.shown is None else answer.shown.rate
    scenario = traffic.scenario_at(answer.candidate.with_replicas(answer.replicas), rate)
    slo = _slo(plan.goals, scenario)
    return load(scenario, [f"slo={json.dumps(slo)}"]) if slo else scenario


def _slo(goals: Sequence[Goal], scenario: Scenario) -> dict[str, Any]:
    """Return the scenario's SLO with the goals that an SLO can hold."""
    found: dict[str, Any] = {} if scenario.slo is None else scenario.slo.model_dump(exclude_none=True)
    for goal in goals:
        into = found
        if goal.class_name is not None:
            into = found.setdefault("classes", {}).setdefault(goal.class_name, {})
        if goal.metric == ATTAINMENT:
            into["attainment"] = goal.limit
        elif goal.latency is not None and not goal.at_least and goal.statistic != "std":
            into[goal.metric] = goal.limit
    return found
