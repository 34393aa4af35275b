"""`hardware.kv_offload`: what it may say, what is refused and where, and what a run with it leaves behind."""

from typing import Any

import pytest

import scenarios
from reports.plots.prefix_cache import by_place, kv_tiers
from scenarios.assembly.fleet_parts import build_fleet
from scenarios.assembly.replica_parts import build
from scenarios.assembly.workloads import build_workload
from scenarios.bound.bound import bound_rate
from scenarios.parity import _settings
from scenarios.plan.answer import deployed
from simulator.errors import InputError
from simulator.metrics.usage import prompt_tokens_asked
from tests.reports.plots.test_pictures import everything

CLASSES = [
    {
        "name": "chat",
        "arrival": {"process": "poisson", "rate": 4},
        "input": {"dist": "fixed", "value": 300},
        "output": {"dist": "fixed", "value": 40},
    }
]


def scenario(offload: Any, hardware: Any = None, **engine: Any) -> Any:
    return {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200", "num_gpu_blocks": 300, **(hardware or {}), "kv_offload": offload},
        "cost": {"kind": "roofline"},
        "workload": {"requests": 40, "classes": CLASSES},
        "engine": {"policy": "vllm", "enable_prefix_caching": True, **engine},
    }


@pytest.mark.parametrize(
    ("offload", "key", "told"),
    [
        ({}, "host_gib", "missing"),
        ({"host_gib": 0}, "host_gib", "above 0"),
        ({"host_gib": 4, "policy": "fifo"}, "policy", "lru"),
        ({"host_gib": 4, "blocks_per_chunk": 0}, "blocks_per_chunk", "at least 1"),
        ({"host_gib": 4, "link_gb_s": 0}, "link_gb_s", "at least"),
        ({"host_gb": 4}, "host_gb", "GiB"),
        ({"host_gib": 4, "eviction": "arc"}, "eviction", "unknown key"),
        ({"host_gib": 4, "tiers": [{}]}, "tiers.0.type", "missing"),
        ({"host_gib": 4, "tiers": [{"type": "disk"}]}, "tiers.0.type", "fs"),
        ({"host_gib": 4, "tiers": [{"type": "fs", "size_gib": 0}]}, "tiers.0.size_gib", "above 0"),
        ({"host_gib": 4, "tiers": [{"type": "fs", "bandwidth_gb_s": 0}]}, "tiers.0.bandwidth_gb_s", "at least"),
        ({"host_gib": 4, "tiers": [{"type": "fs", "latency_s": -1}]}, "tiers.0.latency_s", "at least 0"),
        ({"host_gib": 4, "tiers": [{"type": "fs", "policy": "fifo"}]}, "tiers.0.policy", "arc"),
        ({"host_gib": 4, "tiers": [{"type": "fs", "link_gb_s": 1}]}, "tiers.0.link_gb_s", "unknown key"),
        ({"host_gib": 4, "tiers": [{"type": "fs"}] * 3}, "tiers", "at most 2"),
    ],
)
def test_a_value_that_it_cannot_take_is_refused(offload: dict[str, Any], key: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        scenarios.load(scenario(offload))
    assert f"hardware.kv_offload.{key}" in str(refused.value)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "hardware", "told"),
    [
        ({"policy": "continuous", "enable_prefix_caching": False}, {}, "does not plan with KV on the host"),
        ({"version": "0.30"}, {}, "0.33"),
        ({"enable_prefix_caching": False}, {}, "engine.enable_prefix_caching"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "acceptance": {"mean_length": 2}}}, {},
         "drafts"),
        ({"prefill_schedule_interval": 4}, {}, "cadence"),
        ({"order": "sjf"}, {}, "fcfs and priority"),
    ],
)  # fmt: skip
def test_what_it_is_not_put_together_with_is_refused(engine: Any, hardware: Any, told: str) -> None:
    with pytest.raises(InputError) as refused:
        build(scenarios.load(scenario({"host_gib": 4}, hardware, **engine)))
    assert "hardware.kv_offload" in str(refused.value)
    assert told in str(refused.value)


def test_a_host_without_room_for_a_chunk_is_refused() -> None:
    with pytest.raises(InputError, match=r"kv_offload\.host_gib: .*do not hold one chunk"):
        build(scenarios.load(scenario({"host_gib": 0.001, "blocks_per_chunk": 4})))


