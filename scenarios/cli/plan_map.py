"""A plan over two of its settings, as the report takes it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reports.pages.plan_heatmaps import OverKeys
    from scenarios.plan.answer import Plan


def over_keys(plan: Plan) -> OverKeys | None:
    """The two settings that take the most values, with the best answer of each pair; None where fewer than two do."""
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
