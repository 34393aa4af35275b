"""A scenario's model with windows or states has KV groups, unless something speaks against them."""

from typing import Any

import pytest
from simulator.engine.parts.connected_groups import ConnectedGroups

import scenarios
from scenarios.assembly.replica_parts import build
from simulator.errors import InputError
from simulator.memory.grouped import GroupedBlocks
from tests.traffic import one_class

WINDOW: dict[str, Any] = {
    "model": {"base": "gpt-oss-20b", "max_model_len": 8000},
    "hardware": {"gpu": "h100"},
    "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 5e-5, "per_context_token_s": 0},
    "workload": one_class(40, 4, 2000, 40),
    "engine": {"policy": "vllm", "max_num_seqs": 64},
}


def with_engine(**keys: Any) -> scenarios.Scenario:
    return scenarios.load({**WINDOW, "engine": {**WINDOW["engine"], **keys}})


def test_a_window_takes_half_of_the_memory() -> None:
    grouped, whole = build(with_engine()), build(with_engine(disable_hybrid_kv_cache_manager=True))
    assert isinstance(grouped.make_blocks(100, 0), GroupedBlocks)
    assert grouped.kv_plan is not None
    assert whole.kv_plan is None
    assert grouped.kv.bytes_per_block * 2 == whole.kv.bytes_per_block
    engine: dict[str, Any] = WINDOW["engine"]
    sized = ((1500, engine), (750, {**engine, "disable_hybrid_kv_cache_manager": True}))
    runs = [
        scenarios.run(scenarios.load({**WINDOW, "hardware": {"gpu": "h100", "num_gpu_blocks": blocks}, "engine": keys}))
        for blocks, keys in sized
    ]
    assert runs[0].summary["completed"] == runs[1].summary["completed"] == 40
    assert runs[0].summary["mean_ttft_ms"] < runs[1].summary["mean_ttft_ms"]


def test_jumps_over_quiet_steps_change_nothing() -> None:
    scenario = with_engine(async_scheduling=True, enable_prefix_caching=True)
    fast, slow = (scenarios.run(scenario, fast_forward=fast) for fast in (True, False))
    assert fast.summary["mean_e2el_ms"] == slow.summary["mean_e2el_ms"]
    assert fast.requests.equals(slow.requests)


def test_where_groups_cannot_be_all_tokens_are_kept() -> None:
    assert build(with_engine(prefill_schedule_interval=4)).kv_plan is None
    with pytest.raises(InputError, match=r"there are no KV groups: .* cannot be combined with a cadence"):
        build(with_engine(prefill_schedule_interval=4, disable_hybrid_kv_cache_manager=False))


def test_adapters_go_beside_groups() -> None:
    plain, served = build(with_engine()), build(with_engine(max_loras=64))
    assert plain.kv_plan is not None
    assert served.kv_plan is not None
    assert served.kv_plan.num_blocks < plain.kv_plan.num_blocks
    entry = {**WINDOW["workload"]["classes"][0], "lora": {"adapters": 4}}
    asked = {**WINDOW, "workload": {**WINDOW["workload"], "classes": [entry]}}
    scenario = scenarios.load({**asked, "engine": {**WINDOW["engine"], "max_loras": 1, "enable_prefix_caching": True}})
    fast, slow = (scenarios.run(scenario, fast_forward=fast) for fast in (True, False))
    assert fast.summary == slow.summary
    assert fast.summary["lora_shut_out_rate"] > 0.3
    with pytest.raises(InputError, match="a layer with a state has other projections"):
        build(scenarios.load({**WINDOW, "model": "qwen3-next-80b-a3b", "engine": {"policy": "vllm", "max_loras": 2}}))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"policy": "continuous", "disable_hybrid_kv_cache_manager": False}, "continuous does not plan with them"),
        ({"prefix_cache_retention_interval": 24, "enable_prefix_caching": True}, "24 is no multiple of 16 tokens"),
        ({"prefix_match_unit": 7, "enable_prefix_caching": True}, "must divide the blocks"),
    ],
)
def test_settings_that_do_not_fit_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build(with_engine(**keys))
    assert said in str(caught.value)


