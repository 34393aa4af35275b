"""Prompts that were computed before are computed again: the cache is off, cold, or too small."""

import math
from collections.abc import Hashable, Iterator

import numpy as np

from scenarios.assembly.engines import caches_prefixes
from scenarios.assembly.replica_parts import build
from scenarios.assembly.workloads import build_workload
from scenarios.diagnosis.evidence import HOST_GIB, Claim, Evidence, Remedy, Rule, Value, kv_gib, load_token_s, with_host
from scenarios.diagnosis.rules.memory import more_memory
from simulator.errors import InputError
from simulator.metrics.metric import percent
from simulator.metrics.part_metrics import loaded_tokens
from simulator.policies import DEFAULT_POLICY
from simulator.request import PromptContent
from simulator.results.records import Floats, Ints
from simulator.workload import Workload


def seen_before(workload: Workload, replica: Ints, block_size: int) -> tuple[Ints, Ints]:
    """Count each prompt's tokens, in whole blocks, that an earlier request had: on the same replica, and anywhere.

    A cache without limits would find these, except what is computed at the same time. They are 0 for a prompt of
    unknown content.
    """
    n = len(workload)
    same, anywhere = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    everywhere: dict[Hashable, int] = {}
    of_replica: dict[int, dict[Hashable, int]] = {}
    inputs, answers = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    for row, content in enumerate(workload.content or ()):
        if content is None:
            continue
        parts = list(_parts(content, inputs[row], answers[row], block_size))
        whole = (inputs[row] - 1) // block_size * block_size  # the last token is always computed
        for cache, found in ((of_replica.setdefault(int(replica[row]), {}), same), (everywhere, anywhere)):
            found[row] = min(_known(cache, parts) // block_size * block_size, whole)
            for key, tokens in parts:
                cache[key] = max(cache.get(key, 0), tokens)
    return same, anywhere


def _known(cache: dict[Hashable, int], parts: list[tuple[Hashable, int]]) -> int:
    """Count the tokens of the leading parts that the cache knows."""
    total = 0
    for key, tokens in parts:
        had = min(cache.get(key, 0), tokens)
        total += had
        if had < tokens:
            break
    return total


def _parts(content: PromptContent, inputs: int, answer: int, block_size: int) -> Iterator[tuple[Hashable, int]]:
    """Yield the beginning of a request's tokens, which others may share, as named parts with their lengths.

    `simulator.memory.block_keys` has the same names, block by block; here a part is as long as it can be.
    """
    if tokens := content.prompt_token_ids:
        chain = 0
        for start in range(0, len(tokens) - block_size + 1, block_size):
            chain = hash((chain, tokens[start : start + block_size]))
            yield ("ids", chain), block_size
    elif content.block_hashes:
        size = content.hash_block_size
        for place, key in enumerate(content.block_hashes[: -(-inputs // size)]):
            yield ("hash", key, place), min(size, inputs - place * size)
    else:
        shared = min(content.prefix_tokens, inputs)
        if shared:
            yield ("group", content.prefix_group), shared
        if content.conversation is not None:
            yield ("conversation", content.conversation), inputs - shared + answer


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
    found = np.minimum(requests.cached_tokens + loaded_tokens(evidence.records), requests.input_tokens)
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
    distinct = float((requests.input_tokens - anywhere)[begun].sum()) / evidence.records.replicas
    kind, why, remedies = _kind(evidence, hit, here, could, distinct)
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


def _kind(evidence: Evidence, hit: float, here: float, could: float, distinct: float) -> tuple[str, str, list[Remedy]]:
    """Tell by what most is missed: off, thrashing (seen on the replica, and evicted) or cold (seen on another).

    `distinct` prompt tokens of a replica had not been seen before: a host that holds them forgets nothing.
    """
    engine = evidence.scenario.engine
    if not engine.enable_prefix_caching:
        change: dict[str, bool | str] = {"engine.enable_prefix_caching": True}
        if not caches_prefixes(engine.policy):
            change["engine.policy"] = DEFAULT_POLICY
        return "off", "", [Remedy(change, "keep the KV of prompts, and find it again")]
    if here - hit >= could - here:
        why = f", {percent(here)} on the same replica: it was evicted before it was asked for again"
        return "thrashing", why, [*_affinity(evidence), *_offload(evidence, distinct), *more_memory(evidence)]
    why = f", but only {percent(here)} on the same replica: requests with a common beginning are sent to others"
    return "cold", why, _affinity(evidence)


def _affinity(evidence: Evidence) -> list[Remedy]:
    if evidence.records.replicas == 1 or evidence.scenario.routing.kind == "prefix_affinity":
        return []
    return [Remedy({"router": "prefix_affinity"}, "send a prompt to the replica that has seen its beginning")]


def _offload(evidence: Evidence, tokens: float) -> list[Remedy]:
    """Propose host memory for the KV of so many tokens, where loading a token is faster than computing it."""
    scenario = evidence.scenario
    compute_s = float(evidence.prices.token_s.mean())
    if scenario.fleet is not None or (load_s := load_token_s(scenario)) >= compute_s:
        return []
    given = scenario.hardware.kv_offload
    needed = 2.0 ** math.ceil(math.log2(max(kv_gib(scenario, tokens), 1.0)))
    host_gib = min(needed, HOST_GIB * scenario.hardware.tensor_parallel)
    if given is not None and given.host_gib >= host_gib:
        return []
    try:
        build(with_host(scenario, host_gib))
    except InputError:
        return []
    took = f"loading takes {1e6 * load_s:.3g} us a token, and computing {1e6 * compute_s:.3g} us"
    return [Remedy({"hardware.kv_offload.host_gib": host_gib}, f"keep the KV of prompts in host memory: {took}")]


RULE = Rule(
    "prefix-cache",
    "a cold or thrashing prefix cache",
    "Prompts begin with tokens of earlier prompts, which are computed again: no cache keeps them (off), other replicas "
    "have them (cold), or they were evicted (thrashing).",
    f"Prompt tokens that an earlier request had were not found, and took at least {percent(WASTE)} of the busy time, "
    "by the time that a prompt token added to the run's steps. That time counts, and the part of the queue that it "
    "would have served.",
    "`enable_prefix_caching`, `router: prefix_affinity`, more memory for KV, on the host too (`hardware.kv_offload`)",
    _find,
)
