"""The bottleneck: the causes of waiting of the requests that bind a goal, as shares of their time in a run.

The worst requests of the goal are followed through the run. In the queue, the cause is the full batch (`queueing`), the
full KV cache (`memory`), or the resource of the steps that they wait for. In service, it is the resource of their
steps: `compute`, `bandwidth`, `link` or `host`, by the terms of the roofline of model and GPU (of a linear cost: tokens
compute, context is bandwidth, the rest is the host), summed over the stages of a pipeline, whose transfers are `link`
as far as a step lasts longer than its slowest stage. Time in the queue in which KV is loaded for them is `link` too,
whatever the steps do meanwhile. Time between steps, as before a batch that is not yet due, is
`queueing` too; time in which a preempted request waits is `memory`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scenarios.assembly.engines import groups_of
from scenarios.assembly.replica_parts import build
from scenarios.diagnosis.evidence import load_waits
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal
from scenarios.schema.cost import LinearCostConfig
from scenarios.schema.scenario import Scenario
from simulator.hardware.stages import stages_of
from simulator.metrics.latency import finished, request_latencies
from simulator.metrics.metric import percent
from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records, RowColumns
from simulator.timing.formula_cost import Roofline

CAUSES = ("memory", "compute", "bandwidth", "host", "queueing", "link")
_RESOURCES = ("compute", "bandwidth", "host", "link")
_FREE = 0.1  # of the KV blocks: with less left, or too little for a prompt, what waits does so for memory
_WORST = 0.02  # share of the requests that are followed, where no percentile says it
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the worst requests' time by cause, adding up to 1; empty where nothing was measured."""

    of: Mapping[str, float]

    @property
    def bottleneck(self) -> str | None:
        """The cause with the largest share."""
        return max(self.of, key=lambda cause: self.of[cause]) if self.of else None

    @property
    def text(self) -> str:
        """The shares above a twentieth, largest first: `bandwidth 61 %, compute 30 %`."""
        order = sorted(self.of.items(), key=lambda entry: -entry[1])
        return ", ".join(f"{cause} {percent(share, 0)}" for cause, share in order if share >= 0.05)


def shares(records: Records, candidate: Candidate, goal: Goal) -> Shares:
    """Return the shares for a goal in a run."""
    worst = _worst(records, goal)
    if not len(worst):
        return Shares({})
    requests = records.requests
    in_queue, in_service = _phases(goal)
    total = dict.fromkeys(CAUSES, 0.0)
    scenarios = [group.scenario for group in groups_of(candidate.scenario) for _ in range(group.replicas)]
    sizes = [group for group in records.sizes for _ in range(group.replicas)]
    for replica in np.unique(requests.replica[worst]).tolist():
        if replica < 0:
            continue
        rows = records.rows.of_replicas(replica, replica + 1)
        scenario = scenarios[min(replica, len(scenarios) - 1)]
        size = sizes[min(replica, len(sizes) - 1)]
        own = worst[requests.replica[worst] == replica]
        left = size.num_blocks - records.step_used_blocks[rows.first_step]
        prompt = _blocks_of_prompt(float(np.mean(requests.input_tokens[own])), scenario, size.block_size)
        is_short = left < max(_FREE * size.num_blocks, prompt)
        resources = _resources(rows, scenario)
        if in_queue:
            windows = requests.arrival_s[own], requests.scheduled_s[own]
            _add(total, rows, _waiting(rows, is_short, size.max_num_seqs, resources), *windows)
        for begin, end in in_service:
            _add(total, rows, resources, getattr(requests, begin)[own], getattr(requests, end)[own])
    back_s = float(requests.requeued_s[worst].sum()) if _NEXT in in_service else 0.0
    whole = sum(total.values())
    if whole <= 0:
        return Shares({})
    memory = min(back_s / whole, 1.0)  # of the time in service, that in which preempted requests waited
    link = _loading_s(records, worst) / whole if in_queue else 0.0
    link = min(link, 1.0 - memory)
    found = {cause: value / whole * (1 - memory - link) for cause, value in total.items()}
    found["memory"] += memory
    found["link"] += link
    return Shares(found)


def _loading_s(records: Records, rows: Ints) -> float:
    """Return the seconds that these requests waited in the queue for KV from the host or a further tier."""
    requests = records.requests
    waits = load_waits(records, rows, requests.arrival_s[rows], requests.scheduled_s[rows])
    return float(waits.max(axis=0).sum())


_FIRST, _NEXT = ("scheduled_s", "first_token_s"), ("first_token_s", "last_token_s")


def _phases(goal: Goal) -> tuple[bool, tuple[tuple[str, str], ...]]:
    """Return whether the goal's time begins in the queue, and the parts of the service that are in it."""
    return {
        "ttft": (True, (_FIRST,)),
        "queue_time": (True, ()),
        "tpot": (False, (_NEXT,)),
        "itl": (False, (_NEXT,)),
    }.get(goal.latency or "", (True, (_FIRST, _NEXT)))


