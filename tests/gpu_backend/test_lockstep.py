"""Lockstep with the real backend on the CPU: the same plans, executed; measured, fitted, predicted, and held to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.device import Cpu
from gpu_backend.executor import DeviceExecutor
from scenarios.cli.lockstep import NOT_WITHIN
from simulator.lockstep.lockstep_run import LockstepCase, device_clock, predicted_clock
from simulator.lockstep.step_errors import agreement
from simulator.memory.blocks import BlockManager
from simulator.memory.prefix_cache import PrefixCache
from simulator.policies import built_in_policies
from simulator.timing.executor import Predicted
from simulator.timing.formula_cost import Linear
from tests.command import Done, batchlab
from tests.gpu_backend.counted import count_work
from tests.gpu_backend.test_tokens import group_workload
from tests.gpu_maker import WORKLOAD, backend, policy_maker
from tests.laws.scenarios import POLICIES, Memory
from tests.shared_data import shared

COST = Linear(1e-3, 1e-5, 1e-7)


def case(policy: str, blocks: int = 256, host: int = 0, **options: object) -> LockstepCase:
    return LockstepCase(
        WORKLOAD, policy_maker(policy, **options), Memory(blocks, 4, host), lambda: Predicted(COST, 1e-5), BlockManager
    )


def device(blocks: int = 256, host: int = 0) -> DeviceExecutor:
    return DeviceExecutor(backend(blocks=blocks, host=host), debug=True)


@pytest.mark.parametrize("policy", sorted({*POLICIES, *built_in_policies()}))
def test_every_policy_is_executed_as_planned(policy: str) -> None:
    found = agreement(predicted_clock(case(policy), device, again=False))
    assert found.plans_equal


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemptions_are_executed_as_planned(mode: str) -> None:
    tight = case("preemptive", 30, 200, preemption_mode=mode)
    steps = predicted_clock(tight, partial(device, 30, 200))
    assert agreement(steps).plans_equal
    assert all(step.again_s > 0 for step in steps)
    # A busy machine may stall each step that swaps, so all steps are asked, not only those that count.
    assert any(step.regime == "swap" for step in steps) == (mode == "swap")


def test_shared_prefixes_are_executed_as_planned() -> None:
    shared = LockstepCase(
        group_workload(),
        policy_maker("chunked_prefill"),
        Memory(40, 4),
        lambda: Predicted(COST),
        partial(PrefixCache, block_size=4),
        caches_prefixes=True,
    )
    assert agreement(predicted_clock(shared, partial(device, 40), again=False)).plans_equal


def test_the_device_as_the_clock() -> None:
    """Steps take what the device took, and the second execution plays the first one's times back."""
    first = device()
    made = [first, device()]
    steps, run = device_clock(case("continuous"), lambda: made.pop(0))
    assert agreement(steps).plans_equal
    assert [step.clock_s for step in steps] == [step.device_s for step in steps]
    assert run.records.step_end_s[-1] == pytest.approx(sum(step.device_s for step in steps), abs=0.06)


