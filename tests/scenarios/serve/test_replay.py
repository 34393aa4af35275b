"""The law of the server: its recorded requests, simulated, make the same run to the last byte."""

import asyncio
import filecmp
import random
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

import scenarios
from scenarios.schema.loader import load
from simulator.results.records import Status
from tests.scenarios.serve.client import Client, served

SMALL = "hardware.num_gpu_blocks=150"
SETTINGS = [
    (SMALL,),
    (SMALL, "engine.policy=vllm", "engine.async_scheduling=true"),
    (SMALL, "engine.policy=continuous", "front_end={fixed_s: 0.02, per_running_s: 0.003}"),
    (SMALL, "front_end={fixed_s: 0.02, per_running_s: 0.003, per_prompt_token_s: 0.001}"),
    (SMALL, "engine.policy=vllm", "engine.enable_prefix_caching=true"),
    ("engine.policy=static", "engine.max_num_seqs=8"),
    ("engine.policy=static", "engine.max_num_seqs=8", "engine.stream=false"),
    ("engine.policy=orca", "engine.max_num_seqs=8", "engine.max_queued_requests=3"),
    (SMALL, "replicas=3", "router={kind: least_loaded, signal_interval_s: 0.05}"),
    (SMALL, "engine.max_num_seqs=2", "flow_control={queue_depth_threshold: 1, ttl_s: 1, max_requests: 6}"),
    (SMALL, "flow_control={detector: concurrency, concurrency_mode: tokens, max_token_concurrency: 300, ttl_s: 1}"),
    (SMALL, "replicas=2", "router=prefix_affinity", "engine.enable_prefix_caching=true"),
]


async def _traffic(client: Client, seed: int = 1, calls: int = 40) -> None:
    """Calls of many kinds, one after another in random gaps; some of their clients go away."""
    rng = random.Random(seed)

    async def one(place: int) -> None:
        body = {
            "prompt": [rng.choice(["tell me ", "what is ", "why "]) + "more " * rng.randrange(1, 300)]
            * rng.choice([1, 1, 1, 2]),
            "max_tokens": rng.randrange(1, 200),
            "ignore_eos": rng.random() < 0.5,
            "stream": rng.random() < 0.5,
            "n": rng.choice([1, 1, 1, 3]),
            "priority": rng.randrange(3),
        }
        leaves = rng.uniform(0.0, 1.0) if rng.random() < 0.25 else None
        await client.call("/v1/completions", body, leave_after_s=leaves, headers={"x-session-id": f"s{place % 5}"})

    tasks = []
    for place in range(calls):
        tasks.append(asyncio.create_task(one(place)))
        if rng.random() < 0.8:
            await asyncio.sleep(rng.expovariate(20))
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("settings", SETTINGS, ids=" ".join)
def test_recorded_arrivals_make_the_same_run(tmp_path: Path, settings: tuple[str, ...]) -> None:
    folder = tmp_path / "served"
    served(folder, _traffic, *settings)
    again = scenarios.run(load(folder / "scenario.yaml"), log_decisions=True)
    other = tmp_path / "run"
    other.mkdir()
    again.write(other)
    names = sorted(path.name for path in folder.iterdir() if path.name != "arrivals.jsonl.gz")
    assert {"decisions.jsonl.gz", "requests.csv.gz", "steps.csv.gz", "records.npz", "summary.json"} <= set(names)
    assert names == sorted(path.name for path in other.iterdir())
    assert filecmp.cmpfiles(folder, other, names, shallow=False) == (names, [], [])


def test_the_traffic_of_that_law_is_varied(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    _, serving, result = served(folder, _traffic, SMALL)
    assert result is not None
    assert result.summary["preemptions"] > 0
    assert Status.ABORTED in result.records.requests.status
    assert all(
        replica.state.blocks.num_free == replica.state.blocks.num_blocks for replica in serving.engine.live.replicas
    )
