"""Prompts that were computed before are computed again: the cache is off, cold, or too small."""

from __future__ import annotations

import numpy as np

from scenarios.build.parts import build_workload
from scenarios.build.unused import caches_prefixes
from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.reuse import seen_before
from scenarios.diagnosis.rules.memory_bound import more_memory
from scenarios.diagnosis.say import percent
from scenarios.schema.scenario import TraceWorkload
from simulator.errors import InputError
from simulator.results.records import Floats, Ints

WASTE = 0.1
"""Share of the busy time spent on prompt tokens that a cache would have found, from which on it is a finding."""


def _may_share(evidence: Evidence) -> bool:
    """Whether prompts can have a common beginning, as far as can be told without reading them."""
    scenario = evidence.scenario
    if scenario.engine.enable_prefix_caching or evidence.records.session_ids is not None:
        return True
    workload = scenario.workload
    if isinstance(workload, TraceWorkload):
        return False
    return any(getattr(each, "prefix", None) is not None for each in workload.all_classes())


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    if not _may_share(evidence):
        return None
    requests = evidence.records.requests
    try:
        workload = build_workload(evidence.scenario)
        if len(workload) != len(requests.row) or workload.loops:
            return None  # who asks what depends on the answers
        replica: Ints = requests.replica
        same, anywhere = seen_before(workload, replica, evidence.block_size)
    except InputError:
        return None  # the trace is not there any more
    begun = ~np.isnan(requests.first_token_s)
    found = np.minimum(requests.cached_tokens, requests.input_tokens)
    missed = np.where(begun, np.maximum(anywhere - found, 0), 0)
    missed_s = missed * evidence.prompt_token_s
    busy = float(evidence.row_s.sum())
    share = float(missed_s.sum()) / busy if busy else 0.0
    if share < WASTE:
        return None
    input_tokens = float(requests.input_tokens[begun].sum())
    hit, could = float(found[begun].sum()) / input_tokens, float(anywhere[begun].sum()) / input_tokens
    here = float(same[begun].sum()) / input_tokens
    gain = 1 / (1 - min(share, 0.99))
    row = evidence.late.row
    queued = (evidence.late.begun_s - evidence.late.from_s) * evidence.relieved(gain)
    kind, why, remedies = _kind(evidence, hit, here, could)
    words = (
        f"the cache is {kind}: {percent(hit)} of the prompt tokens were found in it, {percent(could)} had been computed "
        f"before{why}; computing them again took {percent(share)} of the busy time"
    )
    numbers = {
        "prefix_cache": kind,
        "hit_rate": hit,
        "seen_before_on_the_replica": here,
        "seen_before_anywhere": could,
        "busy_time_computing_again": share,
    }
    return Claim(words, numbers, remedies, waited_s=queued + missed_s[row], lost=share * _busy_share(evidence))


def _busy_share(evidence: Evidence) -> float:
    return min(1.0, float(evidence.row_s.sum()) / max(evidence.replica_seconds, 1e-9))


def _kind(evidence: Evidence, hit: float, here: float, could: float) -> tuple[str, str, list[Remedy]]:
    """Off, thrashing (seen on the replica, and evicted) or cold (seen on another): by which most is missed."""
    engine = evidence.scenario.engine
    if not engine.enable_prefix_caching:
        change: dict[str, bool | str] = {"engine.enable_prefix_caching": True}
        if not caches_prefixes(engine.policy):
            change["engine.policy"] = "chunked_prefill"
        return "off", "", [Remedy(change, "keep the KV of prompts, and find it again")]
    if here - hit >= could - here:
        why = f", {percent(here)} on the same replica: it was evicted before it was asked for again"
        return "thrashing", why, [*_affinity(evidence), *more_memory(evidence)]
    why = f", but only {percent(here)} on the same replica: requests with a common beginning are sent to others"
    return "cold", why, _affinity(evidence)


def _affinity(evidence: Evidence) -> list[Remedy]:
    if evidence.records.replicas == 1 or evidence.scenario.routing.kind == "prefix_affinity":
        return []
    return [Remedy({"router": "prefix_affinity"}, "send a prompt to the replica that has seen its beginning")]


RULE = Rule(
    "prefix-cache",
    "a cold or thrashing prefix cache",
    "Prompts begin with what was computed before and is computed again: no cache keeps it (off), other replicas have "
    "it (cold), or it was evicted (thrashing).",
    f"Prompt tokens that an earlier request had, were not found, and took at least {WASTE:.0%} of the busy time at what "
    "a prompt token added to the steps of the run. It accounts for computing them, and for the part of the queue that this "
    "time would have served.",
    "`enable_prefix_caching`, `router: prefix_affinity`, more memory for KV",
    _find,
)
