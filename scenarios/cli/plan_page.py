"""A plan as the report takes it: plain rows and points."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.plan import PlanPage
    from reports.plan_map import OverKeys
    from scenarios.plan.answer import Answer, Plan


def plan_page(plan: Plan) -> PlanPage:
    """What the report says of a plan."""
    from reports.plan import PlanPage, Searched
    from reports.tables import TableRows
    from scenarios.plan.text import TEXT_COLUMNS, below, sentence, table

    head, *body = table(plan)
    asked = None if plan.find == "rate" else plan.load
    searched = [
        Searched(
            answer.candidate.label,
            _used(answer),
            None if answer.bounds is None else (answer.bounds.low, answer.bounds.value, answer.bounds.high),
            asked,
        )
        for answer in plan.answers
    ]
    limits = ", ".join(goal.text for goal in plan.goals)
    remarks = [f"{answer.candidate.label}: {said}" for answer in plan.answers if (said := answer.entry()["advice"])]
    return PlanPage(
        f"{plan.name}: plan for {limits}",
        f"{_LOOKING[plan.find]}; {plan.traffic}; {plan.runs:,} runs",
        sentence(plan),
        below(plan),
        TableRows(head, tuple(body), TEXT_COLUMNS),
        [*plan.notes, *remarks],
        searched,
        _over_keys(plan),
    )


def _over_keys(plan: Plan) -> OverKeys | None:
    """The two settings that take the most values, with the best answer of each pair; None where fewer than two do."""
    from reports.plan_map import OverKeys

    found = [answer.candidate.named_settings() for answer in plan.answers]
    places: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for settings in found for key in settings):
        values = list({json.dumps(each[key], default=str): each[key] for each in found if key in each}.values())
        if len(values) > 1:
            places[key] = sorted(values) if all(isinstance(value, int | float) for value in values) else values
    if len(places) < 2:
        return None
    x, y = sorted(sorted(places), key=lambda key: -len(places[key]))[:2]
    rates: dict[tuple[int, int], float] = {}
    costs: dict[tuple[int, int], float] = {}
    for settings, answer in zip(found, plan.answers, strict=True):
        if x in settings and y in settings and answer.bounds is not None and answer.feasible:
            at = places[x].index(settings[x]), places[y].index(settings[y])
            rates[at] = max(rates.get(at, 0.0), answer.bounds.value)
            if answer.usd_per_million is not None:
                costs[at] = min(costs.get(at, math.inf), answer.usd_per_million)
    if not rates:
        return None
    labels = {key: [str(value) for value in places[key]] for key in (x, y)}
    titles = {key: key.rpartition(".")[2] for key in (x, y)}
    return OverKeys(titles[x], labels[x], titles[y], labels[y], rates, costs, len(places) > 2)


_LOOKING = {"rate": "the largest rate", "replicas": "the fewest replicas", "config": "the best settings"}


def _used(answer: Answer) -> Mapping[str, list[tuple[float, float]]]:
    """For each limit the rates of the runs, as these replicas would have them, and the share of it that was used."""
    found: dict[str, list[tuple[float, float]]] = {}
    for trial in answer.trials:
        rate = trial.rate / trial.replicas * answer.replicas
        for goal, value in zip(trial.goals[:-1], trial.values, strict=False):
            found.setdefault(goal.text, []).append((rate, math.exp(goal.excess(value))))
    return found
