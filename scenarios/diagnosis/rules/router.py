"""Requests wait at one replica while another has room."""

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.say import count
from scenarios.diagnosis.timeline import covered
from simulator.fleet.router import RouterFeatures
from simulator.fleet.routers import router_class
from simulator.metrics.window import run_end_s
from simulator.percent import percent
from simulator.results.records import Floats

SLOWER = 1.25
"""Times the mean step of all replicas from which on a replica is slow for what it is given: equal ones differ less."""


def rooms(evidence: Evidence) -> tuple[Floats, Floats]:
    """Return starts and ends of the times at which a replica had no queue, a free slot and blocks for a request."""
    rows, slots = evidence.records.rows, evidence.prices.slots
    free = (rows.waiting == 0) & (rows.running < slots[rows.replica]) & ~evidence.no_memory
    starts, ends = [rows.start_s[free]], [rows.end_s[free]]
    if evidence.records.lives is None:
        same = rows.replica[1:] == rows.replica[:-1]
        starts.append(rows.end_s[:-1][same])
        ends.append(rows.start_s[1:][same])
        of, first = np.unique(rows.replica, return_index=True)
        last = np.append(first[1:], len(rows.replica)) - 1
        begin, end = float(evidence.records.requests.arrival_s.min()), run_end_s(evidence.records)
        starts += [np.full(len(of), begin), rows.end_s[last]]
        ends += [rows.start_s[first], np.full(len(of), end)]
        if len(of) < evidence.records.replicas:  # one that never did anything
            starts.append(np.array([begin]))
            ends.append(np.array([end]))
    return np.concatenate(starts), np.concatenate(ends)


def _slowed_s(evidence: Evidence) -> Floats:
    """Return each late request's seconds after its first token by which its replica was slower than the mean."""
    rows, late = evidence.records.rows, evidence.late
    decoding = rows.decoding > 0
    n = evidence.records.replicas
    seconds = np.bincount(rows.replica[decoding], evidence.row_s[decoding], n)
    steps = np.bincount(rows.replica[decoding], rows.repeat[decoding], n)
    pace = seconds / np.maximum(steps, 1)
    mean = float(pace[steps > 0].mean()) if (steps > 0).any() else 0.0
    longer = np.where(pace > SLOWER * mean, 1 - mean / np.maximum(pace, 1e-12), 0.0)
    return np.asarray((late.last_s - late.first_s) * longer[evidence.replica])


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    records = evidence.records
    if records.replicas == 1 or records.transfers is not None or not len(records.rows.start_s):
        return None
    starts, ends = rooms(evidence)
    late = evidence.late
    spared = covered(starts, ends, late.from_s, late.begun_s)
    slowed = _slowed_s(evidence)
    by_replica = np.bincount(evidence.replica, minlength=records.replicas)
    served = np.bincount(
        np.maximum(records.requests.replica, 0), records.requests.input_tokens + records.requests.output_tokens,
        records.replicas,
    )  # fmt: skip
    worst = int(by_replica.argmax())
    share = float(spared.sum()) / max(float(late.queued_s.sum()), 1e-12)
    kind = evidence.scenario.routing.kind
    words = (
        f"under {kind}, late requests waited {percent(share)} of their time in the queue while another "
        f"replica had room; replica {worst} has {percent(by_replica[worst] / max(len(left_s), 1))} of them"
    )
    if served.max() > SLOWER * served.mean():
        most = int(served.argmax())
        words += f", and replica {most} was given {count(served[most] / served.mean())} times the mean tokens"
    if slowed.any():
        words += "; steps on some replicas take longer than the mean of all, by a quarter and more"
    numbers = {
        "waited_beside_room": share,
        "busiest_replica": worst,
        "late_at_busiest": int(by_replica[worst]),
        "tokens_most_over_mean": float(served.max() / served.mean()),
    }
    return Claim(words, numbers, _remedies(evidence), waited_s=spared, slowed_s=slowed)


def _remedies(evidence: Evidence) -> list[Remedy]:
    routing = evidence.scenario.routing
    found = [
        Remedy({"router": "least_loaded"}, "give each request to the replica with the fewest unfinished ones"),
        Remedy({"router": "least_kv"}, "give each request to the replica with the most free KV blocks"),
    ]
    found = [remedy for remedy in found if remedy.change["router"] != routing.kind]
    if routing.signal_interval_s > 0 and RouterFeatures.of(router_class(routing.kind)).reads_loads:
        found.insert(0, Remedy({"router.signal_interval_s": 0.0}, "let the router see loads as they are"))
    return found


RULE = Rule(
    "unbalanced-router",
    "a router that unbalances",
    "Requests wait at one replica while another has no queue, a free slot and free memory.",
    "The seconds that late requests waited while another replica had room. So a fleet that is full everywhere is not "
    "unbalanced, even if its queues differ. After the first token, the time by which a step of their replica took "
    "longer than the mean of all replicas, if that is a quarter or more.",
    "a router that reads loads (`router: least_loaded`, `least_kv`), or reads them more often (`signal_interval_s`)",
    _find,
)
