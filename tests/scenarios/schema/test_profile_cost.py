"""`cost: {kind: profile}` in a scenario: which profile it takes, and which it refuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.profiles import shipped_profiles
from simulator.errors import InputError
from simulator.timing.profile import ProfileCost
from tests.command import ROOT
from tests.profile_maker import document
from tests.traffic import one_class

WORKLOAD = one_class(40, 20, (10, 300), (1, 60), name="chat")


def scenario(*overrides: str, **cost: Any) -> scenarios.Scenario:
    data = {
        "name": "t",
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "rtx-4090"},
        "cost": {"kind": "profile", **cost},
        "workload": WORKLOAD,
        "engine": {"policy": "chunked_prefill", "max_num_seqs": 16},
    }
    return scenarios.load(data, list(overrides))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    dense = {key: value for key, value in document().items() if key != "experts"}
    path.write_text(json.dumps(dense))
    return path


def built(*overrides: str, **cost: Any) -> ProfileCost:
    chosen = scenario(*overrides, **cost)
    made = chosen.cost.build(chosen)
    assert isinstance(made, ProfileCost)
    return made


def test_the_profile_that_fits_is_found() -> None:
    assert built().profile.name == "rtx-4090-llama-3.1-8b"
    assert built("hardware.gpu=rtx-pro-6000", "model=qwen3-32b", "hardware.tensor_parallel=2").profile.name == (
        "rtx-pro-6000-qwen3-32b-tp2"
    )


def test_a_profile_by_name_or_path(tiny: Path) -> None:
    assert built(name="rtx-4090-llama-3.1-8b").profile.name == "rtx-4090-llama-3.1-8b"
    assert built(path=str(tiny)).profile.name == "tiny"


def test_a_path_counts_from_the_scenarios_file(tiny: Path) -> None:
    data = scenarios.dump(scenario()).replace("path: null", "path: tiny.json", 1)
    (tiny.parent / "s.yaml").write_text(data)
    chosen = scenarios.load(tiny.parent / "s.yaml")
    made = chosen.cost.build(chosen)
    assert isinstance(made, ProfileCost)
    assert made.profile.name == "tiny"


def test_graphs_are_captured_up_to_twice_the_batch() -> None:
    assert built().options.max_capture_tokens == 32
    assert built("engine.max_num_seqs=1000").options.max_capture_tokens == 512
    assert built(max_capture_tokens=64, cuda_graphs=False).options.max_capture_tokens == 64


def test_kernels_that_no_graph_holds_take_time_to_launch() -> None:
    """vLLM's graphs hold prompts up to the captured size, SGLang's none; a fitted profile knows no launches."""
    of = ("model=mixtral-8x7b", "hardware={gpu: h100, tensor_parallel: 4}")
    vllm, sglang = built(*of, "engine={policy: vllm}").options, built(*of, "engine={policy: sglang}").options
    assert vllm.layer_launch_s == sglang.layer_launch_s > 0.0
    assert (vllm.launched_above, sglang.launched_above) == (vllm.max_capture_tokens, 0)
    assert built(*of, "engine={policy: vllm}", cuda_graphs=False).options.launched_above == 0
    assert built(*of, "engine={policy: sglang}", max_capture_tokens=64).options.launched_above == 64
    assert built().options.layer_launch_s == 0.0


def test_experts_are_loaded_as_by_a_gate_unless_it_is_said() -> None:
    """A decode reads the experts that tokens choose evenly, a prompt fills as many tiles as uneven loads do."""
    of = ("model=mixtral-8x7b", "hardware={gpu: h100, tensor_parallel: 2}")
    us = []
    for said in (None, "even", "power_law_1.01"):
        experts = built(*of, expert_load=said).profile.experts
        assert experts is not None
        us.append([experts.us(tokens) for tokens in (32, 4096)])
    assert us[0][0] == pytest.approx(us[1][0], rel=1e-4)
    assert us[0][1] == pytest.approx(max(us[1][1], us[2][1]), rel=1e-4)
    assert us[1] != us[2]


def test_options_reach_the_cost() -> None:
    options = built("host={step_s: 0.002, per_seq_s: 1e-5}", skew=False, all_reduce=False).options
    assert (options.host_s, options.host_per_seq_s, options.skew, options.all_reduce) == (0.002, 1e-5, False, False)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("hardware.gpu=h200", "is a profile for GPU rtx-4090; the scenario has h200"),
        ("model=qwen3-8b", "is a profile for model llama-3.1-8b; the scenario has qwen3-8b"),
        ("hardware.tensor_parallel=2", "tensor_parallel 1; the scenario has 2"),
    ],
)
def test_a_profile_of_something_else_is_refused(tiny: Path, override: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        built(override, path=str(tiny))


def test_a_changed_gpu_is_still_that_gpu(tiny: Path) -> None:
    assert built("hardware.gpu={base: rtx-4090, memory_gib: 40}", path=str(tiny)).profile.name == "tiny"


def test_where_no_profile_fits_all_are_named() -> None:
    with pytest.raises(InputError, match="no shipped profile is of qwen3-8b on rtx-4090") as found:
        built("model=qwen3-8b")
    assert all(name in str(found.value.hint) for name in shipped_profiles())


def test_a_path_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        built(path=str(tmp_path / "nothing.json"))


def test_extrapolated_steps_are_remarked(tiny: Path) -> None:
    crowd = ("workload.requests=120", "workload.classes.0.arrival.rate=1e6", "engine.max_num_seqs=100")
    result = scenarios.run(scenario(*crowd, path=str(tiny)))
    rows = result.records.rows
    outside = int(rows.repeat[(rows.decoding > 64) | (rows.tokens > 2048)].sum())
    assert outside > 10
    (note,) = [note for note in result.notes if "outside" in note]
    steps = int(rows.repeat.sum())
    assert note.startswith(f"warning: {outside:,} of {steps:,} steps lie outside of what tiny measured")
    assert not any("outside" in note for note in scenarios.run(scenario(path=str(tiny))).notes)


def test_fast_forward_changes_nothing(tiny: Path) -> None:
    fast = scenarios.run(scenario(path=str(tiny))).records
    slow = scenarios.run(scenario(path=str(tiny)), fast_forward=False).records
    assert fast.requests.last_token_s.tolist() == slow.requests.last_token_s.tolist()


def test_the_front_end_belongs_to_ttft_alone(tiny: Path) -> None:
    bare = scenarios.run(scenario(path=str(tiny)))
    behind = scenarios.run(scenario("front_end={fixed_s: 0.02, per_running_s: 0}", path=str(tiny)))
    for name in ("mean_ttft_ms", "p99_ttft_ms", "mean_e2el_ms"):
        assert behind.summary[name] == pytest.approx(float(bare.summary[name] or 0) + 20.0)
    for name in ("mean_tpot_ms", "p99_itl_ms"):
        assert behind.summary[name] == pytest.approx(bare.summary[name])
    assert np.array_equal(behind.records.step_end_s, bare.records.step_end_s)


def test_a_run_with_a_profile_loads_nothing_heavy() -> None:
    code = (
        "import sys, scenarios\n"
        f"scenarios.run({scenario().model_dump(exclude_unset=True)!r})\n"
        "print([name for name in ('scipy', 'pandas', 'matplotlib', 'calibration.fit') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("version", "kernel"), [("0.11", "marlin"), ("0.12", "triton"), ("0.33", "triton")])
def test_experts_in_mxfp4_on_hopper_are_those_of_the_version(version: str, kernel: str) -> None:
    from simulator.timing.profile import ProfileCost
    from simulator.timing.tables import parts_of

    data = {
        "name": "t", "model": "gpt-oss-120b", "hardware": {"gpu": "h100", "tensor_parallel": 2},
        "cost": {"kind": "profile"}, "engine": {"policy": "vllm", "version": version},
        "workload": {"preset": "chat", "rate": 1.0, "requests": 5},
    }  # fmt: skip
    chosen = scenarios.load(data)
    cost = chosen.cost.build(chosen)
    assert isinstance(cost, ProfileCost)
    (experts,) = [part.words for part in parts_of(cost.profile) if part.name == "experts"]
    assert kernel in experts


def test_a_policy_of_ones_own_with_a_server_s_host_has_no_release_of_it(tmp_path: Path) -> None:
    """Whatever its parameter `version` means: prompts take what they take under the newest."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n"
        "from simulator.plan import StepPlan\n"
        "from scenarios.servers.tensorrt_llm import TENSORRT_LLM as SERVER\n"
        "@dataclass(frozen=True)\n"
        "class Mine:\n"
        "    version: str = 'mine'\n"
        "    max_num_seqs: int = 8\n"
        "    def plan(self, view):\n"
        "        return StepPlan()\n",
        encoding="utf-8",
    )
    data = {
        "name": "t", "model": "llama-3.1-8b", "hardware": {"gpu": "h100"}, "cost": {"kind": "profile"},
        "engine": {"policy": f"{file}:Mine"}, "workload": {"preset": "chat", "rate": 1.0, "requests": 5},
    }  # fmt: skip
    chosen = scenarios.load(data)
    cost = chosen.cost.build(chosen)
    assert isinstance(cost, ProfileCost)
    assert cost.options.prompt_times == 1.0
