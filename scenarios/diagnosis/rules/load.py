"""The load: more came than could be begun, for a while or always; tokens come slowly; or too little comes."""

import numpy as np

from scenarios.assembly.engines import with_chunks
from scenarios.diagnosis.evidence import Claim, Evidence, Remedy, Rule, Value, count, moment, seconds
from scenarios.diagnosis.rules.admission_bound import free_slots
from simulator.hardware.gpus import GPUS
from simulator.metrics.metric import percent
from simulator.results.records import Floats
from simulator.timing.cost import CostModel, StepShape

# More requests arrived for a while than the server could start.

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


def _find_transient_overload(evidence: Evidence, left_s: Floats) -> Claim | None:
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


TRANSIENT_OVERLOAD = Rule(
    "transient-overload",
    "transient overload",
    "For a while more requests arrived than the server could start. The others waited until the queue was empty again.",
    "A backlog (`simulator.metrics.waits`) during at most half of the time in which requests come, in which most "
    "requests are late, in a run that is not saturated. The seconds that late requests waited count, unless a rule "
    "before it explains them.",
    "replicas for the peak, or looser limits at the peak: an autoscaler, a limit on the queue",
    _find_transient_overload,
)


# Requests wait longer than the SLO allows because the load is above the capacity, or too near to it.


def _find_queue_time(evidence: Evidence, left_s: Floats) -> Claim | None:
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


QUEUE_TIME = Rule(
    "queue-time",
    "queue time beyond the SLO",
    "The load is above the capacity, or too near to it: requests wait longer than allowed, without another cause.",
    "The seconds until the first token of late requests that no rule before it explains.",
    "replicas, a faster GPU, or less load",
    _find_queue_time,
)


# Tokens come more slowly than the SLO allows, though nothing interrupts them.


def _find_slow_decode(evidence: Evidence, left_s: Floats) -> Claim | None:
    late, rows = evidence.late, evidence.records.rows
    slow = late.paces & (left_s > 0)
    if not slow.any():
        return None
    # The time of one token as the late requests saw it, with the steps that only computed prompts.
    paced, steps = evidence.paced_s, rows.repeat * (rows.decoding > 0)
    seen_s = float(paced.sum())
    tokens = float((paced * steps / np.maximum(evidence.row_s, 1e-12)).sum())
    if not tokens:
        return None
    step_s, running = seen_s / tokens, float(np.dot(paced, rows.running)) / seen_s
    prompts = max(1 - evidence.plain_step_for_late_s() / step_s, 0.0)
    base_s = float(evidence.prices.base_s.mean())
    limit_s = late.pace_limit_s
    beyond = f" (the limit is {seconds(limit_s)})" if np.isfinite(limit_s) else ""
    words = (
        f"late requests got a token every {seconds(step_s)} on average{beyond}, with {count(running)} requests running "
        f"and {percent(prompts)} of the time taken by prompts; a step with a single one takes {seconds(base_s)}"
    )
    numbers = {"mean_gap_s": step_s, "step_of_one_s": base_s, "running": running, "time_taken_by_prompts": prompts}
    remedies = []
    if prompts >= 0.5 and evidence.traits.pauses_decodes:
        why = "compute prompts beside the answers, and not before them"
        remedies.append(Remedy(with_chunks(evidence.scenario), why))
    if np.isfinite(limit_s) and base_s < limit_s and running >= 2 and prompts < 0.5:
        remedies.append(Remedy({"engine.max_num_seqs": max(int(running / 2), 1)}, "smaller batches have faster steps"))
    remedies += more_replicas(evidence)
    return Claim(words, numbers, remedies, slowed_s=late.last_s - late.first_s)


SLOW_DECODE = Rule(
    "slow-decode",
    "decode steps beyond the SLO",
    "Steps are too slow for the SLO: the batch is too large, or the GPU is not fast enough.",
    "The seconds after the first token of late requests that no rule before it explains.",
    "fewer slots, more replicas, a faster GPU, or more GPUs in a replica",
    _find_slow_decode,
)


# Low occupancy: too little comes for the hardware.

LITTLE = 0.05
"""Below this load over capacity the hardware lies idle: a peak of five times the mean would use a quarter of it."""


