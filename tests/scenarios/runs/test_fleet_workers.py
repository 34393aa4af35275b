"""A fleet shared among worker processes: the same bytes as in one process."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scenarios
from scenarios.assembly.workloads import build_workload
from scenarios.runs.workers import Broken, LokyProcess, RayActor, Worker, WorkerPool, pool_maker
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.fleet.windows import Shard
from simulator.simulate import simulate_fleet
from tests.examples import examples
from tests.laws.fleets import Fleet, fleets
from tests.laws.test_fleets import same

FLEET: dict[str, Any] = {
    "name": "five",
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h200"},
    "workload": {"preset": "chat", "requests": 400, "rate": 60},
    "replicas": 5,
    "router": "round_robin",
}
STALE = {"kind": "least_loaded", "signal_interval_s": 0.2}


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("router", ["session_affinity", STALE])
def test_two_workers_write_the_bytes_of_one(router: Any, tmp_path: Path) -> None:
    fleet = FLEET | {"router": router, "front_end": {}}
    for workers in (1, 2):
        scenarios.run(fleet, workers=workers, log_decisions=True).save(tmp_path / str(workers))
    assert written(tmp_path / "1") == written(tmp_path / "2")
    stepwise = scenarios.run(fleet, fast_forward=False)
    plain = scenarios.run(FLEET | {"router": router})
    apart = scenarios.run(fleet)
    assert stepwise.summary == apart.summary
    assert (apart.requests["ttft_ms"] > plain.requests["ttft_ms"] + 4).all(), "what a front end takes of any prompt"


def random_fleet(seed: int) -> dict[str, Any]:
    """A fleet whose replicas nothing but the router couples."""
    draw = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[draw.integers(len(values))]

    def engine() -> dict[str, Any]:
        return {"policy": one("chunked_prefill", "continuous", "vllm", "sarathi"), "max_num_seqs": one(2, 16, 256)}

    looking = one("least_loaded", "least_kv", "power_of_two", "prefix_affinity", "weighted")
    router = one("random", "round_robin", "session_affinity", {"kind": looking, "signal_interval_s": one(0.03, 1.0)})
    groups = [
        {
            "name": name,
            "replicas": int(draw.integers(1, 4)),
            "engine": engine(),
            "hardware": {"gpu": one("h200", "h100")},
        }
        for name in "abc"[: draw.integers(1, 4)]
    ]
    workload = {"preset": one("chat", "code", "long-context"), "requests": int(draw.integers(50, 600)), "rate": 40}
    return {"name": "f", "seed": seed, "model": "llama-3.1-8b", "workload": workload, "router": router, "fleet": groups}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_two_workers_write_the_bytes_of_one_for_any_fleet(seed: int, tmp_path: Path) -> None:
    fleet = random_fleet(seed)
    if sum(group["replicas"] for group in fleet["fleet"]) == 1:
        fleet["fleet"][0]["replicas"] = 2
    for workers in (1, 2):
        scenarios.run(fleet, workers=workers, log_decisions=True).save(tmp_path / str(workers))
    assert written(tmp_path / "1") == written(tmp_path / "2")


class Near:
    """A worker of this process: what passes between it and the pool is pickled, as between processes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def close(self) -> None: ...

    def ask(self, method: str, *arguments: Any) -> Callable[[], Any]:
        given = pickle.loads(pickle.dumps(arguments))
        if method == "begin":
            self.shard = Shard(given[1], self.fleet.groups, given[2], log_decisions=given[3])
            return lambda: None
        answer = pickle.dumps(getattr(self.shard, method)(*given))
        return lambda: pickle.loads(answer)


def shared(fleet: Fleet, workers: int) -> None:
    """The run of one process against that of a pool."""
    nearby = [Near(fleet) for _ in range(workers)]
    pool = WorkerPool(nearby, load(FLEET), fleet.workload, log_decisions=True)
    apart = simulate_fleet(
        fleet.workload,
        fleet.groups,
        router=fleet.new_router(),
        signal_interval_s=fleet.signal_interval_s,
        log_decisions=True,
        workers=pool,
    )
    same(apart, fleet.run())


def sharable(fleet: Fleet) -> bool:
    looks = fleet.router not in ("round_robin", "random", "session_affinity")
    exact = fleet.options.get("knowledge") == "exact"
    coupled = exact or fleet.router in ("vllm_dp", "dynamo_kv")  # it asks the caches, or hears of every end
    return (
        sum(group.replicas for group in fleet.groups) > 1 and not coupled and (fleet.signal_interval_s > 0 or not looks)
    )


