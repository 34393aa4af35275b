"""The experiment that tests a plan: its files say the same to the benchmarks and to us, and their result is read."""

import json
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.assembly.workloads import build_workload
from scenarios.measured import read_measured
from scenarios.plan.experiment import (
    Run,
    block_tokens,
    commands,
    edge_of_plan,
    edge_of_scenario,
    experiment,
    requests_of,
    vllm_command,
    write_experiment,
)
from scenarios.plan.goal import chosen_goals
from scenarios.runs.runner import run as simulate
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.request import PromptContent
from tests.command import batchlab
from tests.scenarios.plan.cases import CHAT, chat


def designed(within: float = 0.2, **changes: Any) -> tuple[Scenario, tuple[Run, Run]]:
    scenario = chat(**changes)
    return scenario, experiment(scenario, chosen_goals(["p99_ttft_ms<=300"], scenario), 12.0, 16.0, within=within)


def test_the_two_runs_lie_on_both_sides_of_the_edge() -> None:
    _, (low, high) = designed()
    assert (low.rate, high.rate) == (12.0, 16.0)
    assert low.stretch_rate >= low.rate * 0.95
    assert low.trial.excess < high.trial.excess
    assert low.seconds > float(low.workload.arrival_s[-1])
    assert low.gpu_minutes == pytest.approx(low.seconds / 60)
    scenario = chat()
    near = experiment(scenario, chosen_goals(["p99_ttft_ms<=300"], scenario), 12.0, 12.1)
    assert near[1].rate / near[0].rate == pytest.approx(1.1)


def test_more_certainty_takes_more_requests() -> None:
    goals = ["p50_ttft_ms<=300"]
    scenario = chat()
    loose, tight = (experiment(scenario, chosen_goals(goals, scenario), 12.0, 16.0, within=w)[0] for w in (5.0, 0.05))
    assert len(loose.workload) == 100, "the fewest"
    assert len(tight.workload) > 2 * len(loose.workload)
    assert tight.within < loose.within


def test_the_files_are_the_same_traffic_to_us(tmp_path: Path) -> None:
    scenario, runs = designed()
    write_experiment(tmp_path, scenario, runs, {})
    for run in runs:
        read = build_workload(load(tmp_path / f"{run.name}.yaml"))
        np.testing.assert_allclose(read.arrival_s, run.workload.arrival_s - run.workload.arrival_s[0], atol=1e-6)
        assert (read.input_tokens == run.workload.input_tokens).all()
        assert (read.output_tokens == np.minimum(run.workload.output_tokens, run.workload.max_tokens)).all()
        again = simulate(load(tmp_path / f"{run.name}.yaml")).summary["p99_ttft_ms"]
        assert again == pytest.approx(run.trial.value_of(run.trial.goals[0]), rel=0.01)


def test_prompts_share_what_the_traffic_shares() -> None:
    _, (low, _) = designed()
    group = [PromptContent(prefix_group="system", prefix_tokens=64)] * len(low.workload)
    rows = list(requests_of(replace(low.workload, content=group)))
    long = [row for row in rows if row["input_length"] >= 96]
    assert {tuple(row["hash_ids"][:4]) for row in long} == {tuple(long[0]["hash_ids"][:4])}
    assert len({row["hash_ids"][4] for row in long}) == len(long)
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // 16) for row in rows)
    alone = list(requests_of(low.workload))
    assert len({name for row in alone for name in row["hash_ids"]}) == sum(len(row["hash_ids"]) for row in alone)
    hashed = [
        PromptContent(block_hashes=tuple(range(-(-n // 64))), hash_block_size=64) for n in low.workload.input_tokens
    ]
    assert block_tokens(replace(low.workload, content=hashed)) == 64


def test_the_commands_name_the_files_and_the_lengths() -> None:
    scenario, runs = designed()
    words = shlex.split(vllm_command(scenario, runs[0]))
    flags = dict(pairwise(words))
    assert flags["--dataset-name"] == "timed_trace"
    assert flags["--dataset-path"] == "low.jsonl"
    assert flags["--num-prompts"] == str(len(runs[0].workload))
    assert flags["--timed-trace-chunk-hash-size"] == "512"
    assert {"--self-timed", "--ignore-eos", "--save-detailed"} <= {*words}
    script = commands(scenario, runs)
    assert "vllm serve meta-llama/Llama-3.1-8B-Instruct" in script
    assert script.count("batchlab validate") == 2


def test_validate_reads_the_result(tmp_path: Path) -> None:
    """A result as `vllm bench serve --save-detailed` writes it, of a server that is the simulation."""
    scenario, runs = designed()
    write_experiment(tmp_path, scenario, runs, {})
    records = simulate(load(tmp_path / "low.yaml")).records.requests
    first, last = records.first_token_s, records.last_token_s
    result = {
        "duration": float(last.max()),
        "completed": len(first),
        "input_lens": records.input_tokens.tolist(),
        "output_lens": records.output_tokens.tolist(),
        "ttfts": (first - records.arrival_s).tolist(),
        "itls": [
            [(b - a) / max(n - 1, 1)] * (n - 1)
            for a, b, n in zip(first, last, records.output_tokens.tolist(), strict=True)
        ],
        "start_times": (records.arrival_s + 100.0).tolist(),
        "errors": [""] * len(first),
    }
    (tmp_path / "low.result.json").write_text(json.dumps(result), encoding="utf-8")
    assert len(read_measured(tmp_path / "low.result.json").ttft_s) == len(first)
    flags = ("--json", "--no-report", "--front-end", "off", "--out", "match")
    done = batchlab("validate", "low.yaml", "--measured", "low.result.json", *flags, cwd=tmp_path)
    assert done.code == 0, done.err
    assert abs(json.loads(done.out)["errors"]["ttft"]["p99"]) < 0.01


def test_the_edge_of_a_plan_is_that_of_one_replica(tmp_path: Path) -> None:
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / "1.yaml").write_text(json.dumps({**CHAT, "replicas": 4}), encoding="utf-8")
    rate = {"value": 40.0, "low": 36.0, "high": 44.0}
    best: dict[str, Any] = {"rate": rate, "replicas": 4, "feasible": True}
    plan = {"candidates": [best], "slo": ["p99_ttft_ms<=300"]}
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    edge = edge_of_plan(tmp_path)
    assert (edge.low, edge.high, edge.replicas, edge.scenario.replicas) == (9.0, 11.0, 4, 1)
    best["rate"] = {**rate, "low": None}
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(InputError, match="nothing to test"):
        edge_of_plan(tmp_path)
    with pytest.raises(InputError, match="no folder of"):
        edge_of_plan(tmp_path / "candidates")


def test_the_command_designs_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(dict(CHAT)), encoding="utf-8")
    asked = ["bench-plan", "c.yaml", "--slo", "p99_ttft_ms<=300", "--within", "0.3", "--out", "out"]
    done = batchlab(*asked, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "GPU minutes" in done.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"low.jsonl", "high.jsonl", "low.yaml", "high.yaml", "commands.sh", "bench-plan.json"}
    assert batchlab(*asked, cwd=tmp_path).code == 2
    assert batchlab(*asked, "--overwrite", "--json", cwd=tmp_path).code == 0
    assert batchlab("bench-plan", "c.yaml", "--within", "0", cwd=tmp_path).code == 2


def test_clients_that_wait_are_refused() -> None:
    with pytest.raises(InputError, match="wait for answers"):
        designed(workload={**CHAT["workload"], "client": {"timeout_s": 60}})
    with pytest.raises(InputError, match="nothing to test"):
        edge_of_scenario(chat(), ["p99_ttft_ms<=0.001"])
