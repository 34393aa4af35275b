"""More requests arrived for a while than the server could start."""

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.rules.admission_bound import free_slots
from scenarios.diagnosis.say import count, moment, seconds
from simulator.results.records import Floats

MOST_OF_IT = 0.5
"""Share of the time in which requests come that most of them may be late in, and it is still transient."""
_PIECES = 100  # of that time


def is_transient(evidence: Evidence) -> bool:
    """Return whether most requests are late in at most half of the time in which requests come."""
    if evidence.overload is None or bool(evidence.summary.get("saturated")):
        return False
    arrivals = evidence.records.requests.arrival_s
    late = arrivals[evidence.late.row]
    span = (float(arrivals.min()), float(arrivals.max()))
    if span[0] == span[1]:
        return True  # a single burst
    came, too_late = (np.histogram(times, _PIECES, span)[0] for times in (arrivals, late))
    return float((too_late > 0.5 * came).mean()) <= MOST_OF_IT


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    found = evidence.overload
    if found is None or not is_transient(evidence):
        return None
    again = f", the worst of {found.times} such times" if found.times > 1 else ""
    started = count(found.service_rate) if found.service_rate else "none"
    words = (
        f"for {seconds(found.duration_s)}, from {moment(found.from_s)} to {moment(found.to_s)}{again}: "
        f"{count(found.arrival_rate)} requests/s arrived; the server could start {started}; "
        f"the queue reached {count(found.peak)}, and {count(found.late)} requests waited too long, the longest "
        f"{seconds(found.longest_s)}"
    )
    numbers = {
        "arrival_rate": found.arrival_rate,
        "service_rate": found.service_rate,
        "peak_queue": found.peak,
        "peak_s": found.peak_s,
        "late_in_it": found.late,
        "times": found.times,
    }
    remedies = [*free_slots(evidence), *more_replicas(evidence)]
    return Claim(words, numbers, remedies, evidence.late.queued_s, span_s=(found.from_s, found.to_s))


def more_replicas(evidence: Evidence) -> list[Remedy]:
    """Propose as many replicas as the worst backlog asked for, at least one more."""
    if evidence.scenario.fleet is not None:
        return [Remedy({"replicas": 2.0}, "twice the replicas of each group")]
    now = evidence.scenario.num_replicas
    more = max(now + 1, int(np.ceil(now * min(evidence.pressure, 8.0))))
    return [Remedy({"replicas": more}, "replicas for the requests that arrived while the queue grew")]


RULE = Rule(
    "transient-overload",
    "transient overload",
    "For a while more requests arrived than the server could start. The others waited until the queue was empty again.",
    "A backlog (`simulator.metrics.overload`) during at most half of the time in which requests come, in which most "
    "requests are late, in a run that is not saturated. The seconds that late requests waited count, unless a rule "
    "before it explains them.",
    "replicas for the peak, or looser limits at the peak: an autoscaler, a limit on the queue",
    _find,
)
