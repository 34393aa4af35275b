"""A plan in the form that the report takes: plain rows and points."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
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
        searched.append(Searched(label, _used(answer), bounds, asked, answer.rate_at_best))
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
    title, better, value = _compared(plan)
    best: dict[tuple[int, int], float] = {}
    costs: dict[tuple[int, int], float] = {}
    for settings, answer in zip(found, plan.answers, strict=True):
        if x in settings and y in settings and answer.bounds is not None and answer.feasible:
            at = places[x].index(settings[x]), places[y].index(settings[y])
            best[at] = max(best.get(at, value(answer)), value(answer), key=lambda each: better * each)
            if answer.usd_per_million is not None:
                costs[at] = min(costs.get(at, math.inf), answer.usd_per_million)
    if not best:
        return None
    labels = {key: [str(value) for value in places[key]] for key in (x, y)}
    titles = {key: key.rpartition(".")[2] for key in (x, y)}
    return OverKeys(titles[x], labels[x], titles[y], labels[y], (title, better), best, costs, len(places) > 2)


def _compared(plan: Plan) -> tuple[str, int, Callable[[Answer], float]]:
    """Return what a map compares, so that fleets of unlike sizes do not stand side by side: title, direction, value."""
    answers = [answer for answer in plan.answers if answer.feasible and answer.bounds is not None]
    if plan.find == "replicas":
        if len({answer.gpus / answer.replicas for answer in answers}) > 1:
            return f"fewest GPUs for {plan.load:g} req/s", -1, lambda answer: answer.gpus
        return f"fewest replicas for {plan.load:g} req/s", -1, lambda answer: answer.replicas
    if len({answer.gpus for answer in answers}) > 1:
        return "largest rate of a GPU (req/s)", 1, lambda answer: _rate(answer) / answer.gpus
    return "largest rate (req/s)", 1, _rate


def _rate(answer: Answer) -> float:
    return 0.0 if answer.bounds is None else answer.bounds.value
