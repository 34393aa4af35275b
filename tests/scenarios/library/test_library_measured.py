"""The shipped scenarios that read measurements from outside: what to set without them, and what the servers were."""

import json
import re
from pathlib import Path

import pytest

import scenarios
from scenarios.schema.trace import TraceWorkload
from simulator.errors import InputError
from tests.command import batchlab
from tests.shared_data import shared

LIBRARY = Path(scenarios.__file__).parent / "library"
GROUND = "measured/ground_truth/llmservingsim_vllm"
HELD_OUT = "measured/held_out_inputs/llmservingsim_vllm"
CASES = {
    "measured-rtxpro6000-llama31-8b": f"{GROUND}/rtxpro6000_llama31_8b_tp1",
    "measured-rtxpro6000-qwen3-30b-a3b": f"{GROUND}/rtxpro6000_qwen3_30b_a3b_dp2ep2",
    "blind-rtx4090-llama31-8b": f"{HELD_OUT}/rtx4090_llama31_8b_tp1",
    "blind-rtxpro6000-qwen3-32b-tp2": f"{HELD_OUT}/rtxpro6000_qwen3_32b_tp2",
}


def test_all_are_here() -> None:
    assert {name for name in scenarios.shipped() if name.startswith(("measured-", "blind-"))} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_without_the_data_they_say_what_to_set(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BATCHLAB_SHARED", str(tmp_path / "nowhere"))
    done = batchlab("run", name, cwd=tmp_path)
    assert done.code == 2
    assert f"{name}.yaml:" in done.err
    assert "no such file" in done.err
    assert "set BATCHLAB_SHARED to the folder that holds them" in done.err
    assert scenarios.load(name, check_files=False).name == name


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TRACES", raising=False)
    with pytest.raises(InputError, match="no such file") as caught:
        scenarios.load({"workload": {"trace": {"path": "${MY_TRACES}/a.csv"}}})
    assert "the environment variable MY_TRACES is not set" in str(caught.value)


def test_a_variable_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("arrival_time_s,input_tokens,output_tokens\n0,1,1\n", encoding="utf-8")
    monkeypatch.setenv("MY_TRACES", str(tmp_path))
    scenario = scenarios.load({"workload": {"trace": {"path": "${MY_TRACES}/a.csv"}}})
    assert isinstance(scenario.workload, TraceWorkload)
    assert scenario.workload.path == tmp_path / "a.csv"


@pytest.mark.parametrize("name", CASES)
def test_header_says_what_it_shows_and_its_commands_are_right(name: str) -> None:
    lines = (LIBRARY / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    header = "\n".join(line for line in lines if line.startswith("#"))
    for part in ("# Shows ", "# Look at ", "# Try ", "BATCHLAB_SHARED"):
        assert part in header
    commands = re.findall(r"batchlab run (\S+)(?: --set (\S+))?$", header, flags=re.MULTILINE)
    assert len(commands) >= 3
    for command, override in commands:
        assert command == name
        scenarios.load(name, [override] if override else [], check_files=False)


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_settings_are_those_of_the_server(name: str) -> None:
    meta = json.loads((shared(CASES[name]) / "meta.json").read_text(encoding="utf-8"))
    flags = meta["engine_kwargs"]
    scenario = scenarios.load(name)
    engine = scenario.engine
    assert engine.parameter("max_num_seqs") == flags["max_num_seqs"]
    assert engine.parameter("max_num_batched_tokens") == flags["max_num_batched_tokens"]
    assert scenario.hardware.tensor_parallel == flags["tensor_parallel_size"]
    assert scenario.replicas == flags["data_parallel_size"]
    assert isinstance(scenario.workload, TraceWorkload)
    assert Path(meta["dataset_path"]).stem in scenario.workload.trace.path
    assert engine.enable_prefix_caching  # vLLM's default, which the flags leave alone
    if "kv_cache" in meta:
        cache = meta["kv_cache"]
        assert scenario.hardware.num_gpu_blocks == cache["num_gpu_blocks"]
        assert engine.block_size == cache["block_size"]
        assert scenario.hardware.gpu_memory_utilization == cache["gpu_memory_utilization"]


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_they_serve_everybody(name: str) -> None:
    shared("measured/workloads")
    summary = scenarios.run(name).summary
    assert summary["completed"] == 300
    assert summary["prefix_cache_hit_rate"] > 0.01
    if "4090" in name:
        assert summary["preemptions"] > 50  # memory-bound
    else:
        assert summary["preemptions"] == 0
