"""Requests are held at the gateway while a replica has room."""

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.rules.router import rooms
from scenarios.diagnosis.say import seconds
from scenarios.diagnosis.timeline import covered
from simulator.percent import percent
from simulator.results.records import Floats


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
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
    return Claim(words, numbers, _remedies(evidence), waited_s=spared)


def _remedies(evidence: Evidence) -> list[Remedy]:
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


RULE = Rule(
    "held-at-gateway",
    "a gateway that holds back too early",
    "Flow control holds requests at the gateway while a replica has no queue, a free slot and free memory.",
    "The seconds that late requests were at the gateway while a replica had room. What is held while all replicas are "
    "full is load, and no fault of the gateway.",
    "higher thresholds of `flow_control` (`max_concurrency`, `max_token_concurrency`; `queue_depth_threshold`, "
    "`kv_cache_util_threshold`)",
    _find,
)
