"""Laws of pipelines: a stage never runs two batches, tokens and blocks are conserved, skipped events change nothing."""

import random
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simulator.fleet.group import ReplicaGroup
from simulator.memory.blocks import BlockLedger
from simulator.memory.ledger import PrefixLedger
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.request import PromptContent
from simulator.results.records import Status
from simulator.simulate import Run, simulate_fleet
from simulator.timing.formula_cost import Linear
from simulator.timing.pipeline_cost import PipelineCost
from tests.columns import workload_of
from tests.laws.test_speculative import SIZE, Memory

HOP_S = 0.0005


def serve(seed: int, *, fast_forward: bool = True, stages: int = 0, idle_s: float = 0.001, sync: bool = False) -> Run:
    """A random run on stages of unequal length; so many, 0 for a random number, or with -1 on no pipeline."""
    rng = random.Random(seed)
    count = rng.randint(3, 16)
    inputs, outputs = ([rng.randint(1, 40) for _ in range(count)] for _ in range(2))
    asynchronous = rng.random() < 0.5 and not sync
    policy = ChunkedPrefill(
        max_num_seqs=rng.randint(1, 8), max_num_batched_tokens=rng.choice([8, 16, 64]),
        order=rng.choice(["fcfs", "priority"]), async_scheduling=asynchronous,
        long_prefill_token_threshold=rng.choice([0, 0, 5]),
    )  # fmt: skip
    caches = rng.random() < 0.5
    workload = workload_of(
        sorted(round(rng.random() * rng.choice([0.0, 0.5]), 3) for _ in range(count)), inputs, outputs,
        [n + rng.choice([0, 3]) for n in outputs], [rng.randint(0, 1) for _ in range(count)],
        content=[PromptContent(prefix_group="a", prefix_tokens=n // 2) for n in inputs] if caches else None,
    )  # fmt: skip
    depth, blocks = rng.randint(2, 5), rng.choice([14, 20, 60])
    whole = stages if stages > 0 else depth
    of_stages = tuple(Linear(0.002 * (rng.choice([1, 1, 3]) if whole > 1 else 1), 1e-4, 1e-6) for _ in range(whole))
    pipe = None if stages < 0 else PipelineCost(of_stages, HOP_S, 1e-6, idle_s)
    make = partial(PrefixLedger, block_size=SIZE) if caches else BlockLedger
    group = ReplicaGroup(lambda: policy, Memory(blocks), Linear(0.002, 1e-4, 1e-6), make_blocks=make, pipeline=pipe)
    return simulate_fleet(workload, [group], fast_forward=fast_forward, log_decisions=True)


def decisions(run: Run) -> list[dict[str, Any]]:
    assert run.decisions is not None
    return run.decisions


@pytest.mark.parametrize("seed", range(12))
def test_a_stage_runs_one_batch_at_a_time_and_waits_for_the_stage_before(seed: int) -> None:
    steps = [step for step in decisions(serve(seed)) if step["scheduled"]]
    assert steps
    ran = [step["stages_s"] for step in steps]
    for number in range(len(ran[0])):
        for before, after in pairwise(ran):
            assert before[number][1] <= after[number][0]
    for step in steps:
        assert step["t_schedule_s"] <= step["stages_s"][0][0]
        hop_s = HOP_S + 1e-6 * sum(step["scheduled"].values())
        for (_, end_s), (start_s, _) in pairwise(step["stages_s"]):
            assert start_s >= end_s + hop_s
        assert step["t_end_s"] == step["stages_s"][-1][1]


@pytest.mark.parametrize("seed", range(12))
def test_no_more_batches_are_in_flight_than_there_are_stages_and_one(seed: int) -> None:
    steps = [step for step in decisions(serve(seed)) if step["scheduled"]]
    most = len(steps[0]["stages_s"]) + 1
    for step in steps:
        flying = [other for other in steps if other["t_schedule_s"] <= step["t_schedule_s"] < other["t_end_s"]]
        assert len(flying) <= most


@pytest.mark.parametrize("seed", range(12))
def test_tokens_and_blocks_are_conserved(seed: int) -> None:
    run = serve(seed)
    requests = run.records.requests
    done = requests.status == Status.FINISHED
    assert (done | (requests.status == Status.REJECTED)).all()
    computed = sum(sum(step["scheduled"].values()) for step in decisions(run))
    needed = (requests.input_tokens + requests.output_tokens - 1)[done].sum()
    thrown = requests.recomputed_tokens[done].sum()
    extra = (requests.max_tokens > requests.output_tokens)[done].sum()  # tokens too many while an end is in flight
    least = needed + thrown - requests.cached_tokens[done].sum() - requests.preemptions.sum() * 40
    assert least <= computed <= needed + thrown + extra + requests.preemptions.sum()
    assert decisions(run)[-1]["num_free_blocks_end"] == run.records.num_blocks
    assert (run.records.step_used_blocks <= run.records.num_blocks).all()


@pytest.mark.parametrize("seed", range(16))
def test_skipped_events_change_nothing(seed: int) -> None:
    fast, slow = serve(seed), serve(seed, fast_forward=False)
    assert fast.decisions == slow.decisions
    for name in ("first_token_s", "last_token_s", "released_s"):
        ours, theirs = (getattr(run.records.requests, name) for run in (fast, slow))
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(fast.records.step_end_s, slow.records.step_end_s)


@pytest.mark.parametrize("seed", range(16))
def test_steps_in_the_records_follow_one_another(seed: int) -> None:
    rows = serve(seed).records.rows
    assert (rows.start_s[1:] >= rows.end_s[:-1]).all()


@pytest.mark.parametrize("seed", range(12))
def test_a_token_is_computed_after_the_one_before_it(seed: int) -> None:
    last: dict[str, float] = {}
    for step in decisions(serve(seed)):
        for name in step["scheduled"]:
            if name in step["admitted"]:
                last.pop(name, None)  # computed again, from its beginning
            assert step["t_start_s"] >= last.get(name, 0.0)
        last |= dict.fromkeys(step["emitted"], step["t_end_s"])


SAID = (
    "scheduled",
    "admitted",
    "preempted",
    "finished",
    "waiting",
    "running",
    "num_free_blocks",
    "num_free_blocks_end",
)


@pytest.mark.parametrize("seed", range(12))
def test_a_pipeline_of_one_stage_is_a_plain_replica(seed: int) -> None:
    """Synchronous ones: with asynchronous scheduling a plain replica's log tells of results one step earlier."""
    one, plain = (
        [
            [step[key] for key in SAID]
            for step in decisions(serve(seed, stages=stages, idle_s=0.0, sync=True))
            if step["scheduled"]
        ]
        for stages in (1, -1)
    )
    assert one == plain
