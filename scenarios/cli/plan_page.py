"""A plan in the form that the report takes: plain rows and points."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.pages.plan_heatmaps import OverKeys
    from reports.pages.plan_report import PlanPage
    from scenarios.plan.answer import Answer, Plan


def plan_page(plan: Plan) -> PlanPage:
    """Return the content of a plan's report."""
    from reports.pages.plan_report import PlanPage, Searched
    from reports.tables.request_tables import TableRows
    from scenarios.plan.text import TEXT_COLUMNS, below, labels, sentence, table

    head, *body = table(plan)
    asked = None if plan.find == "rate" else plan.load
    searched = []
    for label, answer in zip(labels(plan), plan.answers, strict=True):
        of = answer.bounds
        bounds = None if of is None else (of.low, of.value, of.high)
        searched.append(Searched(label, _used(answer), bounds, asked))
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


_LOOKING = {"rate": "the largest rate", "replicas": "the fewest replicas", "config": "the best settings"}


def _used(answer: Answer) -> Mapping[str, Sequence[list[tuple[float, float]]]]:
    """Return for each limit and seed the rates of the runs, scaled to these replicas, and the share that was used."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for trial in answer.trials:
        rate = trial.rate / trial.replicas * answer.replicas
        for goal, value in zip(trial.goals[:-1], trial.values, strict=False):
            of_seed = found.setdefault(goal.text, {}).setdefault(trial.seed, [])
            of_seed.append((rate, math.exp(goal.excess(value))))
    return {text: list(of_seeds.values()) for text, of_seeds in found.items()}


def _over_keys(plan: Plan) -> OverKeys | None:
    """Return the best answers over the two settings with the most values; None where fewer than two settings vary."""
    from reports.pages.plan_heatmaps import OverKeys

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
