"""Replicas that share experts step together: what a wave keeps of a replica's own ways, and what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import scenarios
from simulator.cost import CostModel, StepShape
from simulator.errors import InputError
from simulator.kv import KVCache
from simulator.linear import Linear
from simulator.policies import load_policy
from simulator.prefix_cache import PrefixCache
from simulator.profile.wave import LINKS, Exchange, ProfileWave, link_of
from simulator.records import Records
from simulator.simulate import simulate
from simulator.workload import Workload

COST = Linear(0.01, 1e-4, 1e-7)


class Slowest:
    """A wave that lasts as long as the longest of its steps, and a little for every rank without work."""

    def __init__(self, cost: CostModel, dummy_s: float = 0.0) -> None:
        self.cost, self.dummy_s = cost, dummy_s
        self.seen: list[list[StepShape]] = []

    def wave_s(self, shapes: Sequence[StepShape]) -> float:
        self.seen.append(list(shapes))
        return max(self.cost.step_s(shape) if shape.tokens else self.dummy_s for shape in shapes)


def workload(arrival_s: Sequence[float], inputs: Sequence[int], outputs: Sequence[int]) -> Workload:
    count = len(arrival_s)
    zeros = np.zeros(count, dtype=np.int64)
    return Workload(
        np.array(arrival_s, dtype=np.float64),
        np.array(inputs),
        np.array(outputs),
        np.full(count, max(outputs)),
        zeros,
        zeros,
    )


def random_workload(seed: int, count: int = 80) -> Workload:
    draw = np.random.default_rng(seed)
    return workload(
        np.cumsum(draw.exponential(0.03, count)).tolist(),
        draw.integers(1, 300, count).tolist(),
        draw.integers(1, 60, count).tolist(),
    )


def run(given: Workload, *, replicas: int = 1, wave: Any = None, asynchronous: bool = False, **more: Any) -> Records:
    parameters = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "async_scheduling": asynchronous}
    return simulate(
        given,
        make_policy=lambda: load_policy("vllm", parameters, None),
        kv=KVCache(more.pop("blocks", 120), 16, 0, 1),
        cost=COST,
        make_blocks=partial(PrefixCache, block_size=16),
        replicas=replicas,
        wave=wave,
        **more,
    ).records


def equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name), equal_nan=True) for f in fields(type(one)))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_wave_of_one_rank_is_a_replica(seed: int, asynchronous: bool) -> None:
    given = random_workload(seed)
    alone = run(given, asynchronous=asynchronous, blocks=50)
    waved = run(given, wave=Slowest(COST), asynchronous=asynchronous, blocks=50)
    assert equal(alone.requests, waved.requests)
    assert equal(alone.rows, waved.rows)
    assert np.array_equal(alone.step_end_s, waved.step_end_s)
    assert alone.requests.preemptions.sum() > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_step_at_the_same_times(asynchronous: bool) -> None:
    cost = Slowest(COST, 0.005)
    records = run(random_workload(1), replicas=2, wave=cost, asynchronous=asynchronous)
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
    requests = run(workload([0.0, 0.5], [10, 10], [3, 1]), replicas=2, wave=cost).requests
    assert requests.replica.tolist() == [0, 1]
    assert requests.scheduled_s.tolist() == [0.0, 1.0]
    assert requests.last_token_s.tolist() == [3.0, 2.0]
    assert [[shape.tokens for shape in shapes] for shapes in cost.seen] == [[10, 0], [1, 10], [1, 0]]


def test_a_wave_is_at_rest_between_requests() -> None:
    requests = run(workload([0.0, 5.0, 5.0], [10, 10, 9], [1, 1, 1]), replicas=2, wave=Slowest(COST)).requests
    assert requests.scheduled_s.tolist() == [0.0, 5.0, 5.0]


def test_it_is_the_same_without_fast_forward_and_when_run_again() -> None:
    found = [
        run(random_workload(2), replicas=3, wave=Slowest(COST), fast_forward=forward) for forward in (True, False, True)
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
        wave=Slowest(COST, 0.005),
        log_decisions=True,
    )
    assert done.decisions is not None
    finished = [name for step in done.decisions for name in step["finished"]]
    assert sorted(finished, key=int) == [str(row) for row in range(20)]
    starts = [step["t_start_s"] for step in done.decisions]
    assert starts == sorted(starts)


# ------------------------------------------------------------------------------------------------------- the profile's


def shipped_wave(**options: Any) -> ProfileWave:
    scenario = scenarios.load(MIXTURE)
    from scenarios.build import build

    wave = build(scenario).wave
    assert isinstance(wave, ProfileWave)
    return replace(wave, cost=replace(wave.cost, options=replace(wave.cost.options, **options))) if options else wave


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
    wave = shipped_wave()
    both = wave.wave_s([DECODES, PROMPT])
    assert both == wave.wave_s([PROMPT, DECODES])
    assert both > wave.wave_s([DECODES, DECODES])
    assert wave.wave_s([PROMPT, PROMPT]) > both > wave.wave_s([DECODES, NOTHING])


def test_experts_are_shared_and_tokens_exchanged() -> None:
    wave = shipped_wave()
    alone = wave.cost.step_s(DECODES)
    free = replace(wave, exchange=Exchange(0, replace(wave.exchange.link, latency_us=0.0)))
    assert free.wave_s([DECODES, DECODES]) < 0.75 * alone  # nearly all of a decode step are the experts' weights
    assert wave.wave_s([DECODES, DECODES]) > free.wave_s([DECODES, DECODES])
    us = wave.exchange.us(256, 128)
    link = LINKS["rtx-pro-6000"]
    assert us == pytest.approx(link.latency_us + 128 * 4096 / link.gb_s / 1e3)


def test_graphs_pad_every_rank_to_the_largest() -> None:
    graphs, eager = shipped_wave(), shipped_wave(cuda_graphs=False)
    small = StepShape(1, 500)
    assert graphs.wave_s([DECODES, small]) == pytest.approx(graphs.wave_s([DECODES, StepShape(2, 1000)]), rel=1e-3)
    assert eager.wave_s([DECODES, small]) < graphs.wave_s([DECODES, small])


def test_a_link_that_nobody_measured_is_derived() -> None:
    from simulator.gpus import GPUS

    assert link_of(GPUS["h200"]).gb_s == pytest.approx(0.6 * GPUS["h200"].link_gb_s)


def test_a_scenario_runs_in_waves_and_has_more_room_for_kv() -> None:
    shared, apart = scenarios.load(MIXTURE), scenarios.load(MIXTURE, ["hardware.enable_expert_parallel=false"])
    assert scenarios.run(shared).summary["completed"] == 20
    from scenarios.build import build

    assert build(shared).kv.num_gpu_blocks > 1.5 * build(apart).kv.num_gpu_blocks
    assert build(apart).wave is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("replicas=1", "one replica has nobody to share experts with"),
        ("replicas=3", "128 experts cannot be shared evenly by 3 replicas"),
        ("model=llama-3.1-8b", "the model llama-3.1-8b has no experts to share"),
        ("cost={kind: roofline}", "need a profile"),
    ],
)
def test_what_cannot_share_experts_says_so(override: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        scenarios.run(scenarios.load(MIXTURE, [override]))
    assert "hardware.enable_expert_parallel" in str(caught.value)
