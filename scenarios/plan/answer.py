"""A plan's answer about a candidate: how it is deployed, its JSON, and the files of `--out`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scenarios.assembly.engine_policy import build_policy, policy_label, resolved_yaml
from scenarios.assembly.replica_parts import STATIC, memory_settings
from scenarios.bound.bound import bound_rate
from scenarios.plan.bottleneck import Shares
from scenarios.plan.bounds import Bounds
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal
from scenarios.plan.traffic import Traffic
from scenarios.plan.trial import Laboratory, Trial
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
