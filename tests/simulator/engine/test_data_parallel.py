"""Replicas that share experts step together: what a wave keeps of a replica's own ways, and what it changes."""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import scenarios
from simulator.errors import InputError
from simulator.hardware.kv import KVCache
from simulator.memory.prefix_cache import PrefixCache
from simulator.policies import load_policy
from simulator.results.records import Records
from simulator.simulate import simulate
from simulator.timing.cost import CostModel, StepShape
from simulator.timing.expert_parallel import LINKS, Exchange, ExpertParallelCost, RooflineRanks, link_of
from simulator.timing.formula_cost import Linear, Roofline
from simulator.workload import Workload
from tests.columns import workload_of

COST = Linear(0.01, 1e-4, 1e-7)


class Slowest:
    """A wave that lasts as long as the longest of its steps, and a little for every rank without work."""

    def __init__(self, cost: CostModel, dummy_s: float = 0.0) -> None:
        self.cost, self.dummy_s = cost, dummy_s
        self.seen: list[list[StepShape]] = []

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        self.seen.append(list(shapes))
        return max(self.cost.step_s(shape) if shape.tokens else self.dummy_s for shape in shapes)


def workload(arrival_s: Sequence[float], inputs: Sequence[int], outputs: Sequence[int]) -> Workload:
    return workload_of(arrival_s, inputs, outputs)


def random_workload(seed: int, count: int = 80) -> Workload:
    draw = np.random.default_rng(seed)
    return workload(
        np.cumsum(draw.exponential(0.03, count)).tolist(),
        draw.integers(1, 300, count).tolist(),
        draw.integers(1, 60, count).tolist(),
    )


def run(
    given: Workload, *, replicas: int = 1, group_cost: Any = None, asynchronous: bool = False, **more: Any
) -> Records:
    parameters = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "async_scheduling": asynchronous}
    parameters |= more.pop("parameters", {})
    return simulate(
        given,
        make_policy=lambda: load_policy("vllm", parameters, None),
        kv=KVCache(more.pop("blocks", 120), 16, 0, 1),
        cost=COST,
        make_blocks=partial(PrefixCache, block_size=16),
        replicas=replicas,
        group_cost=group_cost,
        **more,
    ).records


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name), equal_nan=True) for f in fields(type(one)))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_wave_of_one_rank_is_a_replica(seed: int, asynchronous: bool) -> None:
    given = random_workload(seed)
    alone = run(given, asynchronous=asynchronous, blocks=50)
    grouped = run(given, group_cost=Slowest(COST), asynchronous=asynchronous, blocks=50)
    assert equal(alone.requests, grouped.requests)
    assert equal(alone.rows, grouped.rows)
    assert np.array_equal(alone.step_end_s, grouped.step_end_s)
    assert alone.requests.preemptions.sum() > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_step_at_the_same_times(asynchronous: bool) -> None:
    cost = Slowest(COST, 0.005)
    records = run(random_workload(1), replicas=2, group_cost=cost, asynchronous=asynchronous)
    ends = [np.unique(records.step_end_s[_steps_of(records, rank)]) for rank in (0, 1)]
    both = (ends[0] >= ends[1].min()) & (ends[0] <= ends[1].max())
    assert np.isin(ends[0][both], ends[1]).mean() > 0.8  # the others are steps in which a rank had no work
    every = np.unique(records.step_end_s)
    assert np.isin(ends[0], every).all()
    assert len(cost.seen) == len(every)
    assert (np.diff(every) >= 0.005 - 1e-12).all()  # no two steps overlap in part
    assert int(np.isfinite(records.requests.last_token_s).sum()) == 80


def _steps_of(records: Records, rank: int) -> Any:
    rows = records.rows
    return np.concatenate(
        [
            np.arange(first, first + repeat)
            for first, repeat, of in zip(rows.first_step, rows.repeat, rows.replica, strict=True)
            if of == rank
        ]
    )


def test_who_comes_to_an_idle_rank_waits_for_the_step_of_the_other() -> None:
    cost = Slowest(Linear(1.0, 0.0, 0.0), 0.1)
    requests = run(workload([0.0, 0.5], [10, 10], [3, 1]), replicas=2, group_cost=cost).requests
    assert requests.replica.tolist() == [0, 1]
    assert requests.scheduled_s.tolist() == [0.0, 1.0]
    assert requests.last_token_s.tolist() == [3.0, 2.0]
    assert [[shape.tokens for shape in shapes] for shapes in cost.seen] == [[10, 0], [1, 10], [1, 0]]


def test_a_wave_is_at_rest_between_requests() -> None:
    requests = run(workload([0.0, 5.0, 5.0], [10, 10, 9], [1, 1, 1]), replicas=2, group_cost=Slowest(COST)).requests
    assert requests.scheduled_s.tolist() == [0.0, 5.0, 5.0]


