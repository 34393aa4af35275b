"""Make a plan: candidates, their answers, best first, what could not be told apart, and what would help."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from scenarios.plan.advice import advise
from scenarios.plan.answer import Answer, Plan, with_rate_at_best
from scenarios.plan.bounds import difference
from scenarios.plan.candidate import Candidate, firsts, space
from scenarios.plan.config import find_config
from scenarios.plan.goal import Goal
from scenarios.plan.rates import Experience, find_rate, short_rate
from scenarios.plan.replicas import find_replicas
from scenarios.plan.search import rounded
from scenarios.plan.text import rate_text
from scenarios.plan.traffic import Traffic
from scenarios.plan.trial import Keeper, Laboratory, prediction_of
from scenarios.prediction.residuals import check_coverage
from scenarios.schema.scenario import Scenario
from scenarios.studies.study import Axis
from simulator.errors import InputError

Find = Literal["rate", "replicas", "config"]
FINDS: tuple[Find, ...] = ("rate", "replicas", "config")
SEEDS = 5
"""Seeds of drawn traffic: as many largest rates, between which the interval is taken."""

_TRIED = 1  # answers whose advice is tried by runs
_FEW = 500  # requests: fewer hold no 99th percentile


def make_plan(
    scenario: Scenario,
    goals: Sequence[Goal],
    find: Find = "rate",
    *,
    rate: float | None = None,
    gpus: Sequence[str] = (),
    policies: str = "",
    axes: Sequence[Axis] = (),
    budget_s: float | None = None,
    seeds: int = SEEDS,
    progress: Callable[..., None] | None = None,
    tried: Keeper | None = None,
    confidence: float | None = None,
) -> Plan:
    """Plan for a scenario's traffic. Raises InputError for a space or a rate that cannot be.

    `rate` is the load of `replicas` and `config`, in requests per second, the scenario's unless given; `budget_s` are
    CPU seconds, after which the answers say what was not settled. `progress` is called with the finished candidates and
    their total; for `config`, with the runs so far. What `tried` keeps is not run again. With a `confidence` steps take
    as long as the pessimistic end of the prediction's interval of that probability.
    """
    if rate is not None and not (math.isfinite(rate) and rate > 0):
        raise InputError(f"a rate is above 0, not {rate:g}", file="--rate")
    if budget_s is not None and not budget_s > 0:
        raise InputError(f"a budget is above 0 seconds, not {budget_s:g}", file="--budget-s")
    traffic, tell = Traffic(scenario), progress or (lambda *_: None)
    if confidence is not None:
        check_coverage(confidence)
    lab = Laboratory(traffic, goals, budget_s, None if rate is None else rounded(rate), seeds, tried, confidence)
    around = space(scenario, gpus=gpus, policies=policies, axes=axes, by_default=find == "config")
    notes = [*around.notes, *_warnings(traffic, goals)]
    refused = [_unanswered(lab, candidate, why) for candidate, why in around.refused]
    candidates = around.candidates
    if find == "config":
        answers, more = find_config(lab, candidates, Experience(), tell)
        notes += more
        refused = refused if not answers else []
    else:
        alone = firsts(candidates)
        different = [candidate for place, candidate in enumerate(candidates) if alone[place] == place]
        places = dict(zip(sorted(set(alone)), _answers(lab, different, find, tell), strict=True))
        answers = [replace(places[first], candidate=candidates[place]) for place, first in enumerate(alone)]
    ranked = _told_apart(_ranked([*answers, *refused], find), find)
    ranked = [with_rate_at_best(lab, answer) for answer in ranked]
    ranked = [replace(answer, advice=advise(lab, answer, tried=place < _TRIED)) for place, answer in enumerate(ranked)]
    if confidence is not None:
        ranked = [_predicted(lab, answer, confidence) for answer in ranked]
        steps = ", ".join(sorted({f"{lab.longer(each.candidate).steps:.2f}" for each in ranked if each.prediction}))
        notes.append(f"sized by the pessimistic end of {100 * confidence:g} %: steps take {steps} times as long")
    if lab.is_spent:
        notes.append("warning: the budget ended: each candidate says what was not settled")
    about = f"{traffic.num_requests:,} requests, {rate_text(traffic.rate)} requests/s as they stand"
    return Plan(find, scenario.name, tuple(goals), lab.load, tuple(ranked), lab.runs, lab.cpu_s, tuple(notes), about)


def _answers(lab: Laboratory, candidates: Sequence[Candidate], find: Find, tell: Callable[..., None]) -> list[Answer]:
    """Answer for each candidate: short runs of all, then whole ones, of the most promising candidate first.

    What requests cost elsewhere says how exactly the rate of an expensive candidate must be known.
    """
    experience = Experience()
    found: dict[int, Answer] = {}
    shorts: dict[int, float | None] = {}
    for place, candidate in enumerate(candidates if find == "rate" else ()):
        try:
            shorts[place] = short_rate(lab, candidate)
        except InputError as error:
            found[place] = _refused(lab, candidate, error)
        if lab.is_spent:
            break

    def promise(place: int) -> float:
        price = candidates[place].usd_per_hour(candidates[place].scenario.replicas)
        return (shorts.get(place) or 0.0) / (price or 1.0)

    for place in sorted(range(len(candidates)), key=lambda place: -promise(place)):
        candidate = candidates[place]
        try:
            if place in found:
                pass
            elif lab.is_spent:
                found[place] = _unanswered(lab, candidate, "The budget ended before this was tried.")
            elif find == "replicas":
                found[place] = find_replicas(lab, candidate, experience)
            else:
                found[place] = find_rate(lab, candidate, experience, short=shorts[place])
        except InputError as error:
            found[place] = _refused(lab, candidate, error)
        tell(len(found), len(candidates))
    return [found[place] for place in range(len(candidates))]


def _predicted(lab: Laboratory, answer: Answer, confidence: float) -> Answer:
    """Return an answer with the interval of the prediction, of the run that is shown but at the prices as they are."""
    shown = answer.shown
    if shown is None or shown.stopped:
        return answer
    how: dict[str, Any] = {"replicas": shown.replicas, "seed": shown.seed, "early_stop": False, "as_priced": True}
    records = lab.run(answer.candidate, shown.rate, **how).all_records()
    if records is None:
        return answer
    return replace(answer, prediction=prediction_of(answer.candidate, shown.replicas, records, confidence))


def _unanswered(lab: Laboratory, candidate: Candidate, why: str) -> Answer:
    return Answer(candidate, False, candidate.scenario.replicas, lab.load, note=why)


def _refused(lab: Laboratory, candidate: Candidate, error: InputError) -> Answer:
    """Return an answer that says what is wrong with a candidate's scenario. Raises `error` if it is not at fault."""
    if error.file is not None:  # a flag, or the user's own file
        raise error
    return _unanswered(lab, candidate, f"{error.message}.")


