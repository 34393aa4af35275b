"""Small scenarios with a known answer, and a laboratory for them."""

from collections.abc import Mapping
from typing import Any

from scenarios.plan.goal import Goal, parse_goal
from scenarios.plan.trial import Laboratory, Traffic
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from tests.traffic import one_class

ONE_AT_A_TIME: Mapping[str, Any] = {
    "name": "one-at-a-time",
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "h100"},
    "cost": {"kind": "linear", "base_s": 0.1, "per_token_s": 0.0, "per_context_token_s": 0.0},
    "workload": one_class(400, 1.0, 10, 5, name="alike", process="constant"),
    "engine": {"policy": "chunked_prefill", "max_num_seqs": 1, "max_num_batched_tokens": 64},
}
"""Requests of five steps of 0.1 s, one after the other, at equal gaps: up to 2/s none waits, above it all do."""

CHAT: Mapping[str, Any] = {
    "name": "chat",
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "a100-80gb", "num_gpu_blocks": 600},
    "cost": {"kind": "linear", "base_s": 0.005, "per_token_s": 2e-5, "per_context_token_s": 5e-7},
    "workload": one_class(300, 10, (10, 900), (1, 60), name="chat"),
    "engine": {"policy": "chunked_prefill", "max_num_seqs": 8, "max_num_batched_tokens": 256},
    "slo": {"ttft_ms": 500, "tpot_ms": 50},
}


def chat(**changes: Any) -> Scenario:
    """The chat, with top-level keys replaced."""
    return load({**CHAT, **changes})


def laboratory(scenario: Scenario, *texts: str, budget_s: float | None = None) -> Laboratory:
    """A laboratory for a scenario's traffic and these goals."""
    goals: list[Goal] = [parse_goal(text, scenario) for text in texts]
    return Laboratory(Traffic(scenario), goals, budget_s)
