"""Requests wait for KV from the host or a further tier: its link is what binds."""

import numpy as np

from scenarios.diagnosis.evidence import TIERS, Claim, Evidence, Remedy, Rule, load_waits, seconds
from simulator.metrics.metric import percent
from simulator.metrics.part_metrics import loaded_tokens
from simulator.results.records import Floats


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
    copies, late = evidence.records.copies, evidence.late
    if copies is None or not len(late.row):
        return None
    waits = load_waits(evidence.records, late.row, late.from_s, late.first_s)
    tier = int(np.argmax(waits.sum(axis=1)))
    waited, loaded = waits[tier], loaded_tokens(evidence.records)[late.row]
    those = waited > 0
    if not those.any():
        return None
    tokens, wait_s = float(loaded[those].mean()), float(waited[those].mean())
    compute_s = tokens * float(evidence.prices.token_s.mean())
    on = (copies.tier == tier) & (copies.stored == 0)
    span_s = max(float(copies.end_s[on].max() - copies.start_s[on].min()), 1e-9) * evidence.records.replicas
    busy = min(1.0, float((copies.end_s - copies.start_s)[on].sum()) / span_s)
    words = (
        f"late requests waited {seconds(wait_s)} on average while {TIERS[tier]} loaded {tokens:,.0f} tokens of KV for "
        f"each, which take {seconds(compute_s)} to compute; it was loading for {percent(busy)} of the time between its "
        "first load and its last"
    )
    numbers = {
        "tier": tier,
        "load_wait_s": wait_s,
        "loaded_tokens": tokens,
        "compute_s": compute_s,
        "link_busy": busy,
    }
    return Claim(words, numbers, _remedies(evidence, tier, wait_s > compute_s), waited_s=waits.sum(axis=0))


def _remedies(evidence: Evidence, tier: int, is_slower: bool) -> list[Remedy]:
    scenario = evidence.scenario
    given = scenario.hardware.kv_offload
    if given is None or scenario.fleet is not None:
        return []
    found = []
    if is_slower and tier:
        found.append(Remedy({"hardware.kv_offload.tiers": None}, "compute what the host has forgotten: that is faster"))
    if is_slower:
        found.append(Remedy({"hardware.kv_offload": None}, "compute the KV of prompts again: that is faster"))
    if tier:
        more = {"hardware.kv_offload.host_gib": 4 * given.host_gib}
        found.append(Remedy(more, "a larger host reads less from further tiers"))
    else:
        link_gb_s = scenario.resolve_gpu().host_link_gb_s if given.link_gb_s is None else given.link_gb_s
        more = {"hardware.kv_offload.link_gb_s": 2 * link_gb_s}
        found.append(Remedy(more, "a link of twice the bandwidth between host and GPUs"))
    return found


RULE = Rule(
    "kv-link",
    "the link of a KV tier binds",
    "Requests wait until their KV is loaded from the host, or from a further tier through the host.",
    "The seconds until the first token in which a tier's link was loading, up to the end of the request's own load. "
    "The finding sets them beside the time in which the GPU computes the same tokens in full steps.",
    "a faster link, a larger host, or no `kv_offload` where computing is faster",
    _find,
)
