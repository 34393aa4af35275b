"""The router and the gateway: requests wait at one replica, or at the gateway, while another replica has room."""

import numpy as np

from scenarios.diagnosis.evidence import Claim, Evidence, Remedy, Rule, count, covered, seconds
from simulator.fleet.router import RouterFeatures
from simulator.fleet.routers import router_class
from simulator.metrics.metric import percent
from simulator.metrics.window import run_end_s
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


def _find_router(evidence: Evidence, left_s: Floats) -> Claim | None:
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
    return Claim(words, numbers, _remedies_of_router(evidence), waited_s=spared, slowed_s=slowed)


def _remedies_of_router(evidence: Evidence) -> list[Remedy]:
    routing = evidence.scenario.routing
    found = [
        Remedy({"router": "least_loaded"}, "give each request to the replica with the fewest unfinished ones"),
        Remedy({"router": "least_kv"}, "give each request to the replica with the most free KV blocks"),
    ]
    found = [remedy for remedy in found if remedy.change["router"] != routing.kind]
    if routing.signal_interval_s > 0 and RouterFeatures.of(router_class(routing.kind)).reads_loads:
        found.insert(0, Remedy({"router.signal_interval_s": 0.0}, "let the router see loads as they are"))
    return found


ROUTER = Rule(
    "unbalanced-router",
    "a router that unbalances",
    "Requests wait at one replica while another has no queue, a free slot and free memory.",
    "The seconds that late requests waited while another replica had room. So a fleet that is full everywhere is not "
    "unbalanced, even if its queues differ. After the first token, the time by which a step of their replica took "
    "longer than the mean of all replicas, if that is a quarter or more.",
    "a router that reads loads (`router: least_loaded`, `least_kv`), or reads them more often (`signal_interval_s`)",
    _find_router,
)


# Requests are held at the gateway while a replica has room.


def _find_gateway(evidence: Evidence, left_s: Floats) -> Claim | None:
    records, late = evidence.records, evidence.late
    passages = records.passages
    if passages is None or not len(late.row) or not len(records.rows.start_s):
        return None
    came_s = records.requests.arrival_s.copy()
    gone_s = came_s.copy()
    came_s[passages.row] = passages.at_s - passages.wait_s  # a front end may have had it before
    gone_s[passages.row] = passages.at_s
    from_s, until_s = np.maximum(late.from_s, came_s[late.row]), gone_s[late.row]
    spared = covered(*rooms(evidence), from_s, until_s)
    if not spared.any():
        return None
    held = float((until_s - from_s).sum())
    share = float(spared.sum()) / max(held, 1e-12)
    words = (
        f"late requests were held at the gateway for {seconds(held / len(late.row))} on average, {percent(share)} of "
        "it while a replica had no queue, a free slot and free memory"
    )
    numbers = {"held_s": held / len(late.row), "held_beside_room": share}
    return Claim(words, numbers, _remedies_of_gateway(evidence), waited_s=spared)


def _remedies_of_gateway(evidence: Evidence) -> list[Remedy]:
    given = evidence.scenario.flow_control
    if given is None:
        return []
    what = "hold requests back later"
    more: dict[str, float] = {}
    if given.detector == "utilization":
        more["flow_control.queue_depth_threshold"] = 4 * given.queue_depth_threshold
        more["flow_control.kv_cache_util_threshold"] = 1.0
    elif given.concurrency_mode != "tokens":
        more["flow_control.max_concurrency"] = 4 * given.max_concurrency
    if given.detector == "concurrency" and given.concurrency_mode != "requests":
        more["flow_control.max_token_concurrency"] = 4 * given.max_token_concurrency
    return [Remedy(more, what), Remedy({"flow_control": None}, "let the replicas' own queues hold the requests")]


GATEWAY = Rule(
    "held-at-gateway",
    "a gateway that holds back too early",
    "Flow control holds requests at the gateway while a replica has no queue, a free slot and free memory.",
    "The seconds that late requests were at the gateway while a replica had room. What is held while all replicas are "
    "full is load, and no fault of the gateway.",
    "higher thresholds of `flow_control` (`max_concurrency`, `max_token_concurrency`; `queue_depth_threshold`, "
    "`kv_cache_util_threshold`)",
    _find_gateway,
)