@pytest.mark.parametrize(
    ("offload", "told"),
    [
        ({"tiers": [{"type": "fs", "size_gib": 0.001}]}, r"tiers\.0\.size_gib: .*do not hold one chunk"),
        ({"tiers": [{"type": "fs"}], "store_threshold": 2}, r"store_threshold: .*cannot be combined with tiers"),
    ],
)
def test_tiers_that_cannot_be_are_refused(offload: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        build(scenarios.load(scenario({"host_gib": 4, **offload})))


def test_what_the_host_forgets_is_found_in_a_further_tier() -> None:
    """The host has room for one conversation, the tier for all; the tier's link and latency are waited for."""
    session = {"turns": {"dist": "fixed", "value": 4}, "think_time_s": 5, "context": "accumulate"}
    found = {}
    for name, latency_s in (("none", None), ("near", 0.0), ("far", 0.2)):
        tiers = [] if latency_s is None else [{"type": "fs", "bandwidth_gb_s": 1, "latency_s": latency_s}]
        data = scenario({"host_gib": 0.3, "tiers": tiers}, {"num_gpu_blocks": 150})
        data["workload"]["classes"] = [{**CLASSES[0], "session": session}]
        found[name] = scenarios.run(data)
    none, near, far = found["none"], found["near"], found["far"]
    assert "kv_tier_1_hit_rate" not in none.summary
    assert near.summary["kv_offload_hit_rate"] > 2 * none.summary["kv_offload_hit_rate"]
    assert 0.2 < near.summary["kv_tier_1_hit_rate"] <= near.summary["kv_offload_hit_rate"]
    assert far.summary["mean_ttft_ms"] > near.summary["mean_ttft_ms"] + 100
    assert far.summary["completed"] == near.summary["completed"] == 40
    copies = near.records.copies
    assert copies is not None
    for stored in (0, 1):
        chosen = (copies.tier == 1) & (copies.stored == stored)
        seconds = (copies.end_s - copies.start_s)[chosen]
        assert seconds == pytest.approx(copies.bytes[chosen] / 1e9)
        assert (copies.start_s[chosen][1:] >= copies.end_s[chosen][:-1] - 1e-9).all(), "one after the other"
    written = (copies.tier == 1) & (copies.stored == 1)
    assert copies.bytes[written].sum() <= copies.bytes[(copies.tier == 0) & (copies.stored == 1)].sum()
    places = by_place(near.records)
    _, asked = prompt_tokens_asked(near.records)
    assert places.sum() == pytest.approx(asked.sum())
    assert places[2].sum() > 0
    said = everything(kv_tiers([("tiers", near.records), ("host", none.records)]))
    for text in ("host", "first further tier", "computed"):
        assert text in said
    assert "second further tier" not in said


def test_sizes_are_of_all_gpus_of_a_replica() -> None:
    """An 8B model has 128 KiB of KV for a token: 2 MiB for a block of 16."""
    for gpus in (1, 2):
        made = build(scenarios.load(scenario({"host_gib": 4}, {"tensor_parallel": gpus})))
        config = made.connector.config  # type: ignore[union-attr] # it is there
        assert (config.num_chunks, config.block_bytes) == (2048, 2 << 20)
        assert config.bandwidth == scenarios.load(scenario({"host_gib": 4})).resolve_gpu().host_link_gb_s * 1e9 * gpus


def test_a_run_tells_what_was_found_and_copied() -> None:
    session = {"turns": {"dist": "fixed", "value": 4}, "think_time_s": 5, "context": "accumulate"}
    data = scenario({"host_gib": 4})
    data["workload"]["classes"] = [{**CLASSES[0], "session": session}]
    run = scenarios.run(data)
    copies = run.records.copies
    assert copies is not None
    assert run.summary["completed"] == 40
    assert 0 < run.summary["kv_offload_hit_rate"] < 1
    assert run.summary["kv_offload_load_gib"] == pytest.approx(copies.bytes[copies.stored == 0].sum() / 2**30)
    assert 0 < run.summary["kv_offload_store_busy"] < 1
    without = scenarios.run(scenario(None))
    assert without.records.copies is None
    assert not any("kv_offload" in key for key in without.summary)
    assert "kv_offload" not in without.scenario.resolved()["hardware"]


def test_a_command_names_the_host_and_a_bound_is_refused() -> None:
    given = scenarios.load(scenario({"host_gib": 64}))
    found = deployed(given)
    assert not isinstance(found, str)
    assert "--kv-offloading-size 64" in " ".join(found.words)
    assert bound_rate(given, build_workload(given)) is None
    without = scenarios.load(scenario(None))
    assert bound_rate(without, build_workload(without)) is not None


def test_a_real_scheduler_is_not_told_of_copies() -> None:
    given = scenarios.load(scenario({"host_gib": 64}))
    with pytest.raises(InputError, match=r"hardware\.kv_offload: .* a real scheduler: copies"):
        _settings(build_fleet(given)[0], "vllm")
