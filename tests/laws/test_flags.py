"""What a plan writes as flags is read back as the same scenario, for every policy that a server has."""

from dataclasses import fields
from typing import Any

import pytest

import scenarios
from scenarios.assembly.engines import build_policy
from scenarios.assembly.replica_parts import build
from scenarios.from_server import make
from scenarios.plan.answer import deploy, deployed
from scenarios.schema.engine import UNSAID
from scenarios.servers import policy_of, server_of
from scenarios.servers.sources import read_source
from simulator.policies import built_in_policies, rules_of

WORKLOAD = {"preset": "chat", "rate": 1.0, "requests": 5}
HARDWARE: list[dict[str, Any]] = [
    {},
    {"tensor_parallel": 2, "gpu": "h100", "gpu_memory_utilization": 0.85},
    {"gpu": "b200", "tensor_parallel": 4},
]
ENGINE: dict[str, list[dict[str, Any]]] = {
    "": [{}, {"max_num_seqs": 77, "max_num_batched_tokens": 2345}, {"block_size": 32, "max_num_seqs": 1024}],
    "vllm": [
        {"async_scheduling": True, "enable_prefix_caching": True},
        {"async_scheduling": False, "order": "priority", "version": "0.12"},
        {"long_prefill_token_threshold": 512, "enable_chunked_prefill": False, "max_num_queued_reqs": 9},
        {"max_num_queued_tokens": 5000}, {"prefill_schedule_interval": 4},
        {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3, "draft_model": "qwen3-0.6b"}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4,
                                "num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 2]]}},
        {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 2, "disable_eagle_block_drop": True}},
        {"watermark": 0.02, "reserve_full_isl": False, "max_num_active_seqs": 100},
        {"long_prefill_token_threshold": 64, "long_prefill_token_threshold_adaptive": True, "version": "0.32"},
        {"disable_hybrid_kv_cache_manager": True},
        {"prefix_match_unit": 16, "prefix_cache_retention_interval": "all"},
        {"disable_hybrid_kv_cache_manager": False, "prefix_cache_retention_interval": 64},
    ],
    "vllm_v0": [{"enable_chunked_prefill": True}, {"order": "priority"}],
    "sglang": [
        {"chunked_prefill_size": 4096}, {"chunked_prefill_size": -1},
        {"async_scheduling": False, "enable_prefix_caching": True, "order": "lpm"},
        {"enable_mixed_chunk": True, "schedule_conservativeness": 0.3, "block_size": 1},
        {"enable_prefill_delayer": True, "prefill_delayer_max_delay_passes": 9, "prefill_max_requests": 7,
         "prefill_delayer_token_usage_low_watermark": 0.2, "prefill_delayer_queue_min_ratio": 0.5,
         "prefill_delayer_max_delay_ms": 250.0},
        {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 5, "eagle_topk": 4,
                                "num_draft_tokens": 8}},
        {"speculative_config": {"method": "ngram", "num_speculative_tokens": 7}, "max_num_seqs": 64},
        {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3, "draft_model": "qwen3-0.6b"}},
    ],
    "tensorrt_llm": [
        {"capacity_policy": "max_utilization"}, {"async_scheduling": True, "enable_chunked_prefill": False},
        {"capacity_policy": "static_batch", "context_chunking_policy": "equal_progress"},
    ],
    "tgi": [{"max_batch_prefill_tokens": 1024, "max_batch_total_tokens": 90_000}, {"waiting_served_ratio": 1.2}],
}  # fmt: skip
OFFLOAD: list[dict[str, Any]] = [
    {"host_gib": 64.0},
    {"host_gib": 0.5, "policy": "arc", "store_threshold": 2, "sync_load_budget_bytes": 10**6},
    {
        "host_gib": 100.0,
        "blocks_per_chunk": 4,
        "offload_prompt_only": False,
        "tiers": [{"type": "fs"}, {"type": "obj"}],
    },
]
LAUNCHES = {name: launch for name in built_in_policies() if (launch := server_of(name).launch) is not None}
OWN = [name for name, launch in LAUNCHES.items() if launch.is_own]
NEAREST = [name for name, launch in LAUNCHES.items() if not launch.is_own]
CASES = [(name, engine) for name in OWN for engine in ENGINE[""] + ENGINE.get(policy_of(LAUNCHES[name]), [])]


