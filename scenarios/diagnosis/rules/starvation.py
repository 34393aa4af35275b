"""Some requests are passed over by others that came later."""

import numpy as np

from scenarios.diagnosis.evidence import Claim, Evidence, Remedy, Rule, Value, seconds
from scenarios.diagnosis.rules.load import more_replicas
from simulator.metrics.metric import percent
from simulator.metrics.window import Bools, run_end_s
from simulator.policies import DEFAULT_POLICY
from simulator.results.records import Floats, Ints

MOSTLY = 2 / 3
"""Share of the seconds passed over that a group must bear to be named: twice what all others bear together."""


def passed_over_s(evidence: Evidence) -> Floats:
    """Return the seconds that each request waited longer than it would have in order of arrival.

    A replica began its requests at certain times; in order of arrival, the k-th to come would have begun at the k-th of
    these. What some wait longer, others wait less: the sum is the same.
    """
    requests = evidence.records.requests
    waited_to = np.where(np.isnan(requests.scheduled_s), run_end_s(evidence.records), requests.scheduled_s)
    by_arrival = np.lexsort((requests.row, requests.arrival_s, requests.replica))
    by_begin = np.lexsort((waited_to, requests.replica))
    in_order = np.empty(len(waited_to))
    in_order[by_arrival] = waited_to[by_begin]
    return np.asarray(np.maximum(waited_to - in_order, 0.0))


def _groups(evidence: Evidence) -> list[tuple[str, Bools]]:
    """List the groups that may starve: classes, else priorities, else long and short requests."""
    requests, names = evidence.records.requests, evidence.records.class_names
    if len(names) > 1:
        return [(f"the class {name}", requests.class_index == index) for index, name in enumerate(names)]
    priorities: Ints = np.unique(requests.priority)
    if len(priorities) > 1:
        return [(f"priority {each}", requests.priority == each) for each in priorities.tolist()]
    tokens = requests.input_tokens + requests.output_tokens
    long = tokens > np.median(tokens)
    return [("the longer half of the requests", long), ("the shorter half of the requests", ~long)]


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    late = evidence.late
    passed = passed_over_s(evidence)
    of_late = passed[late.row]
    borne = float(of_late[left_s > 0].sum())
    if borne <= 0:
        return None
    requests, slowed = evidence.records.requests, evidence.nothing()
    name, members = max(_groups(evidence), key=lambda group: float(of_late[group[1][late.row]].sum()))
    starved = members[late.row]
    if float(of_late[starved].sum()) < MOSTLY * borne or members.all():
        return None
    if len(np.unique(requests.priority)) > 1 and evidence.traits.displaces:
        slowed = np.where(starved, requests.requeued_s[late.row], 0.0)  # displaced by more important ones
    wait_s, passed_s = float(late.queued_s[starved].mean()), float(of_late[starved].mean())
    others = ~members & ~np.isnan(requests.scheduled_s)
    other_s = float((requests.scheduled_s - requests.arrival_s)[others].mean()) if others.any() else 0.0
    starve = "starves" if name.startswith(("the class", "priority")) else "starve"
    words = (
        f"{name} {starve}: passed over by later arrivals, its late requests waited {seconds(wait_s)} on average, the "
        f"others {seconds(other_s)}; in order of arrival they would have waited "
        f"{percent(passed_s / max(wait_s, 1e-9))} less"
    )
    numbers: dict[str, Value] = {
        "starved": name.removeprefix("the "),
        "late_of_it": int(starved.sum()),
        "mean_wait_s": wait_s,
        "mean_wait_of_others_s": other_s,
        "mean_passed_over_s": passed_s,
    }
    waited = np.where(starved, of_late, 0.0)
    return Claim(words, numbers, _remedies(evidence), waited_s=waited, slowed_s=slowed)


def _remedies(evidence: Evidence) -> list[Remedy]:
    engine, found = evidence.scenario.engine, []
    order = engine.parameter("order")
    if order == "sjf" and engine.parameter("aging_s") is None:
        limit_s = evidence.late.wait_limit_s
        aging_s = float(f"{limit_s / 2:.2g}") if np.isfinite(limit_s) else 1.0
        found.append(Remedy({"engine.aging_s": aging_s}, "after so long a request goes before all shorter ones"))
    if order is None:  # the policy has an order of its own
        found.append(Remedy({"engine.policy": DEFAULT_POLICY}, "serve in order of arrival"))
    elif order != "fcfs":
        found.append(Remedy({"engine.order": "fair"}, "give each class its share"))
        found.append(Remedy({"engine.order": "fcfs"}, "serve in order of arrival"))
    return [*found[:2], *more_replicas(evidence)]


RULE = Rule(
    "starvation",
    "starvation of a class",
    "Requests of a class (or a priority, or the long ones) wait while others that came later start before them.",
    "The extra seconds that late requests waited, compared with order of arrival, if their replica had started "
    "requests at the same times. One group has at least two thirds of them. First come, first served has none.",
    "an order that gives each class its share (`engine.order: fair`), one that ages (`aging_s`), or order of arrival",
    _find,
)