@pytest.mark.parametrize(
    ("settle_s", "taken", "median"),
    [
        (0.0, [0.012, 0.006, 0.009], 0.009),
        (0.005, [0.003, 0.0015, 0.001, 0.0007, 0.0006, 0.0008, 1.0], 0.0007),  # once short steps have settled
    ],
)
def test_steps_are_timed_by_their_median(
    settle_s: float, taken: list[float], median: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    left = iter(taken)
    monkeypatch.setattr("gpu_backend.device.time.thread_time", lambda: clock[0])

    def work() -> None:
        clock[0] += next(left)

    assert Cpu(repeats=3, settle_s=settle_s).seconds(work) == pytest.approx(median)


def test_captured_decode_steps_and_the_kernel_give_the_same_tokens() -> None:
    """In Triton's interpreter, in a process of its own: padded batches at fixed addresses, left padding masked."""
    pytest.importorskip("triton", reason="triton is not installed (pip install --no-deps triton)")
    from tests.gpu_backend.test_kernel import no_interpreter

    if reason := no_interpreter():
        pytest.skip(reason)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu_interpreted"],
        cwd=root, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found.pop("fp8") < 1e-3, "weights and pages in fp8"
    assert found == {"static": [], "chunked_prefill": [], "mixture": []}


# The command line

TINY = """\
name: tiny
model: {layers: 2, hidden: 128, intermediate: 256, heads: 4, kv_heads: 2, vocab: 512, max_model_len: 512,
        dtype_bytes: 4, kv_dtype_bytes: 4}
hardware: {gpu: h200, num_gpu_blocks: 601}
cost: {kind: linear, base_s: 0.0004, per_token_s: 0.00002, per_context_token_s: 0.0000001}
workload:
  requests: 40
  arrival: {process: gamma, rate: 60, burstiness: 0.5}
  classes:
    - name: chat
      input: {dist: lognormal, median: 60, p99: 300, max: 350}
      output: {dist: lognormal, median: 30, p99: 120, max: 150}
engine: {policy: chunked_prefill, max_num_seqs: 16, max_num_batched_tokens: 128}
"""
ATTEMPTS = 4  # the machine may be anybody's: what is measured and what is executed must not lie far apart in time


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    return path


def predicted(scenario: Path, folder: Path, *more: str) -> Done:
    """Measure this machine, fit a profile, and predict with it what is then executed."""
    measured, profile = folder / "measured", folder / "profile.json"
    done = batchlab(
        "calibrate", "measure", "--scenario", scenario, "--steps-only", "--out", measured, "--quiet", cwd=folder
    )
    assert done.code == 0, done.err
    rows = measured / "rows.jsonl.gz"
    done = batchlab("calibrate", "fit", "--from-steps", rows, "--name", "here", "--out", profile, cwd=folder)
    assert done.code == 0, done.err
    return batchlab("lockstep", scenario, "--profile", profile, "--out", folder / "out", "--quiet", *more, cwd=folder)


AZURE = """
workload:
  trace: {{path: {path}, limit: 12, start_s: 600, rate_scale: 6, input_scale: 0.08, output_scale: 0.12}}
"""


def of_a_real_trace(tiny: Path) -> int:
    """Let the requests be those of the Azure chat trace, scaled down to the model; returns how many steps they make."""
    path = shared("traces/AzureLLMInferenceTrace_conv.csv.gz")
    text = re.sub(r"workload:\n(  .*\n)+", AZURE.format(path=path).lstrip(), TINY)
    tiny.write_text(text.replace("max_model_len: 512", "max_model_len: 2048"), encoding="utf-8")
    return 200


def test_measured_fitted_and_predicted(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile prices steps that it never saw. The clock counts work, so that the figures are the same everywhere.

    Requests have the shapes of a real trace where there is one, else they are drawn.
    """
    count_work(monkeypatch)
    try:
        least = of_a_real_trace(tiny)
    except pytest.skip.Exception:
        least = 200
    done = predicted(tiny, tmp_path, "--json")
    found = told(done, least)
    assert done.code == 0, done.out
    assert found["noise_floor_mape"] == 0
    assert found["step_mape"] < 0.05
    assert abs(found["drift"]) < 0.05
    apart = [each["control"] for each in found["regimes"].values()]
    assert apart == pytest.approx([0.0] * len(apart), abs=1e-4), "fixed steps count the same work in both processes"
    assert found["in_ratio"]["drift"] == pytest.approx(found["drift"], abs=1e-4)
    assert (tmp_path / "out/report.html").stat().st_size > 10_000
    wrong = slowed(tmp_path / "profile.json")
    replayed = ("lockstep", tiny, "--replay", tmp_path / "out/lockstep.csv", "--no-report", "--quiet")
    right = batchlab(*replayed, "--profile", tmp_path / "profile.json", "--out", tmp_path / "right", cwd=tmp_path)
    assert right.code == 0, "the same plans at the same prices"
    assert batchlab(*replayed, "--profile", wrong, "--out", tmp_path / "wrong", cwd=tmp_path).code == NOT_WITHIN


@pytest.mark.slow  # it asks for a machine that nobody else is using: `make lockstep` does the same
def test_measured_by_this_machines_own_clock(tiny: Path, tmp_path: Path) -> None:
    for attempt in range(ATTEMPTS):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        done = predicted(tiny, folder, "--json")
        found = told(done, 200)
        print(f"MAPE {found['step_mape']:.1%}, floor {found['noise_floor_mape']:.1%}, drift {found['drift']:+.1%}")
        if done.code == 0:
            break
    assert done.code == 0, done.out


def told(done: Done, least: int) -> dict[str, Any]:
    """What a lockstep said, of so many steps at least."""
    found: dict[str, Any] = json.loads(done.out)
    assert found["plans_equal"]
    assert found["steps"] >= least
    assert set(found["regimes"]) >= {"decode", "mixed"}
    return found


def slowed(profile: Path) -> Path:
    """A profile whose every step takes 5 ms longer."""
    document = json.loads(profile.read_text(encoding="utf-8"))
    document["host"]["step_s"] += 0.005
    path = profile.with_name("wrong.json")
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_a_wrong_cost_fails(tiny: Path, tmp_path: Path) -> None:
    wrong = "cost={kind: linear, base_s: 1.0, per_token_s: 0, per_context_token_s: 0}"
    done = batchlab(
        "lockstep", tiny, "--set", "workload.requests=3", "--set", wrong, "--layers", "1", "--out", "out", "--json",
        "--no-report", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == NOT_WITHIN, done.err
    found = json.loads(done.out)
    assert found["plans_equal"]
    assert found["step_mape"] > 1
    assert {"steps", "noise_floor_mape", "drift", "regimes", "device", "step_p95"} <= set(found)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["lockstep.csv", "lockstep.json"]


def test_both_sides_alone(tiny: Path, tmp_path: Path) -> None:
    done = batchlab(
        "lockstep", tiny, "--free-running", "--policies", "static,chunked_prefill", "--rates", "1,2", "--seeds", "1",
        "--layers", "1", "--set", "workload.requests=8", "--out", "out", "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["same_answers"]
    assert -1 <= found["kendall_tau"] <= 1
    assert len(found["points"]) == 4
    assert {"mean_ttft_ms", "mean_itl_ms", "p99_e2el_ms", "num_steps"} <= set(found["errors"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["replicas=2"], "a lockstep has one replica"),
        (["hardware.tensor_parallel=2"], "a lockstep has one GPU"),
        (["model={base: llama-3.1-8b, kv_lora_rank: 512, rope_head_dim: 64}"], "no multi-head latent attention"),
        (["model={base: llama-3.1-405b, max_model_len: 512}"], "--layers N, a smaller model"),
    ],
)
def test_what_one_device_cannot_be_is_refused(change: list[str], said: str, tiny: Path, tmp_path: Path) -> None:
    sets = [part for each in change for part in ("--set", each)]
    done = batchlab("lockstep", tiny, *sets, "--out", "out", cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err
    assert not (tmp_path / "out").exists()
