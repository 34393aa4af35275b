"""Low occupancy: too little comes for the hardware."""

import numpy as np

from scenarios.diagnosis.evidence import Evidence
from scenarios.diagnosis.finding import Claim, Remedy, Rule
from scenarios.diagnosis.say import count
from simulator.hardware.gpus import GPUS
from simulator.percent import percent
from simulator.results.records import Floats
from simulator.timing.cost import CostModel, StepShape

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


def _find(evidence: Evidence, left_s: Floats) -> Claim | None:
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
    return Claim(words, numbers, _remedies(evidence, load), lost=1 - load)


def _remedies(evidence: Evidence, load: float) -> list[Remedy]:
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


RULE = Rule(
    "load-bound",
    "low occupancy: load-bound",
    "There is too little traffic: the GPUs are idle, or read their weights for a few tokens.",
    f"The SLO is kept, and the requests would take below {percent(LITTLE)} of the GPU time in full batches.",
    "fewer replicas, fewer GPUs in a replica, a cheaper GPU; more traffic on the same GPUs",
    _find,
)
