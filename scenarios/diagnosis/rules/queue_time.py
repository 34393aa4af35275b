"""Requests wait longer than the SLO allows because the load is above the capacity, or too near to it."""

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Rule, Value
from scenarios.diagnosis.rules.admission_bound import free_slots
from scenarios.diagnosis.rules.transient_overload import more_replicas
from scenarios.diagnosis.say import count, seconds
from simulator.percent import percent
from simulator.results.records import Floats


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    late, rows = evidence.late, evidence.records.rows
    waited: Floats = np.asarray(late.first_s - late.from_s)
    if not late.waits.any() or not len(rows.repeat):
        return None
    mean_s, saturated = float(late.queued_s.mean()), bool(evidence.summary.get("saturated"))
    requests = evidence.records.requests
    came_s = float(requests.arrival_s.max() - requests.arrival_s.min())
    begun = requests.scheduled_s[~np.isnan(requests.scheduled_s)]
    took_s = float(begun.max() - requests.arrival_s.min()) if len(begun) else came_s
    above = took_s / came_s if came_s > 0 else 1.0
    why = {"memory": evidence.no_memory, "slots": evidence.no_slot, "tokens of a step": evidence.no_tokens}
    full = max(why, key=lambda name: float(evidence.queued_s(why[name]).sum()))
    words = (
        f"{'the queue grew as long as requests came' if saturated else 'capacity is short'}; late requests waited "
        f"{seconds(mean_s)} in the queue on average, mostly for {full}, with the GPU busy "
        f"{percent(float(evidence.summary.get('busy_fraction') or 0.0))} of the time"
    )
    if 1.05 < above < 20:
        words += f"; it took {count(above)} times as long to begin all requests as they took to come"
    numbers: dict[str, Value] = {
        "mean_queue_time_of_late_s": mean_s,
        "longest_queue_time_s": float(late.queued_s.max()),
        "waited_mostly_for": full,
        "begun_over_came": above,
        "saturated": int(saturated),
    }
    return Claim(words, numbers, [*free_slots(evidence), *more_replicas(evidence)], waited_s=waited)


RULE = Rule(
    "queue-time",
    "queue time beyond the SLO",
    "The load is above the capacity, or too near to it: requests wait longer than allowed, without another cause.",
    "The seconds until the first token of late requests that no rule before it explains.",
    "replicas, a faster GPU, or less load",
    _find,
)