@given(fleet=fleets(max_requests=20).filter(sharable), workers=st.integers(1, 4))
@examples(60)
def test_a_pool_leaves_the_records_of_one_process(fleet: Fleet, workers: int) -> None:
    shared(fleet, workers)


@pytest.mark.slow
@given(fleet=fleets(max_requests=30).filter(sharable), workers=st.integers(1, 4))
@settings(max_examples=500)
def test_a_pool_leaves_the_records_of_one_process_very_often(fleet: Fleet, workers: int) -> None:
    shared(fleet, workers)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"router": "least_loaded"}, "looks at the loads at every arrival"),
        ({"replicas": 1}, "one replica"),
        ({"workload": {"preset": "chat", "requests": 50, "client": {"timeout_s": 60}}}, "clients wait for answers"),
        ({"router": {"kind": "prefix_affinity", "knowledge": "exact"}}, "prefix caches"),
    ],
)
def test_what_couples_replicas_is_said(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        scenarios.run(FLEET | change, workers=2)


def test_steps_of_their_own_stay_in_one_process() -> None:
    with pytest.raises(InputError, match="every step is an event"):
        scenarios.run(FLEET, workers=2, fast_forward=False)


BREAKS = """
from simulator.policies.chunked_prefill import ChunkedPrefill

class Breaks(ChunkedPrefill):
    def plan(self, view):
        for request in view.waiting:
            if request.row >= 30:
                raise KeyError(request.row)
        return super().plan(view)
"""


def test_the_first_to_break_is_told_by_its_line(tmp_path: Path) -> None:
    """All replicas break, one after the other: whatever the way of time, it is the first of them that is told."""
    file = tmp_path / "breaks.py"
    file.write_text(BREAKS)
    fleet = FLEET | {"engine": {"policy": f"{file}:Breaks"}}
    ways: list[dict[str, Any]] = [{"fast_forward": False}, {}, {"workers": 2}]
    for router in ("round_robin", STALE, "least_loaded"):
        told = set()
        for way in ways[: 2 if router == "least_loaded" else 3]:
            with pytest.raises(InputError) as caught:
                scenarios.run(fleet | {"router": router}, **way)
            told.add(str(caught.value))
        assert len(told) == 1
        assert f"{file}:8: KeyError: 3" in told.pop()


def test_a_worker_that_dies_is_told_in_words() -> None:
    scenario = load(FLEET)
    make_pool = pool_maker("local", 2)
    assert make_pool is not None
    with make_pool(scenario, build_workload(scenario), log_decisions=False) as pool:
        worker = pool._workers[0]
        assert isinstance(worker, LokyProcess)
        worker._pool.submit(os._exit, 1)
        with pytest.raises(InputError, match="a worker process died"):
            worker.ask("advance", [], [], 0.0)()


@pytest.mark.slow
def test_the_actors_of_a_ray_cluster_write_the_same_bytes(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray (pip install 'batchlab[ray]')")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    file = tmp_path / "breaks.py"
    file.write_text(BREAKS)
    broken = FLEET | {"engine": {"policy": f"{file}:Breaks"}}
    try:
        for router in ("session_affinity", STALE):
            fleet = FLEET | {"router": router, "front_end": {}}
            scenarios.run(fleet, log_decisions=True).save(tmp_path / "here", overwrite=True)
            there = scenarios.run(fleet, executor="ray", address=cluster.address, log_decisions=True)
            there.save(tmp_path / "there", overwrite=True)
            assert written(tmp_path / "here") == written(tmp_path / "there")
        with pytest.raises(InputError, match=f"{file}:8: KeyError: 3"):
            scenarios.run(broken, executor="ray", address=cluster.address)
        make_pool = pool_maker("ray", 2, cluster.address)
        assert make_pool is not None
        scenario = load(FLEET)
        with make_pool(scenario, build_workload(scenario), log_decisions=False) as pool:
            worker = pool._workers[0]
            assert isinstance(worker, RayActor)
            ray.kill(worker._actor)
            with pytest.raises(InputError, match="a worker process died"):
                worker.ask("advance", [], [], 0.0)()
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"executor": "rey"}, "unknown executor 'rey'"),
        ({"workers": 0}, "at least one worker"),
        ({"address": "auto"}, "only --executor ray has an address"),
    ],
)
def test_who_is_to_work_is_checked(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        scenarios.run(FLEET, **asked)


def test_a_broken_worker_stays_broken() -> None:
    worker = Worker()
    worker._broken = Broken(1.0, InputError("no"))
    assert worker.advance([], [], 2.0) is worker._broken
    assert worker.finish([], []) is worker._broken
