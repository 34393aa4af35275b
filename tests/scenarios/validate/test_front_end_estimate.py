"""The front end: what it adds to a run, and what `validate` finds of it in a log."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.measured import MeasuredRun, read_measured
from scenarios.runs.result import Result
from scenarios.validate.compare import estimate, running_at_first, validate
from simulator.results.records import Floats
from tests.columns import as_floats
from tests.traffic import one_class

KNOWN = [(0.0058, 67e-6), (0.02, 0.0004), (0.001, 0.0002), (0.004, 0.0)]
SERVER: dict[str, Any] = {
    "name": "server",
    "seed": 3,
    "hardware": {"num_gpu_blocks": 20_000},
    "cost": {"kind": "linear", "base_s": 0.008, "per_token_s": 3e-5, "per_context_token_s": 1e-7},
    "workload": one_class(400, 14, (50, 400), (20, 300), name="chat"),
    "engine": {"policy": "vllm", "max_num_seqs": 128, "max_num_batched_tokens": 2048},
}


@cache
def served(*overrides: str) -> Result:
    return scenarios.run(scenarios.load(SERVER, overrides))


def behind(fixed_s: float, per_running_s: float, *overrides: str) -> Result:
    return served(*overrides, f"front_end={{fixed_s: {fixed_s}, per_running_s: {per_running_s}}}")


def log_of(result: Result, folder: Path, *, noise_s: float = 0.0, at_client: bool = True) -> MeasuredRun:
    """The run as a client's log, each latency moved by noise of this standard deviation."""
    table = result.requests.drop(columns=["scheduled_s"])
    moved = noise_s * np.random.default_rng(0).standard_normal(len(table))
    for name in ("first_token_s", "last_token_s"):
        table[name] = table[name] + moved
    table.to_csv(folder / "log.csv", index=False)
    return replace(read_measured(folder / "log.csv"), at_client=at_client)


@pytest.mark.parametrize(("fixed_s", "per_running_s"), KNOWN)
def test_both_parts_are_found_within_5_percent(fixed_s: float, per_running_s: float, tmp_path: Path) -> None:
    found = validate(log_of(behind(fixed_s, per_running_s), tmp_path), served().records)
    assert found.front_end is not None
    assert found.front_end.front_end.fixed_s == pytest.approx(fixed_s, rel=0.05)
    assert found.front_end.front_end.per_running_s == pytest.approx(per_running_s, rel=0.05, abs=1e-6)
    assert found.is_applied
    assert found.score < 1e-6


def test_noise_does_not_move_them_by_5_percent(tmp_path: Path) -> None:
    found = validate(log_of(behind(0.0058, 67e-6), tmp_path, noise_s=0.0005), served().records)
    assert found.front_end is not None
    assert found.front_end.front_end.fixed_s == pytest.approx(0.0058, rel=0.05)
    assert found.front_end.front_end.per_running_s == pytest.approx(67e-6, rel=0.05)
    assert found.front_end.spread_s == pytest.approx(0.0005 * 0.674, rel=0.2)


def test_it_is_applied_where_the_latencies_are_the_clients(tmp_path: Path) -> None:
    log = log_of(behind(0.02, 0.0004), tmp_path)
    assert validate(log, served().records).is_applied
    assert not validate(log, served().records, "off").is_applied
    inside = replace(log, at_client=False)
    found = validate(inside, served().records)
    assert not found.is_applied
    assert found.front_end is not None
    assert found.errors["ttft"]["p50"] < -0.3
    assert validate(inside, served().records, "log").errors["ttft"]["p50"] == pytest.approx(0.0, abs=1e-3)
    own = validate(log, behind(0.02, 0.0004).records)
    assert not own.is_applied, "the scenario has one of its own"
    assert own.score < 1e-9
    assert own.front_end is not None
    assert own.front_end.front_end.fixed_s == pytest.approx(0.02, rel=0.05), "it is the log's, whatever the run's"


def test_a_queue_says_nothing_of_it(tmp_path: Path) -> None:
    """On a server that is full from the first second on hardly any request goes in at once."""
    full = ("engine.max_num_seqs=4", "workload.requests=150")
    found = validate(log_of(behind(0.02, 0.0004, *full), tmp_path), served(*full).records)
    assert found.front_end is None or found.front_end.requests < 40


def test_without_a_range_of_concurrency_there_is_no_slope() -> None:
    rng = np.random.default_rng(1)
    running = as_floats(rng.integers(8, 11, 100))
    excess_s = as_floats(0.006 + 1e-4 * running + 1e-4 * rng.standard_normal(100))
    found = estimate(excess_s, running, as_floats(np.zeros(100)))
    assert found is not None
    assert not found.has_slope
    assert found.front_end.per_running_s == 0.0
    assert found.front_end.fixed_s == pytest.approx(0.0069, rel=0.02)
    assert "for each running request" not in found.words(applied=True)


def test_an_outlier_in_ten_moves_nothing_much() -> None:
    rng = np.random.default_rng(2)
    running = as_floats(rng.integers(1, 60, 300))
    excess_s: Floats = as_floats(0.0058 + 67e-6 * running + 2e-4 * rng.standard_normal(300))
    excess_s[::10] += 0.08
    found = estimate(excess_s, running, as_floats(np.zeros(300)))
    assert found is not None
    assert found.front_end.fixed_s == pytest.approx(0.0058, rel=0.05)
    assert found.front_end.per_running_s == pytest.approx(67e-6, rel=0.1)


@pytest.mark.parametrize("policy", ["vllm", "continuous", "static", "sglang", "preemptive"])
def test_those_that_ran_are_counted_alike_during_a_run_and_after_it(policy: str) -> None:
    """Records alone say how many ran at a first token: as many as the run itself counted, each behind 1 s."""
    engine = f"engine={{policy: {policy}, max_num_seqs: 16, max_num_batched_tokens: 1024}}"
    result = behind(0.0, 1.0, engine, "workload.requests=80")
    requests = result.records.requests
    assert not isinstance(result.records.front_end_s, float)
    assert running_at_first(result.records).tolist() == result.records.front_end_s.tolist()
    assert np.isfinite(requests.first_token_s).all()


def test_nothing_but_ttft_and_the_end_moves() -> None:
    bare, late = served(), behind(0.0058, 67e-6)
    delays_s = late.records.front_end_s
    assert not isinstance(delays_s, float)
    assert delays_s.min() >= 0.0058 + 67e-6
    assert delays_s.max() > 0.0058 + 20 * 67e-6
    for name in ("first_token_s", "last_token_s"):
        moved = getattr(late.records.requests, name) - getattr(bare.records.requests, name)
        assert moved == pytest.approx(delays_s)
    assert late.records.step_end_s.tolist() == bare.records.step_end_s.tolist()
    for name in ("p99_itl_ms", "mean_itl_ms", "mean_queue_time_ms", "num_steps"):
        assert late.summary[name] == bare.summary[name]
    assert late.summary["mean_tpot_ms"] == pytest.approx(bare.summary["mean_tpot_ms"])


def test_with_nothing_in_it_every_byte_is_as_without(tmp_path: Path) -> None:
    chosen = scenarios.load(SERVER, ["front_end={fixed_s: 0, per_running_s: 0}"])
    for fast in (True, False):
        nothing = scenarios.run(chosen, fast_forward=fast)
        assert nothing.requests.equals(served().requests)
        summary = {key: value for key, value in nothing.summary.items() if key != "provenance"}
        assert summary == {key: value for key, value in served().summary.items() if key != "provenance"}
