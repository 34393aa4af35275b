"""Prompts that were computed before are computed again: the cache is off, cold, or too small."""

from __future__ import annotations

import numpy as np

from scenarios.assembly.unused_keys import caches_prefixes
from scenarios.assembly.workloads import build_workload
from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule, Value
from scenarios.diagnosis.reuse import seen_before
from scenarios.diagnosis.rules.memory_bound import more_memory
from simulator.errors import InputError
from simulator.percent import percent
from simulator.policies import DEFAULT_POLICY
from simulator.results.records import Floats

WASTE = 0.1
"""Share of the busy time spent on prompt tokens that a cache would have found, from which on it is a finding."""


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    requests, workload = evidence.records.requests, evidence.workload
    if workload is None:
        try:
            workload = build_workload(evidence.scenario)
        except InputError:
            return None  # the trace is not there any more
    if workload.content is None or workload.loops or len(workload) != len(requests.row):
        return None  # nothing is known of the prompts, or what is asked depends on the answers
    same, anywhere = seen_before(workload, requests.replica, evidence.records.block_size)
    begun = ~np.isnan(requests.first_token_s)
    found = np.minimum(requests.cached_tokens, requests.input_tokens)
    missed = np.where(begun, np.maximum(anywhere - found, 0), 0)
    missed_s = missed * evidence.prompt_token_s
    share = float(missed_s.sum()) / evidence.busy_s if evidence.busy_s else 0.0
    if share < WASTE:
        return None
    input_tokens = float(requests.input_tokens[begun].sum())
    hit, could = float(found[begun].sum()) / input_tokens, float(anywhere[begun].sum()) / input_tokens
    here = float(same[begun].sum()) / input_tokens
    gain = 1 / (1 - min(share, 0.99))
    waited = evidence.late.queued_s * evidence.relieved(gain) + missed_s[evidence.late.row]
    kind, why, remedies = _kind(evidence, hit, here, could)
    words = (
        f"the cache is {kind}: {percent(hit)} of the prompt tokens were found in it, {percent(could)} had been "
        f"computed before{why}; computing them again took {percent(share)} of the busy time"
    )
    numbers: dict[str, Value] = {
        "prefix_cache": kind,
        "hit_rate": hit,
        "seen_before_on_the_replica": here,
        "seen_before_anywhere": could,
        "busy_time_computing_again": share,
    }
    return Claim(words, numbers, remedies, waited_s=waited, lost=share * evidence.busy_share)


def _kind(evidence: Evidence, hit: float, here: float, could: float) -> tuple[str, str, list[Remedy]]:
    """Tell by what most is missed: off, thrashing (seen on the replica, and evicted) or cold (seen on another)."""
    engine = evidence.scenario.engine
    if not engine.enable_prefix_caching:
        change: dict[str, bool | str] = {"engine.enable_prefix_caching": True}
        if not caches_prefixes(engine.policy):
            change["engine.policy"] = DEFAULT_POLICY
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
    "Prompts begin with tokens of earlier prompts, which are computed again: no cache keeps them (off), other replicas "
    "have them (cold), or they were evicted (thrashing).",
    f"Prompt tokens that an earlier request had were not found, and took at least {percent(WASTE)} of the busy time, "
    "by the time that a prompt token added to the run's steps. That time counts, and the part of the queue that it "
    "would have served.",
    "`enable_prefix_caching`, `router: prefix_affinity`, more memory for KV",
    _find,
)
