"""The shipped scenarios that are composed of tables: one for each precision and feature that tables carry."""

import re
from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.profiles import all_described, shipped_tables
from scenarios.runs.result import PROVENANCE
from simulator.errors import InputError
from tests.command import batchlab

LIBRARY = Path(scenarios.__file__).parent / "library"
LATENT = "latent attention with its projections, decodes"
CASES = {
    "tables-a100": ("a100-80gb-vllm-0.14", "bf16, ", "all-reduce among 4"),
    "tables-b200-nvfp4": ("b200-vllm-0.24", "nvfp4, ", "decode attention"),
    "tables-b300-tp": ("b300-vllm-0.24", "bf16, ", "decode attention"),
    "tables-h100-fp8": ("h100-vllm-0.24", "fp8, ", "all-reduce among 2"),
    "tables-h100-fp8-block": ("h100-vllm-0.19", "fp8_block, ", "decode attention"),
    "tables-h100-heads-64": ("h100-vllm-0.24", "bf16, ", "decode attention"),
    "tables-h100-tp8": ("h100-vllm-0.24", "fp8, ", "all-reduce among 8"),
    "tables-h100-window": ("h100-vllm-0.24", "bf16, ", "decode attention, window 1,024"),
    "tables-h200-fp8-kv": ("h200-vllm-0.24", "fp8, ", "decode attention"),
    "tables-h200-deepseek-v3": ("h200-vllm-0.24", "fp8_block, ", LATENT),
    "tables-b200-deepseek-v3-nvfp4": ("b200-vllm-0.24", "bf16, ", LATENT),
    "tables-h100-mixtral": ("h100-vllm-0.24", "bf16, ", "experts"),
    "tables-h100-nemotron": ("h100-vllm-0.24", "bf16, ", "linear attention"),
    "tables-h100-qwen3-30b-fp8": ("h100-vllm-0.19", "fp8_block, ", "experts"),
    "tables-h200-gpt-oss-120b": ("h200-vllm-0.24", "bf16, ", "decode attention, window 128"),
    "tables-h200-gpt-oss-window": ("h200-vllm-0.24", "bf16, ", "decode attention, window 128"),
    "tables-l40s": ("l40s-vllm-0.24", "fp8, ", "decode attention"),
    "tables-rtx-pro-6000": ("rtx-pro-6000-vllm-0.24", "nvfp4, ", "decode attention"),
}


