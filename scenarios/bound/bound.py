"""Bounds of a scenario: what no scheduler can do better on its requests and its step costs.

Every bound is a relaxation with a proof: `charges` says what a request costs at least, `relaxations` what a machine
that pays these prices can reach, `at_best` which metric follows from which. Of several the tightest counts. Where what
a proof needs does not hold, no bound is given, and the reason is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from scenarios.assembly.engine_policy import policy_traits
from scenarios.assembly.replica_parts import build
from scenarios.bound.at_best import Bound, Bounds, at_best, largest_rate
from scenarios.bound.charges import Charges, HeldBlocks, Server, measured_requests
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.metrics.summary import METRICS
from simulator.policy_traits import OptionalMembers
from simulator.results.records import Records, Status
from simulator.timing.cost import floors_of
from simulator.workload import Workload

_SAME = "and others may serve more requests: the share within the SLO alone is comparable"


def bound(scenario: Scenario, workload: Workload, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Bounds:
    """Bound the metrics of all runs of these requests, under the limits of the scenario's engine and its step costs.

    The cuts are those of the measured window.
    """
    try:
        charges = _charges(scenario, workload, warmup_s, cooldown_s)
    except InputError as error:
        return Bounds({}, None, (error.message,))
    streams = policy_traits(scenario).streams
    found = at_best(charges, scenario.resolve_slo(), streams=streams, cut=warmup_s + cooldown_s > 0)
    engine = scenario.engine
    caps = (engine.max_queued_requests, engine.max_num_queued_reqs, engine.max_num_queued_tokens)
    if any(cap is not None for cap in caps):
        return Bounds(_share(found.metrics), None, (f"the queue is capped, {_SAME}",))
    return found


def bound_rate(scenario: Scenario, workload: Workload) -> Bound | None:
    """Bound the requests of this mix a second that the scenario's replicas can serve for ever; None without a proof."""
    try:
        return largest_rate(_charges(scenario, workload))
    except InputError:
        return None


def _charges(scenario: Scenario, workload: Workload, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Charges:
    """What the measured requests cost at least. Raises InputError with the reason where no proof holds."""
    server = _server(scenario)
    requests = measured_requests(workload, caches=server.caches, warmup_s=warmup_s, cooldown_s=cooldown_s)
    if not len(requests):
        raise InputError("there is no request")
    return Charges(replace(server, kv_tokens=None) if requests.shares else server, requests)


def _server(scenario: Scenario) -> Server:
    """The limits of the scenario's replicas. Raises InputError with the reason where there are none to reckon with."""
    if scenario.fleet is not None:
        raise InputError("a fleet has replicas of several kinds, or a number of them that changes")
    if scenario.hardware.enable_expert_parallel:
        raise InputError("the replicas step together, so the price of a step is not that of one replica")
    if scenario.hardware.pipeline_parallel > 1:
        raise InputError("a pipeline has several steps in flight, of which each stage computes a part")
    if scenario.engine.speculative_config is not None:
        raise InputError("with drafts, a step may give a request several tokens")
    parts = build(scenario)
    if parts.connector is not None:
        raise InputError("KV that lies on the host is loaded there, and not computed")
    policy = parts.make_policy()
    tokens = int(min(OptionalMembers.of(policy).max_num_batched_tokens, parts.kv.tokens))
    floors = floors_of(parts.cost, tokens)
    if not floors:
        raise InputError("nothing is known of the cost model's steps but their seconds, one by one")
    caches = scenario.engine.enable_prefix_caching
    held = None if parts.kv_plan is None else HeldBlocks.of(parts.kv_plan, parts.kv.usable)
    return Server(scenario.replicas, policy.max_num_seqs, tokens, parts.kv.tokens, caches, tuple(floors), held)


def weakest(each: Sequence[Bounds]) -> Bounds:
    """The bounds that hold for all of several scenarios: of each metric the weakest, where all have one."""
    shared = [key for key in each[0].metrics if all(key in other.metrics for other in each)]
    metrics = {
        key: min((other.metrics[key] for other in each), key=lambda one: -(METRICS[key].better or -1) * one.value)
        for key in shared
    }
    rates = [other.rate for other in each]
    known = [rate for rate in rates if rate is not None]
    rate = max(known, key=lambda one: one.value) if len(known) == len(rates) else None
    return Bounds(metrics, rate, tuple(dict.fromkeys(why for other in each for why in other.why_not)))


def of_run(bounds: Bounds, records: Records, workload: Workload) -> Bounds:
    """The bounds that hold for this run: of one that left requests unserved, the share within the SLO alone."""
    requests = records.requests
    lost = int((requests.status != Status.FINISHED).sum())
    if lost:
        return Bounds(_share(bounds.metrics), None, (*bounds.why_not, f"{lost:,} requests were not served, {_SAME}"))
    asked = np.minimum(workload.output_tokens, workload.max_tokens)
    if not workload.loops and int(requests.output_tokens.sum()) != int(asked.sum()):
        return Bounds({}, None, (*bounds.why_not, "the server cut answers short"))
    return bounds


def _share(metrics: Mapping[str, Bound]) -> dict[str, Bound]:
    return {key: one for key, one in metrics.items() if key == "slo_attainment"}
