"""The edge of a plan's answer: the interval of the largest rate of one replica, and the scenario that serves it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scenarios.plan.goal import Goal, chosen_goals, parse_goal
from scenarios.plan.plan import make_plan
from scenarios.runs.storage.run_folder import CANDIDATES, PLAN
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class Edge:
    """`low` and `high` are requests per second of one replica, which `scenario` describes; it had `replicas`."""

    scenario: Scenario
    goals: tuple[Goal, ...]
    low: float
    high: float
    replicas: int


def edge_of_plan(folder: Path, overrides: Sequence[str] = ()) -> Edge:
    """Read the edge of a folder that `plan --out` wrote. Raises InputError where its plan has no answer."""
    path = folder / PLAN
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        best, slo = plan["candidates"][0], plan["slo"]
        low, high, replicas = best["rate"]["low"], best["rate"]["high"], int(best["replicas"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise InputError("this is no folder of `batchlab plan --out`", file=str(path)) from None
    if low is None or high is None or not best["feasible"]:
        raise InputError("the plan has no rate that holds: there is nothing to test", file=str(path))
    scenario = load(folder / CANDIDATES / "1.yaml", [*overrides, "replicas=1"])
    goals = tuple(parse_goal(text, scenario) for text in slo)
    return Edge(scenario, goals, low / replicas, high / replicas, replicas)


def edge_of_scenario(scenario: Scenario, texts: Sequence[str]) -> Edge:
    """Search the edge of a scenario as it stands. Raises InputError where no rate holds."""
    if scenario.fleet is not None:
        raise InputError("the scenario has a fleet of groups: test the groups one by one")
    goals = chosen_goals(texts, scenario)
    answer = make_plan(scenario, goals, seeds=3).answers[0]
    if answer.bounds is None or not answer.feasible:
        raise InputError(f"{answer.note or 'no rate holds'} There is nothing to test.")
    one = load(scenario, ["replicas=1"])
    return Edge(one, goals, answer.bounds.low / answer.replicas, answer.bounds.high / answer.replicas, answer.replicas)