def composed(name: str, *overrides: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A scenario's summary, and what it says of its step costs."""
    summary = scenarios.run(scenarios.load(name, ("workload.requests=40", *overrides))).summary
    return dict(summary), summary[PROVENANCE]["cost"]


def test_all_are_here() -> None:
    assert {name for name in scenarios.shipped() if name.startswith("tables-")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_each_runs_and_says_how_its_parts_were_come_by(name: str) -> None:
    tables, precision, part = CASES[name]
    summary, cost = composed(name)
    assert summary["completed"] == 40
    assert cost["profile"] == tables
    assert precision in cost["composed"][LATENT if part == LATENT else "qkv"]
    assert part in cost["composed"]
    known = re.compile("measured|interpolated|extrapolated|assumed|estimated")
    assert all(known.match(how) for how in cost["composed"].values())


@pytest.mark.parametrize("name", CASES)
def test_header_says_what_it_shows_and_its_commands_are_right(name: str) -> None:
    lines = (LIBRARY / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    header = "\n".join(line for line in lines if line.startswith("#"))
    for part in ("# Shows ", "# Look at ", "# Try "):
        assert part in header
    commands = re.findall(r"batchlab run (\S+)((?: --set \S+)*)$", header, flags=re.MULTILINE)
    assert len(commands) >= 3
    for command, overrides in commands:
        assert command == name
        scenarios.load(name, re.findall(r"--set (\S+)", overrides))


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_first_figures_that_a_head_names_are_those_of_its_run(name: str) -> None:
    head = (LIBRARY / f"{name}.yaml").read_text(encoding="utf-8").partition("\nname:")[0]
    named = dict(re.findall(r"(mean_tpot_ms|p50_ttft_ms): ([\d,]*\d(?:\.\d+)?)", head))
    summary = scenarios.run(scenarios.load(name)).summary
    for metric, text in named.items():
        digits = len(text.partition(".")[2])
        assert f"{summary[metric]:,.{digits}f}" == text, metric


def test_a_fitted_profile_comes_before_tables_and_a_name_before_both() -> None:
    fitted = composed("tables-h100-fp8", "model=llama-3.1-70b", "hardware.tensor_parallel=4")[1]
    assert fitted["profile"] == "h100-llama-3.1-70b-tp4"
    assert "composed" not in fitted
    named = composed("tables-h100-fp8", "cost.name=h100-vllm-0.19")[1]
    assert named["profile"] == "h100-vllm-0.19"
    by_path = composed("tables-h100-fp8", f"cost.path={shipped_tables()['h100-vllm-0.19']}")[1]
    assert by_path == named


@pytest.mark.parametrize(
    ("name", "overrides", "says"),
    [
        ("tables-h100-fp8", ("model={base: mixtral-8x7b, intermediate: 999}",), "divided by 2"),
        ("tables-h100-fp8", ("model.matmul_dtype=fp4", "model.dtype_bytes=0.5"), "multiplied in nvfp4"),
        ("tables-h100-fp8", ("model.matmul_dtype=nvfp4", "model.dtype_bytes=0.5625"), "no matrix products of nvfp4"),
        ("tables-h100-fp8", ("model.dtype_bytes=0.53",), "no public table holds dense products of int4 or int8"),
        ("tables-b200-nvfp4", ("model.head_dim=96",), "no decode attention for heads of 96"),
        ("tables-b200-nvfp4", ("model.kv_dtype_bytes=4",), "with float32 KV"),
        ("tables-l40s", ("model.matmul_dtype=nvfp4", "model.dtype_bytes=0.5625"), "no matrix products of nvfp4"),
        ("tables-h100-fp8", ("model.kv_lora_rank=512", "model.rope_head_dim=64"), "multi-head latent attention"),
        ("tables-h100-fp8", ("cost.name=h200-vllm-0.18",), "is a profile for GPU h200"),
        ("tables-a100", ("model={base: qwen2.5-72b, dtype_bytes: 1}",), "has no matrix products of fp8"),
        ("tables-h100-window", ("model.sliding_window=512",), "a window of 512 tokens"),
        ("tables-h100-mixtral", ("model={base: mixtral-8x7b, expert_dtype: nvfp4}",), "has no experts of nvfp4"),
        ("tables-h100-mixtral", ("hardware.gpu=a100-80gb", "cost.expert_load=balanced"), "no experts under balanced"),
        ("tables-h100-mixtral", ("cost.moe_backend=marlin",), "no bf16 experts by marlin"),
        ("tables-h100-mixtral", ("model=llama-3.1-8b", "cost.name=h100-vllm-0.24", "cost.expert_load=balanced"),
         "has no experts"),
        ("tables-h100-qwen3-30b-fp8", ("hardware.tensor_parallel=4", "cost.name=h100-vllm-0.19"), "no whole blocks"),
    ],
)  # fmt: skip
def test_what_nothing_was_measured_of_is_refused(name: str, overrides: tuple[str, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        composed(name, *overrides)


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("tables-b200-nvfp4", ("model.matmul_dtype=fp8_block", "model.dtype_bytes=1")),
        ("tables-h100-fp8-block", ("hardware.gpu=h200",)),
    ],
)
def test_products_that_an_engine_lacks_are_borrowed_from_another(name: str, overrides: tuple[str, ...]) -> None:
    parts = composed(name, *overrides)[1]["composed"]
    assert parts["qkv"].startswith("borrowed, fp8_block")
    assert "as under SGLang 0.5.14" in parts["qkv"]
    assert not parts["lm_head"].startswith("borrowed")


@pytest.mark.parametrize(
    ("policy", "software"), [("vllm", "vllm"), ("sglang", "sglang"), ("tensorrt_llm", "trtllm"), ("tgi", "vllm")]
)
def test_each_engine_is_priced_by_its_own_kernels(policy: str, software: str) -> None:
    found = composed("tables-h100-fp8", f"engine={{policy: {policy}, max_num_batched_tokens: 8192}}")[1]
    assert f"-{software}-" in found["profile"]
    assert "borrowed" not in " ".join(found["composed"].values())


def test_the_tables_nearest_to_the_version_are_taken() -> None:
    of = [
        composed("tables-h100-fp8", f"engine.version={version}")[1]["profile"] for version in ("0.15", "0.19", "0.24")
    ]
    assert of == ["h100-vllm-0.19", "h100-vllm-0.19", "h100-vllm-0.24"]


def test_what_is_said_of_experts_is_not_said_of_a_fitted_profile() -> None:
    of = ("model=qwen3-30b-a3b", "hardware={gpu: rtx-pro-6000}", "cost={kind: profile, expert_load: balanced}")
    with pytest.raises(InputError, match="rtx-pro-6000-qwen3-30b-a3b is a fitted profile") as caught:
        composed("tables-h100-mixtral", *of)
    assert "cost.expert_load" in str(caught.value)


def test_tables_are_listed_and_checked_by_name(tmp_path: Path) -> None:
    listed = {row[0]: row for row in all_described()}
    assert set(shipped_tables()) <= set(listed)
    assert "weights bf16, fp8, fp8_block" in " ".join(listed["h100-vllm-0.19"])
    assert "any model on h100" in " ".join(listed["h100-vllm-0.19"])
    assert "experts bf16, fp8_block, int4, mxfp4" in " ".join(listed["h100-vllm-0.19"])
    done = batchlab("calibrate", "check", "h100-vllm-0.24", cwd=tmp_path)
    assert done.code == 0
    assert "left out: products fp8_block" in done.out
    model = "{base: qwen2.5-72b, dtype_bytes: 1, kv_dtype_bytes: 1}"
    done = batchlab("calibrate", "check", "h200-vllm-0.18", "--model", model, "--tensor-parallel", "8", cwd=tmp_path)
    assert "qwen2.5-72b (changed) (fp8, fp8 KV), tensor_parallel 8:" in done.out
    assert "  all-reduce among 8: measured" in done.out
    done = batchlab("calibrate", "check", "h200-vllm-0.18", "--model", "mixtral-8x7b", cwd=tmp_path)
    assert "  experts: measured (bf16, even loads, vllm_fused_moe, as under vLLM 0.19.0)" in done.out
    other = "{base: mixtral-8x7b, expert_dtype: nvfp4}"
    done = batchlab("calibrate", "check", "h200-vllm-0.18", "--model", other, cwd=tmp_path)
    assert (done.code, "has no experts of nvfp4" in done.err) == (2, True)
    done = batchlab("calibrate", "check", "h200-llama-3.1-8b", "--model", "llama-3.1-8b", cwd=tmp_path)
    assert (done.code, "--model is for tables" in done.err) == (2, True)