def test_keys_of_groups_are_refused_without_them() -> None:
    llama = {**WINDOW, "model": "llama-3.1-8b", "engine": {"policy": "vllm", "prefix_match_unit": 16}}
    with pytest.raises(InputError, match="has no groups here"):
        build(scenarios.load(llama))
    small = {**WINDOW, "hardware": {"gpu": "h100", "num_gpu_blocks": 3000}, "model": "gpt-oss-20b"}
    with pytest.raises(InputError, match="max_model_len 131072 needs"):
        build(scenarios.load(small))


def offloading(model: Any = None, **keys: Any) -> scenarios.Scenario:
    """Turns of conversations whose KV goes to the host, and comes back when the GPU has forgotten it."""
    session = {"turns": {"dist": "fixed", "value": 4}, "think_time_s": 5, "context": "accumulate"}
    workload = {"requests": 40, "classes": [{**WINDOW["workload"]["classes"][0], "session": session}]}
    hardware = {"gpu": "h100", "num_gpu_blocks": 3000, "kv_offload": {"host_gib": 16, "blocks_per_chunk": 2}}
    engine = {**WINDOW["engine"], "enable_prefix_caching": True, **keys}
    model = model or {"base": "gpt-oss-20b", "max_model_len": 16000}
    return scenarios.load({**WINDOW, "model": model, "hardware": hardware, "workload": workload, "engine": engine})


def test_groups_are_offloaded() -> None:
    assert isinstance(build(offloading()).make_blocks(100, 0), ConnectedGroups)
    runs = [scenarios.run(offloading(async_scheduling=True), fast_forward=fast) for fast in (True, False)]
    assert runs[0].summary["completed"] == 40
    assert runs[0].summary["kv_offload_hit_rate"] > 0
    assert runs[0].requests.equals(runs[1].requests)


def test_what_is_not_offloaded_by_group_is_refused() -> None:
    with pytest.raises(InputError, match=r"48 is no multiple of 32 tokens, a chunk of hardware\.kv_offload"):
        build(offloading(prefix_cache_retention_interval=48))
    states = {"base": "qwen3-next-80b-a3b", "max_model_len": 16000}
    with pytest.raises(
        InputError, match=r"KV offload cannot be combined with layers with a state.*hardware\.kv_offload"
    ):
        build(offloading(states, disable_hybrid_kv_cache_manager=False))


def drafting(method: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "num_speculative_tokens": 3, "acceptance": {"mean_length": 2.5}, **more}


@pytest.mark.parametrize(("method", "pages"), [("ngram", 12), ("eagle3", 13)])
def test_groups_go_with_drafts(method: str, pages: int) -> None:
    """Of 12 layers with a window and 12 that keep all, a head's layer joins the latter."""
    scenario = with_engine(speculative_config=drafting(method), enable_prefix_caching=True, async_scheduling=True)
    plain = build(with_engine(enable_prefix_caching=True, async_scheduling=True))
    made = build(scenario)
    assert made.kv_plan is not None
    assert made.kv.bytes_per_block * 12 == plain.kv.bytes_per_block * pages
    runs = [scenarios.run(scenario, fast_forward=fast) for fast in (True, False)]
    assert runs[0].summary["completed"] == 40
    assert runs[0].requests.equals(runs[1].requests)


@pytest.mark.parametrize(
    ("model", "drafts", "said"),
    [
        ("gpt-oss-20b", drafting("eagle3", disable_lookahead_block_hashes=True), "disable_lookahead_block_hashes"),
        ("qwen3-next-80b-a3b", drafting("ngram"), "layers with a state"),
    ],
)
def test_drafts_that_do_not_go_with_groups_are_refused(model: str, drafts: dict[str, Any], said: str) -> None:
    hardware = {"gpu": "h100", "tensor_parallel": 4}
    data = {**WINDOW, "model": {"base": model, "max_model_len": 8000}, "hardware": hardware}
    engine = {**WINDOW["engine"], "speculative_config": drafts}
    assert build(scenarios.load({**data, "engine": engine})).kv_plan is None
    with pytest.raises(InputError, match=said):
        build(scenarios.load({**data, "engine": {**engine, "disable_hybrid_kv_cache_manager": False}}))