def scenario(policy: str, engine: dict[str, Any], hardware: dict[str, Any]) -> scenarios.Scenario:
    data = {"hardware": hardware, "workload": WORKLOAD, "cost": {"kind": "roofline"}}
    return scenarios.load({**data, "engine": {"policy": policy, **engine}})


def read_back(chosen: scenarios.Scenario, replicas: int | None = None) -> scenarios.Scenario:
    start = read_source(deploy(chosen, replicas))[0]
    return make([start], gpu=chosen.resolve_gpu().name).scenario


@pytest.mark.parametrize("hardware", HARDWARE, ids=str)
@pytest.mark.parametrize(("policy", "engine"), CASES, ids=str)
def test_flags_of_a_plan_are_read_back_as_the_same_scenario(
    policy: str, engine: dict[str, Any], hardware: dict[str, Any]
) -> None:
    is_said = policy != "tensorrt_llm" or "gpu_memory_utilization" not in hardware  # its own is of other memory
    chosen = scenario(policy, engine, hardware if is_said else {})
    found = read_back(chosen)
    assert found.model == chosen.model
    expected = chosen.hardware
    if found.hardware.mem_fraction_static is not None:  # SGLang's own share, which leaves as much KV cache
        its = {"gpu_memory_utilization": 0.9, "mem_fraction_static": found.hardware.mem_fraction_static}
        expected = expected.model_copy(update=its)
        if "speculative_config" not in engine:
            simulated, started = (build(each).kv.tokens for each in (chosen, found))
            assert started <= simulated <= started * 1.002
    assert found.hardware == expected or "block_size" in engine
    assert rules_of(found.engine.policy) == rules_of(policy)
    ours, theirs = build_policy(chosen), build_policy(found)
    for each in fields(ours):  # type: ignore[arg-type] # every policy is a dataclass
        mine, its = (getattr(policy, each.name) for policy in (ours, theirs))
        # A size that is left to another parameter comes back as the number it has; `_limits` is what runs.
        if each.name == "async_scheduling" and mine is None:  # without a flag: what a server of that version does
            assert its == (chosen.engine.parameter("version") != "0.12")
            continue
        assert mine == its or (mine is None and each.name.startswith(("chunked_", "max_")))
    for key in ("block_size", "enable_prefix_caching", "max_queued_requests", *UNSAID):
        assert getattr(found.engine, key) == getattr(chosen.engine, key) or policy == "tgi"
    assert found.resolve_host() == chosen.resolve_host()
    assert deploy(read_back(found)) == deploy(found)
    assert [word for word in deploy(found).split() if word not in deploy(chosen).split()] in (
        [],
        ["--async-scheduling"],
    )


@pytest.mark.parametrize("offload", OFFLOAD, ids=str)
def test_kv_on_the_host_is_read_back(offload: dict[str, Any]) -> None:
    engine = {"enable_prefix_caching": True, "async_scheduling": True}
    chosen = scenario("vllm", engine, {"gpu": "h100", "kv_offload": offload})
    found = read_back(chosen)
    assert found.hardware == chosen.hardware
    assert deploy(found) == deploy(chosen)
    assert ("--kv-transfer-config" in deploy(chosen)) == (len(offload) > 1)


EXTRA = '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": %s}'


