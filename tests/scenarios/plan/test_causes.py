"""What binds: built so that one cause dominates; and the flags of the servers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scenarios.plan.answer import deploy
from scenarios.plan.bottleneck import CAUSES, shares
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import parse_goal
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS, find_model
from simulator.policies import built_in_policies
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Roofline
from tests.scenarios.plan.cases import chat, laboratory
from tests.traffic import one_class

ROOM = {"gpu": "h100"}
CASES: dict[str, tuple[str, float, dict[str, Any]]] = {
    # long prompts, one token each: their own prefills
    "compute": ("p99_ttft_ms<=1", 4.0, {"hardware": ROOM, "cost": {"kind": "roofline"}, "lengths": (6000, 1)}),
    # a few decodes: the weights
    "bandwidth": ("p99_tpot_ms<=1", 1.0, {"hardware": ROOM, "cost": {"kind": "roofline"}, "lengths": (20, 100)}),
    # a small model: launches
    "host": (
        "p99_tpot_ms<=1", 1.0,
        {"hardware": ROOM, "model": "gpt2", "cost": {"kind": "roofline"}, "lengths": (20, 100)},
    ),
    # slow PCIe between eight
    "link": (
        "p99_ttft_ms<=1", 1.0,
        {
            "hardware": {"gpu": {"base": "l40s", "link_gb_s": 2}, "tensor_parallel": 8}, "model": "llama-3.1-70b",
            "cost": {"kind": "roofline"}, "lengths": (2000, 2),
        },
    ),
    # two slots
    "queueing": (
        "p99_ttft_ms<=1", 30.0,
        {"engine": {"policy": "chunked_prefill", "max_num_seqs": 2}, "lengths": (9, 50)},
    ),
    # 64 slots and memory for five
    "memory": (
        "p99_ttft_ms<=1", 60.0,
        {
            "hardware": {"gpu": "a100-80gb", "num_gpu_blocks": 330},
            "engine": {"policy": "chunked_prefill", "max_num_seqs": 64, "max_num_batched_tokens": 4096},
            "lengths": (900, 40),
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", CASES)
def test_names_the_cause(cause: str) -> None:
    text, rate, changes = CASES[cause]
    inputs, outputs = changes.pop("lengths")
    workload = one_class(120, rate, inputs, outputs)
    scenario = chat(**{"engine": {"policy": "chunked_prefill"}, **changes, "workload": workload, "slo": None})
    lab = laboratory(scenario, text)
    candidate = Candidate({}, scenario)
    trial = lab.run(candidate, lab.traffic.rate, early_stop=False)
    assert trial.records is not None
    found = shares(trial.records, candidate, parse_goal(text, scenario))
    assert found.bottleneck == cause, found.text
    assert set(found.of) == set(CAUSES)
    assert sum(found.of.values()) == pytest.approx(1.0)
    changes["lengths"] = (inputs, outputs)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_seconds_by_resource_add_up_to_the_step(model: str, ranks: int) -> None:
    cost = Roofline(find_model(model), find_gpu("h100"), ranks, host_per_seq_s=1e-5)
    shapes = [
        StepShape(100, 50_000),
        StepShape(1, 10),
        StepShape(64, 64_000, 2, 1500, 1500, 562_875),
        StepShape(0, 0, 1, 8192, 8192, 33_558_528),
    ]
    columns = np.array([(s.tokens, s.decode_seqs + s.prefill_seqs, s.decode_context, s.prefill_tokens, s.prefill_pairs)
                        for s in shapes], dtype=np.float64).T  # fmt: skip
    tokens, rows, context, prompts, pairs = columns
    found = cost.by_resource_s(tokens, rows, context, prompts, pairs)
    assert set(found) == {"compute", "bandwidth", "link", "host"}
    np.testing.assert_allclose(sum(found.values()), [cost.step_s(shape) for shape in shapes], rtol=1e-12)


def test_layers_with_a_window_read_that_much_at_most() -> None:
    model = find_model("gpt-oss-20b")
    whole = replace(model, sliding_window=0, full_attention_layers=0, layer_types="")
    waits = []
    for each in (model, whole):
        cost = Roofline(each, find_gpu("h100"))
        found = [
            cost.by_resource_s(*(np.array([value]) for value in (64.0, 64.0, 64 * context, 0.0, 0.0)))["bandwidth"][0]
            for context in (1000.0, 65_000.0)
        ]
        waits.append(found[1] - found[0])
    assert waits[0] == pytest.approx(waits[1] / 2, rel=0.01)  # half of the layers see 128 tokens either way


@pytest.mark.parametrize("policy", built_in_policies())
def test_every_policy_has_a_command_or_says_why_not(policy: str) -> None:
    found = deploy(chat(engine={"policy": policy}))
    program = {
        "sglang": "python -m sglang.launch_server",
        "tensorrt_llm": "trtllm-serve",
        "tgi": "text-generation-launcher",
    }
    if policy in ("static", "orca", "fastserve", "fastgen"):
        assert found == f"# {policy} is not a server's policy: there is no command for it"
    else:
        assert found.startswith(program.get(policy, "vllm serve"))
        assert "meta-llama/Llama-3.1-8B-Instruct" in found


def test_flags_say_what_the_scenario_says() -> None:
    scenario = chat(
        hardware={"gpu": "h100", "tensor_parallel": 2, "gpu_memory_utilization": 0.85},
        engine={
            "policy": "vllm", "max_num_seqs": 77, "max_num_batched_tokens": 1234, "enable_prefix_caching": True,
            "order": "priority", "long_prefill_token_threshold": 512,
        },
    )  # fmt: skip
    assert deploy(scenario, 3) == (
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --max-num-seqs 77 "
        "--max-num-batched-tokens 1234 --gpu-memory-utilization 0.85 --enable-prefix-caching "
        "--scheduling-policy priority --long-prefill-token-threshold 512  # on each of 3 replicas"
    )
    sglang = deploy(chat(engine={"policy": "sglang", "max_num_seqs": 9, "chunked_prefill_size": 4096}))
    assert "--max-running-requests 9 --chunked-prefill-size 4096" in sglang
    assert sglang.endswith("--page-size 16 --disable-radix-cache")
    alone = deploy(chat(engine={"policy": "sglang", "async_scheduling": False}))
    assert alone.endswith("--disable-radix-cache --disable-overlap-schedule")
    tensorrt = deploy(chat(engine={"policy": "tensorrt_llm", "max_num_seqs": 9, "capacity_policy": "max_utilization"}))
    assert "--max_batch_size 9" in tensorrt
    assert "disable_overlap_scheduler: true" in tensorrt
    assert "{capacity_scheduler_policy: MAX_UTILIZATION, context_chunking_policy: FIRST_COME_FIRST_SERVED}" in tensorrt


@pytest.mark.parametrize("model", MODELS)
def test_every_built_in_model_is_served_under_its_hugging_face_name(model: str) -> None:
    gpu = {"name": "roomy", "memory_gib": 4096, "bandwidth_gb_s": 4000, "bf16_tflops": 1000}
    command = deploy(chat(model=model, hardware={"gpu": gpu}, cost={"kind": "roofline"}))
    name = command.split()[2]
    owner, _, repository = name.partition("/")
    assert owner
    assert _letters(model) in _letters(repository)
    assert "#" not in command


def _letters(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())


@pytest.mark.parametrize("model", [{"base": "llama-3.1-8b", "dtype_bytes": 1}, {"base": "gpt2", "name": "gpt-oss-20b"}])
def test_a_model_of_ones_own_has_a_placeholder_that_says_so(model: dict[str, Any]) -> None:
    command = deploy(chat(model=model))
    assert command.startswith("vllm serve MODEL --")
    assert "# MODEL is the Hugging Face name or the path of " in command