def _worst(records: Records, goal: Goal) -> Ints:
    """Return the rows of the worst requests."""
    latency = "tpot" if goal.latency == "itl" else goal.latency or "e2el"
    values = getattr(request_latencies(records), f"{latency}_ms").copy()
    if goal.class_name is not None:
        values[records.requests.class_index != records.class_names.index(goal.class_name)] = np.nan
    values[~finished(records)] = np.nan
    known = np.flatnonzero(~np.isnan(values))
    share = _WORST if goal.quantile is None else 2 * (1 - goal.quantile)
    most = min(max(round(len(known) * share), _FEWEST), len(known))
    return known[np.argsort(-values[known], kind="stable")[:most]]


def _blocks_of_prompt(tokens: float, scenario: Scenario, block_size: int) -> float:
    """Return the KV blocks that a prompt of so many tokens takes, in all groups of the cache."""
    plan = build(scenario).kv_plan if scenario.resolve_model().has_kv_groups else None
    return tokens / block_size if plan is None else float(plan.blocks_at(round(tokens)))


def _resources(rows: RowColumns, scenario: Scenario) -> dict[str, Floats]:
    """Return shares of each row's time by resource."""
    seqs, prompts = rows.decoding + rows.held, rows.prefilling
    context = rows.context_tokens + seqs * (rows.repeat - 1) / 2
    pairs = rows.prefill_tokens * (rows.prefill_tokens / np.maximum(prompts, 1)) / 2
    if isinstance(scenario.cost, LinearCostConfig):
        cost = scenario.cost
        parts = {
            "compute": cost.per_token_s * rows.tokens,
            "bandwidth": cost.per_context_token_s * context,
            "host": np.full(len(seqs), cost.base_s),
            "link": np.zeros(len(seqs)),
        }
    else:
        tokens = rows.tokens.astype(np.float64)
        held = np.maximum(context - rows.prefill_tokens, 0.0)
        counts = tokens, (seqs + prompts).astype(np.float64), held, rows.prefill_tokens.astype(np.float64), pairs
        parts = _by_roofline(scenario, rows, counts)
    whole = np.maximum(sum(parts.values()), 1e-30)
    return {name: parts[name] / whole for name in _RESOURCES}


def _by_roofline(scenario: Scenario, rows: RowColumns, counts: tuple[Floats, ...]) -> dict[str, Floats]:
    """Return the seconds of each row by resource, of all stages of the model."""
    gpu, hardware, model = scenario.resolve_gpu(), scenario.hardware, scenario.resolve_model()
    pipeline = build(scenario).pipeline if hardware.pipeline_parallel > 1 else None
    if pipeline is None:
        return Roofline(model, gpu, hardware.tensor_parallel).by_resource_s(*counts)
    of_stages = [
        Roofline(stage.model, gpu, hardware.tensor_parallel).by_resource_s(*counts)
        for stage in stages_of(model, hardware.pipeline_parallel, hardware.pp_layer_partition)
    ]
    slowest = np.max([np.sum(list(stage.values()), axis=0) for stage in of_stages], axis=0)
    parts = {name: np.sum([stage[name] for stage in of_stages], axis=0) for name in _RESOURCES}
    between = (len(of_stages) - 1) * (pipeline.hop_s + pipeline.hop_s_per_token * counts[0])
    parts["link"] += np.clip(rows.end_s - rows.start_s - slowest, 0.0, between)
    return parts


def _waiting(rows: RowColumns, is_short: Bools, slots: int, resources: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return shares of each row's time by cause, for a request in the queue."""
    waits = rows.waiting > 0
    is_full = waits & (rows.running >= slots)
    no_memory = waits & ~is_full & is_short
    barred = waits & ~is_full & ~no_memory & (rows.prefill_tokens == 0)  # the policy admits nobody now
    free = ~(is_full | no_memory | barred)
    found = {name: np.where(free, share, 0.0) for name, share in resources.items()}
    return found | {"queueing": (is_full | barred) * 1.0, "memory": no_memory * 1.0}


def _add(
    total: dict[str, float], rows: RowColumns, shares_of: Mapping[str, Floats], starts: Floats, ends: Floats
) -> None:
    """Add the time between these starts and ends to the causes; time in no row is `queueing`."""
    known = ~(np.isnan(starts) | np.isnan(ends))
    starts, ends = starts[known], ends[known]
    if not len(rows.start_s) or not len(starts):
        return
    times = np.column_stack((rows.start_s, rows.end_s)).ravel()
    rest = float((ends - starts).sum())
    for cause, share in shares_of.items():
        sums = np.concatenate(([0.0], np.cumsum((rows.end_s - rows.start_s) * share)))
        at = np.column_stack((sums[:-1], sums[1:])).ravel()
        found = float((np.interp(ends, times, at) - np.interp(starts, times, at)).sum())
        total[cause] += found
        rest -= found
    total["queueing"] += max(rest, 0.0)
