"""The shipped scenarios of adapters and images show what they say, and refuse what does not go together."""

from typing import Any

import pytest

import scenarios
from simulator.errors import InputError


def summary(name: str, *overrides: str) -> dict[str, Any]:
    return dict(scenarios.run(scenarios.load(name, overrides)).summary)


def test_few_requests_wait_long_where_slots_are_short() -> None:
    short, ample = summary("adapters-tenants"), summary("adapters-tenants", "engine.max_loras=32")
    assert short["completed"] == ample["completed"] == 600
    assert 0.1 < short["lora_shut_out_rate"] < 0.4
    assert ample["lora_shut_out_rate"] == ample["mean_lora_shut_out_ms"] == 0
    assert short["p99_ttft_ms"] > 10 * ample["p99_ttft_ms"]
    assert short["p50_ttft_ms"] < 2 * ample["p50_ttft_ms"]
    assert short["mean_lora_shut_out_ms"] > 0.8 * (short["mean_ttft_ms"] - ample["mean_ttft_ms"])
    assert ample["lora_loads"] == 32 < short["lora_loads"]
    assert short["lora_hit_rate"] == pytest.approx(1 - short["lora_loads"] / 600)


def test_a_router_that_knows_adapters_needs_fewer_slots() -> None:
    by_turns = summary("adapters-tenants", "replicas=2", "engine.max_loras=4", "router=round_robin")
    kept = summary("adapters-tenants", "replicas=2", "engine.max_loras=4", "router=lora_affinity")
    assert kept["lora_shut_out_rate"] < 0.75 * by_turns["lora_shut_out_rate"]
    assert kept["p99_ttft_ms"] < by_turns["p99_ttft_ms"]


@pytest.mark.parametrize(
    "keys",
    [
        ("engine.async_scheduling=true",),
        (
            "hardware.num_gpu_blocks=700",
            "engine.enable_prefix_caching=true",
            "workload.classes.0.client={timeout_s: 3}",
        ),
    ],
)
def test_runs_of_steps_change_nothing_of_admissions(keys: tuple[str, ...]) -> None:
    scenario = scenarios.load("adapters-tenants", ("workload.requests=200", *keys))
    result, again = scenarios.run(scenario), scenarios.run(scenario, fast_forward=False)
    assert result.summary == again.summary
    adapters, requests = result.records.adapters, result.records.requests
    assert adapters is not None
    waited_s = (requests.scheduled_s - requests.arrival_s + requests.requeued_s)[adapters.row]
    assert ((adapters.shut_out_s >= 0) & (adapters.shut_out_s <= waited_s + 1e-9)).all()
    assert adapters.shut_out_s.max() > 0.9 * waited_s.max() > 0


def test_a_larger_cache_encodes_less() -> None:
    small, large = summary("images-documents"), summary("images-documents", "engine.max_num_batched_tokens=8192")
    assert large["mean_ttft_ms"] < 0.85 * small["mean_ttft_ms"]
    own = summary("images-documents", "engine.max_num_batched_tokens=8192", "workload.classes.0.images.different=null")
    assert own["mean_ttft_ms"] > small["mean_ttft_ms"]


@pytest.mark.parametrize(
    ("name", "override", "said", "hint"),
    [
        ("adapters-tenants", "engine.max_loras=null", r"25:7: workload.classes.0.lora: the engine", "max_loras: 4"),
        ("adapters-tenants", "engine={policy: vllm}", r"classes.0.lora: the engine takes no adapters", "max_loras: 4"),
        ("adapters-tenants", "engine.max_lora_rank=12", r"max_lora_rank", "16"),
        ("adapters-tenants", "model=deepseek-v3", r"engine.max_loras: adapters of deepseek-v3 are", "another model"),
        ("adapters-tenants", "router={kind: lora_affinity, adapter: 2}", r"does not use this key", "it takes"),
        ("images-documents", "engine.max_image_embeddings=null", r"images: the engine takes no images", "max_image_"),
        ("images-documents", "engine.max_image_embeddings=700", r"images", "max_image_embeddings"),
        ("images-documents", "model=qwen2.5-7b", r"qwen2.5-7b has no encoder of images", "encoder_parameters"),
        ("images-documents", "engine.policy=sglang", r"32:3: .*sglang does not use this key", "vllm"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(name: str, override: str, said: str, hint: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        summary(name, override)
    assert hint in f"{error.value} {error.value.hint}"