@pytest.mark.parametrize(
    ("flags", "offload"),
    [
        ("--kv-offloading-size 8 --kv-offloading-backend native", {"host_gib": 8}),
        ("--kv-transfer-config '" + EXTRA % '{"cpu_bytes_to_use": 4294967296, "block_size": 64}' + "'",
         {"host_gib": 4.0, "blocks_per_chunk": 4}),
        ("--kv-offloading-size 8 --kv-transfer-config '" + EXTRA % '{"cpu_bytes_to_use": 1, "eviction_policy": "arc"}'
         + "'", {"host_gib": 8, "policy": "arc"}),
        ("--kv-transfer-config '" + EXTRA % "{}" + "'", None),
        ("--kv-transfer-config '" + EXTRA % '{"cpu_bytes_to_use": 9, "spec_name": "Mine"}' + "'", None),
        ("--kv-transfer-config " + "'{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_both\"}'", None),
    ],
)  # fmt: skip
def test_flags_of_kv_offload_say_one_key(flags: str, offload: dict[str, Any] | None) -> None:
    start = read_source(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}")[0]
    found = make([start], gpu="h100")
    assert found.data["hardware"].get("kv_offload") == offload
    assert bool(found.read.not_modelled) == ("Nixl" in flags or "Mine" in flags)


def test_replicas_are_read_back() -> None:
    assert read_back(scenario("vllm", {}, {}), replicas=3).replicas == 3


EXPERTS = {"gpu": "h100", "enable_expert_parallel": True}


@pytest.mark.parametrize(
    ("model", "hardware", "router"),
    [("qwen3-30b-a3b", EXPERTS, "vllm_dp"), ("qwen3-30b-a3b", EXPERTS | {"tensor_parallel": 2}, "round_robin"),
     ("llama-3.1-8b", {"gpu": "h100"}, {"kind": "vllm_dp"})],
    ids=["shared experts", "another balancer", "the server's balancer"],
)  # fmt: skip
def test_data_parallel_ranks_are_one_server_and_read_back(model: str, hardware: dict[str, Any], router: Any) -> None:
    made = scenario("vllm", {}, hardware)
    ranks = {"model": model, "cost": {"kind": "profile"}, "replicas": 4, "router": router}
    chosen = scenarios.load({**made.model_dump(exclude_unset=True), **ranks})
    command, server = deploy(chosen), deployed(chosen, 8)
    assert "--data-parallel-size 4" in command
    assert "replicas" not in command
    assert ("its own balancer instead of round_robin" in command) == (router == "round_robin")
    assert not isinstance(server, str)
    assert (server.replicas, server.gpus) == (1, 8 * chosen.hardware.gpus)
    assert "--data-parallel-size 8" in " ".join(server.words)
    found = read_back(chosen)
    assert (found.replicas, found.routing.kind, found.hardware) == (4, "vllm_dp", chosen.hardware)
    assert deploy(found).partition("  #")[0] == command.partition("  #")[0]


def test_experts_that_no_flag_shares_are_remarked() -> None:
    shared = {"model": "qwen3-30b-a3b", "cost": {"kind": "profile"}, "replicas": 2, "workload": WORKLOAD}
    chosen = scenarios.load({**shared, "hardware": EXPERTS, "engine": {"policy": "tensorrt_llm"}})
    assert "no flag says hardware.enable_expert_parallel" in deploy(chosen, 2)


def test_servers_that_share_experts_apart_are_said() -> None:
    start = read_source("vllm serve Qwen/Qwen3-30B-A3B -dp 2 -ep  # on each of 3 replicas")[0]
    found = make([start], gpu="h100")
    assert (found.scenario.replicas, found.scenario.routing.kind) == (6, "round_robin")
    assert "warning: here all replicas share experts, not the 2 ranks of each server alone" in found.notes


@pytest.mark.parametrize("policy", NEAREST)
def test_the_nearest_server_of_a_policy_says_that_it_is_another(policy: str) -> None:
    chosen = scenario(policy, {}, {})
    assert "vLLM" in deploy(chosen).partition("  # ")[2]
    assert read_back(chosen).engine.parameter("max_num_seqs") == chosen.engine.parameter("max_num_seqs")


@pytest.mark.parametrize(
    ("policy", "key"),
    [("vllm", "max_queued_requests"), ("sglang", "max_num_queued_reqs"), ("tgi", "max_num_queued_tokens")],
)
def test_a_limit_of_the_queue_that_no_flag_says_is_remarked(policy: str, key: str) -> None:
    assert f"no flag says engine.{key} 9" in deploy(scenario(policy, {key: 9}, {}))
