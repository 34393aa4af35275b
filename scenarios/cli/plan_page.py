"""A plan as the report takes it: plain rows and points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scenarios.cli.plan_map import over_keys

if TYPE_CHECKING:
    from reports.pages.plan_report import PlanPage
    from scenarios.plan.answer import Answer, Plan


def plan_page(plan: Plan) -> PlanPage:
    """The content of a plan's report."""
    from reports.pages.plan_report import PlanPage, Searched
    from reports.tables.request_tables import TableRows
    from scenarios.plan.text import TEXT_COLUMNS, below, labels, sentence, table

    head, *body = table(plan)
    asked = None if plan.find == "rate" else plan.load
    searched = [
        Searched(
            label,
            _used(answer),
            None if answer.bounds is None else (answer.bounds.low, answer.bounds.value, answer.bounds.high),
            asked,
        )
        for label, answer in zip(labels(plan), plan.answers, strict=True)
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
        over_keys(plan),
    )


_LOOKING = {"rate": "the largest rate", "replicas": "the fewest replicas", "config": "the best settings"}


def _used(answer: Answer) -> Mapping[str, Sequence[list[tuple[float, float]]]]:
    """For each limit and seed the rates of the runs, as these replicas would have them, and the share that was used."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for trial in answer.trials:
        rate = trial.rate / trial.replicas * answer.replicas
        for goal, value in zip(trial.goals[:-1], trial.values, strict=False):
            of_seed = found.setdefault(goal.text, {}).setdefault(trial.seed, [])
            of_seed.append((rate, math.exp(goal.excess(value))))
    return {text: list(of_seeds.values()) for text, of_seeds in found.items()}
