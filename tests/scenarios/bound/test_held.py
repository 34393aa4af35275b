"""Memory bounds of models whose layers keep different things: no run holds less, and none is better."""

from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.assembly.replica_parts import build
from scenarios.bound.bound import bound
from scenarios.bound.charges import HeldBlocks
from simulator.metrics.summary import METRICS
from tests.traffic import one_class

MODELS: dict[str, dict[str, Any]] = {
    "windows and all": {"base": "gpt-oss-20b", "max_model_len": 4000},
    "windows alone": {"base": "llama-3.1-8b", "max_model_len": 4000, "layer_types": "W", "sliding_window": 512},
    "states": {"base": "nemotron-nano-9b-v2", "max_model_len": 4000},
}


def crowd(model: str, blocks: int, seqs: int) -> scenarios.Scenario:
    """Requests that come at once, steps that cost the same whatever is in them, and few blocks."""
    return scenarios.load({
        "model": MODELS[model],
        "hardware": {"gpu": "h100", "num_gpu_blocks": blocks},
        "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 0, "per_context_token_s": 0},
        "workload": one_class(60, 1000, (700, 1500), 60),
        "engine": {"policy": "vllm", "max_num_seqs": seqs, "max_num_batched_tokens": 512, "async_scheduling": False},
    })  # fmt: skip


@pytest.mark.parametrize(("model", "blocks"), [("windows and all", 1500), ("windows alone", 500), ("states", 90)])
def test_no_run_betters_a_memory_bound_and_memory_is_what_binds(model: str, blocks: int) -> None:
    scenario = crowd(model, blocks, 256)
    result = scenarios.run(scenario)
    assert result.workload is not None
    found = bound(scenario, result.workload).metrics
    for key, one in found.items():
        assert METRICS[key].better * (one.value - float(result.summary[key])) >= 0, key
    best = found["output_throughput"]
    assert "memory" in best.by
    assert f"{blocks - 1:,} KV blocks in memory" in best.assumes
    assert result.summary["output_throughput"] > 0.6 * best.value


@pytest.mark.parametrize(("model", "slack"), [("windows and all", 3), ("windows alone", 2), ("states", 8)])
def test_a_request_alone_holds_at_least_what_is_proved_and_little_more(model: str, slack: int) -> None:
    scenario = crowd(model, 3000, 1)
    parts = build(scenario)
    assert parts.kv_plan is not None
    held = HeldBlocks.of(parts.kv_plan, parts.kv.usable)
    records = scenarios.run(scenario).records
    rows = records.rows
    decodes = (rows.decoding == 1) & (rows.prefilling == 0)
    context = rows.context_tokens[decodes].astype(np.float64)
    used = records.step_used_blocks[rows.first_step[decodes]]
    assert len(used) > 20
    more = used - np.ceil(context * held.per_token + held.beside(context) - 1e-9)
    assert more.min() >= 0
    assert more.max() <= slack