def test_waves_go_on_with_dummy_batches_until_the_ranks_ask_each_other() -> None:
    cost = Slowest(Linear(1.0, 0.0, 0.0), 0.5)
    given = workload([0.0, 2.6, 4.0], [10, 10, 10], [2, 2, 1])
    waves = run(given, replicas=2, group_cost=cost, parameters={"dp_sync_interval": 3}).requests
    # Steps to 1.0 and 2.0, and a dummy to 2.5, after which they ask each other: a new wave begins at 2.6.
    assert waves.scheduled_s.tolist() == [0.0, 2.6, 4.6]
    assert waves.last_token_s.tolist() == [2.0, 4.6, 5.6]
    alone = run(given, replicas=2, group_cost=Slowest(cost.cost, 0.5)).requests
    assert alone.last_token_s.tolist() == [2.0, 4.6, 5.6]
    early = workload([0.0, 2.1], [10, 10], [2, 1])
    assert run(early, replicas=2, group_cost=cost).requests.scheduled_s.tolist() == [0.0, 2.1]
    waves = run(early, replicas=2, group_cost=cost, parameters={"dp_sync_interval": 3}).requests
    assert waves.scheduled_s.tolist() == [0.0, 2.5]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_in_waves_with_a_cadence_serve_all(asynchronous: bool) -> None:
    parameters = {"prefill_schedule_interval": 4, "dp_sync_interval": 16}
    found = run(
        random_workload(4), replicas=3, group_cost=Slowest(COST), asynchronous=asynchronous, parameters=parameters
    )
    assert int(np.isfinite(found.requests.last_token_s).sum()) == 80


def test_only_ranks_that_share_experts_have_waves() -> None:
    alone = scenarios.load(MIXTURE, ["hardware.enable_expert_parallel=false", "engine.dp_sync_interval=16"])
    with pytest.raises(InputError, match=r"engine\.dp_sync_interval: only replicas that share experts") as caught:
        scenarios.run(alone)
    assert caught.value.hint == "give hardware.enable_expert_parallel: true, or leave the key out"


def test_it_is_the_same_without_fast_forward_and_when_run_again() -> None:
    found = [
        run(random_workload(2), replicas=3, group_cost=Slowest(COST), fast_forward=forward)
        for forward in (True, False, True)
    ]
    assert equal(found[0].requests, found[1].requests)
    assert equal(found[0].requests, found[2].requests)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decisions_are_logged_for_every_step(asynchronous: bool) -> None:
    parameters = {"max_num_seqs": 4, "max_num_batched_tokens": 128, "async_scheduling": asynchronous}
    done = simulate(
        random_workload(3, 20),
        make_policy=lambda: load_policy("vllm", parameters, None),
        kv=KVCache(120, 16, 0, 1),
        cost=COST,
        replicas=2,
        group_cost=Slowest(COST, 0.005),
        log_decisions=True,
    )
    assert done.decisions is not None
    finished = [name for step in done.decisions for name in step["finished"]]
    assert sorted(finished, key=int) == [str(row) for row in range(20)]
    starts = [step["t_start_s"] for step in done.decisions]
    assert starts == sorted(starts)


# ------------------------------------------------------------------------------------------------------- the profile's


def shipped_group_cost(**options: Any) -> ExpertParallelCost:
    scenario = scenarios.load(MIXTURE)
    from scenarios.assembly.replica_parts import build

    group_cost = build(scenario).group_cost
    assert isinstance(group_cost, ExpertParallelCost)
    return (
        replace(group_cost, cost=replace(group_cost.cost, options=replace(group_cost.cost.options, **options)))
        if options
        else group_cost
    )