def load_over_capacity(evidence: Evidence) -> tuple[float, float]:
    """Return the GPU time that the requests would take in full batches, over what there was; and the largest batch.

    A prompt token costs what it adds to a full step. An answer's token costs a step of the largest batch of the mean
    context that fits and keeps the SLO's pace, divided by the batch.
    """
    requests = evidence.records.requests
    served, replica = ~np.isnan(requests.first_token_s), requests.replica
    if not served.any() or evidence.replica_seconds <= 0:
        return 1.0, 1.0
    needed, largest, first = 0.0, 0.0, 0
    for built in evidence.fleet:
        end = first + built.group.replicas
        mine = served & (replica >= first) & (replica < end)
        if mine.any():
            context = float((requests.input_tokens[mine] + requests.output_tokens[mine] / 2).mean())
            fits = int(evidence.prices.blocks[first] * built.parts.kv.block_size / context)
            batch = max(min(int(evidence.prices.slots[first]), fits), 1)
            while (step_s := _step_s(built.parts.cost, batch, context)) > evidence.late.pace_limit_s and batch > 1:
                batch //= 2
            answers = float(requests.output_tokens[mine].sum()) * step_s / batch
            prompt = requests.input_tokens[mine] - np.minimum(requests.cached_tokens[mine], requests.input_tokens[mine])
            needed += answers + float(prompt.sum()) * float(evidence.prices.token_s[first])
            largest = max(largest, batch)
        first = end
    return needed / evidence.replica_seconds, largest


def _step_s(cost: CostModel, batch: int, context: float) -> float:
    """Return the seconds of a step in which so many answers go on, each behind so many tokens."""
    squares = int(batch * context * context)
    return cost.step_s(StepShape(batch, int(batch * context), decode_longest=int(context), decode_squares=squares))


def _find_load_bound(evidence: Evidence, left_s: Floats) -> Claim | None:
    if evidence.late.broken:
        return None
    load, batch = load_over_capacity(evidence)
    if load >= LITTLE:
        return None
    rows = evidence.records.rows
    running = float(np.dot(rows.running, evidence.row_s)) / evidence.replica_seconds
    words = (
        f"{count(running)} requests run on average where {count(batch)} would fit, and the "
        f"load is {percent(load)} of the capacity: the hardware would take some {count(1 / max(load, 1e-4))} times it"
    )
    numbers = {"load_over_capacity": load, "mean_running": running, "batch_that_fits": batch}
    return Claim(words, numbers, _remedies_of_load_bound(evidence, load), lost=1 - load)


def _remedies_of_load_bound(evidence: Evidence, load: float) -> list[Remedy]:
    """Propose fewer replicas, for twice the load as bursts need; else fewer GPUs to a replica, else a cheaper GPU."""
    scenario = evidence.scenario
    if scenario.fleet is None and scenario.replicas > 1:
        fewer = max(1, int(np.ceil(scenario.replicas * load / 0.5)))
        return [Remedy({"replicas": fewer}, "replicas for twice the load")]
    if (ranks := scenario.hardware.tensor_parallel) > 1:
        return [Remedy({"hardware.tensor_parallel": ranks // 2}, "half of the GPUs")]
    cheaper = _cheaper(evidence)
    return [] if cheaper is None else [Remedy({"hardware.gpu": cheaper}, "a cheaper GPU that holds the model")]


def _cheaper(evidence: Evidence) -> str | None:
    """Return the cheapest GPU that costs less and holds the weights with half as much again for KV."""
    scenario = evidence.scenario
    own = scenario.resolve_gpu()
    if (
        scenario.resolve_cost().kind != "roofline"
        or own.usd_per_hour is None
        or scenario.hardware.num_gpu_blocks is not None
    ):
        return None
    weights_gib = scenario.resolve_model().weight_bytes(scenario.hardware.tensor_parallel) / 2**30
    able = [
        (gpu.usd_per_hour, name)
        for name, gpu in GPUS.items()
        if gpu.usd_per_hour is not None and gpu.usd_per_hour < own.usd_per_hour
        and gpu.memory_gib * scenario.hardware.gpu_memory_utilization >= 1.5 * weights_gib + 2
    ]  # fmt: skip
    return min(able)[1] if able else None


LOAD_BOUND = Rule(
    "load-bound",
    "low occupancy: load-bound",
    "There is too little traffic: the GPUs are idle, or read their weights for a few tokens.",
    f"The SLO is kept, and the requests would take below {percent(LITTLE)} of the GPU time in full batches.",
    "fewer replicas, fewer GPUs in a replica, a cheaper GPU; more traffic on the same GPUs",
    _find_load_bound,
)
