"""The files of `--out`: the plan as JSON; for each of the best candidates a scenario, and what starts its server."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scenarios.assembly.engine_policy import resolved_yaml
from scenarios.plan.answer import Answer, Plan
from scenarios.plan.deploy import deployed
from scenarios.plan.goal import Goal
from scenarios.plan.traffic import Traffic
from scenarios.runs.storage.run_folder import CANDIDATES, DEPLOY, PLAN
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.servers.manifests import files_of
from simulator.metrics.outcomes import ATTAINMENT

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