MIXTURE: dict[str, Any] = {
    "model": "qwen3-30b-a3b",
    "hardware": {"gpu": "rtx-pro-6000", "enable_expert_parallel": True},
    "cost": {"kind": "profile"},
    "replicas": 2,
    "workload": {"requests": 20, "classes": [
        {"name": "chat", "arrival": {"process": "poisson", "rate": 5}, "input": {"dist": "fixed", "value": 100},
         "output": {"dist": "fixed", "value": 20}}]},
    "engine": {"policy": "vllm"},
}  # fmt: skip
DECODES = StepShape(64, 64 * 500)
NOTHING = StepShape(0, 0)
PROMPT = StepShape(0, 0, 1, 1024, 1024, 1024 * 1025 // 2, 0, 0, 1024)


def test_a_wave_lasts_as_long_as_its_slowest_rank_and_no_order_matters() -> None:
    group_cost = shipped_group_cost()
    both = group_cost.group_step_s([DECODES, PROMPT])
    assert both == group_cost.group_step_s([PROMPT, DECODES])
    assert both > group_cost.group_step_s([DECODES, DECODES])
    assert group_cost.group_step_s([PROMPT, PROMPT]) > both > group_cost.group_step_s([DECODES, NOTHING])


def test_experts_are_shared_and_tokens_exchanged() -> None:
    group_cost = shipped_group_cost()
    alone = group_cost.cost.step_s(DECODES)
    free = replace(group_cost, exchange=Exchange(0, replace(group_cost.exchange.link, latency_us=0.0)))
    assert free.group_step_s([DECODES, DECODES]) < 0.75 * alone  # nearly all of a decode step are the experts' weights
    assert group_cost.group_step_s([DECODES, DECODES]) > free.group_step_s([DECODES, DECODES])
    us = group_cost.exchange.us(256, 128)
    link = LINKS["rtx-pro-6000"]
    assert us == pytest.approx(link.latency_us + 128 * 4096 / link.gb_s / 1e3)


def test_graphs_pad_every_rank_to_the_largest() -> None:
    graphs, eager = shipped_group_cost(), shipped_group_cost(cuda_graphs=False)
    small = StepShape(1, 500)
    assert graphs.group_step_s([DECODES, small]) == pytest.approx(
        graphs.group_step_s([DECODES, StepShape(2, 1000)]), rel=1e-3
    )
    assert eager.group_step_s([DECODES, small]) < graphs.group_step_s([DECODES, small])


def test_a_link_that_nobody_measured_is_derived() -> None:
    from simulator.hardware.gpus import GPUS

    assert link_of(GPUS["h200"]).gb_s == pytest.approx(0.6 * GPUS["h200"].link_gb_s)
    eight, sixteen = (link_of(GPUS["h200"], gpus) for gpus in (8, 16))
    assert eight == link_of(GPUS["h200"])
    assert 1 / sixteen.gb_s == pytest.approx(0.5 / eight.gb_s + 0.5 / 50)  # half of it over the network
    assert link_of(GPUS["gb200"], 72) == link_of(GPUS["gb200"])


def test_a_scenario_runs_in_waves_and_has_more_room_for_kv() -> None:
    shared, apart = scenarios.load(MIXTURE), scenarios.load(MIXTURE, ["hardware.enable_expert_parallel=false"])
    assert scenarios.run(shared).summary["completed"] == 20
    from scenarios.assembly.replica_parts import build

    assert build(shared).kv.num_gpu_blocks > 1.5 * build(apart).kv.num_gpu_blocks
    assert build(apart).group_cost is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("replicas=1", "one replica has no other to share experts with"),
        ("replicas=200", "200 replicas are more than the 128 experts that they would share"),
        ("model=llama-3.1-8b", "the model llama-3.1-8b has no experts to share"),
        ("cost={kind: linear, base_s: 1.0e-3, per_token_s: 0.0, per_context_token_s: 0.0}", "need a profile"),
    ],
)
def test_what_cannot_share_experts_says_so(override: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        scenarios.run(scenarios.load(MIXTURE, [override]))
    assert "hardware.enable_expert_parallel" in str(caught.value)


def test_three_ranks_share_128_experts() -> None:
    """The fullest holds 43 of them, as under vLLM."""
    from scenarios.assembly.replica_parts import build, held_model

    three, four = (scenarios.load(MIXTURE, [f"replicas={ranks}"]) for ranks in (3, 4))
    assert (held_model(three).experts, held_model(four).experts) == (43, 32)
    assert build(three).kv.num_gpu_blocks < build(four).kv.num_gpu_blocks
    assert scenarios.run(three).summary["completed"] == 20


def test_ranks_by_the_roofline_share_the_reading_of_experts() -> None:
    from scenarios.assembly.replica_parts import build

    step, idle = StepShape(64, 64 * 500), StepShape(0, 0)
    costs = {ranks: build(scenarios.load(MIXTURE, [f"replicas={ranks}", "cost={kind: roofline}"])) for ranks in (2, 4)}
    two, four = (costs[ranks].group_cost for ranks in (2, 4))
    assert isinstance(two, RooflineRanks)
    assert isinstance(four, RooflineRanks)
    assert two.group_step_s([step, idle]) < two.group_step_s([step, step])
    roofline = costs[2].cost
    assert isinstance(roofline, Roofline)
    alone_s, apart_s = roofline.experts_s(128), two.cost.step_s(step) - roofline.experts_s(64)
    exchange_s = 2e-6 * roofline.model.moe_layers * two.exchange.us(128, 64)
    assert two.group_step_s([step, step]) == pytest.approx(apart_s + alone_s / 2 + exchange_s)
    assert roofline.experts_s(256, 4) < alone_s / 2  # 256 tokens choose hardly more of the 128 experts than 128 do


def test_one_replica_of_several_gpus_holds_whole_experts_on_each() -> None:
    of = [
        "replicas=1",
        "hardware={gpu: h100, tensor_parallel: 2, enable_expert_parallel: true}",
        "cost={kind: profile}",
    ]
    shared, apart = scenarios.load(MIXTURE, of), scenarios.load(MIXTURE, [*of, "hardware.enable_expert_parallel=false"])
    from scenarios.assembly.replica_parts import build

    assert build(shared).group_cost is None
    step = StepShape(64, 64_000)
    one, two = (build(each).cost.step_s(step) for each in (shared, apart))
    assert one != two
    assert 0.5 < one / two < 2.0