def _warnings(traffic: Traffic, goals: Sequence[Goal]) -> list[str]:
    """Warn of a workload that is too short for its goals."""
    count = traffic.num_requests
    tails = [goal.text for goal in goals if goal.quantile is not None and goal.quantile >= 0.99]
    if not tails or count >= _FEW:
        return []
    return [f"warning: {count:,} requests are few for {tails[0]}: {max(count // 100, 1)} of them decide it"]


def _ranked(answers: Sequence[Answer], find: Find) -> list[Answer]:
    """Sort answers, the best first: those that meet the goals by price, the others by how little they miss."""
    priced = all(answer.usd_per_hour is not None for answer in answers if answer.feasible)

    def key(answer: Answer) -> tuple[float, ...]:
        rate = 0.0 if answer.bounds is None else answer.bounds.value
        if not answer.feasible:
            return (1.0, 0.0 if answer.bounds is not None else 1.0, -rate, answer.excess)
        price = answer.usd_per_hour if priced else float(answer.gpus)
        if find == "rate":  # by the price of a request at the largest rate
            price = (price or 0.0) / rate if priced and rate else 0.0
        return (0.0, price or 0.0, -rate)

    return sorted(answers, key=key)  # stable: equals stay in the order of the grid


def _told_apart(answers: list[Answer], find: Find) -> list[Answer]:
    """Set `equal_to_best` where the interval of the difference from the first holds 0."""
    return [
        replace(answer, equal_to_best=answer is answers[0] or _is_equal(answer, answers[0], find)) for answer in answers
    ]


def _is_equal(answer: Answer, best: Answer, find: Find) -> bool:
    if answer.feasible != best.feasible or answer.bounds is None or best.bounds is None:
        return False
    ours, theirs = answer.usd_per_hour, best.usd_per_hour
    if find != "rate" and ours != theirs:
        return False
    apart = difference(answer.bounds, best.bounds)
    if apart is None:
        return answer.bounds.low <= best.bounds.high and best.bounds.low <= answer.bounds.high and ours == theirs
    cheaper = 0.0 if not ours or not theirs else math.log(theirs / ours)
    return apart[0] + cheaper <= 1e-12 and apart[1] + cheaper >= -1e-12
