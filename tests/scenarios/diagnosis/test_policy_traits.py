"""What rules and advice know of a policy: what it says of itself, as it is configured."""

import math
from pathlib import Path
from typing import Any

import pytest

from scenarios.diagnosis.diagnose import diagnose
from scenarios.diagnosis.evidence import Evidence, Finding
from scenarios.plan.bottleneck import Shares
from scenarios.plan.candidate import make_candidate
from scenarios.plan.goal import Goal
from scenarios.plan.plan import proposals
from scenarios.runs.runner import run
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from tests.scenarios.plan.cases import chat

TENSORRT_LLM = [
    "engine.policy=tensorrt_llm",
    "cost.kind=roofline",
    "engine.block_size=16",
    "engine.async_scheduling=false",
]
BROKEN = Path(__file__).parents[2] / "data" / "diagnosis" / "broken"
OWN = """
from dataclasses import dataclass
from simulator.plan import Traits
from simulator.policies.static import Static

@dataclass(frozen=True, slots=True)
class Silent(Static):
    "It overrides what its base says."

    @property
    def traits(self) -> Traits:
        return Traits(keeps_finished=True)

@dataclass(frozen=True, slots=True)
class Whole(Silent):
    @property
    def traits(self) -> Traits:
        return Traits(keeps_finished=True, reserves=True, whole_prompts=True)
"""


def evidence(scenario: Scenario) -> Evidence:
    result = run(scenario)
    return Evidence(result.scenario, result.records, result.summary)


def findings(name: str, *overrides: str) -> dict[str, Finding]:
    scenario = load(BROKEN / f"{name}.yaml", list(overrides))
    result = run(scenario)
    found = diagnose(result.scenario, result.records, result.summary)
    return {each.rule.name: each for each in found.found}


def advised(engine: dict[str, Any]) -> list[dict[str, Any]]:
    candidate = make_candidate(chat(engine=engine), {})
    return [dict(setting) for setting in proposals(candidate, Goal("p99_ttft_ms", 300.0), Shares({}))]


@pytest.mark.parametrize("capacity", ["guaranteed_no_evict", "static_batch", "max_utilization"])
def test_tensorrt_llm_reserves_unless_it_may_pause(capacity: str) -> None:
    given = [*TENSORRT_LLM, f"engine.capacity_policy={capacity}", "workload.requests=100"]
    found = evidence(load(BROKEN / "memory-bound.yaml", given))
    requests, late = found.records.requests, found.late.row
    reserved = requests.input_tokens[late] + requests.max_tokens[late]
    taken = reserved if capacity != "max_utilization" else requests.input_tokens[late] + 1
    assert len(late)
    assert found.traits.reserves == (capacity != "max_utilization")
    assert found.need_blocks == math.ceil(float(taken.mean()) / 16)


def test_a_policy_that_reserves_is_told_to_take_memory_as_answers_grow() -> None:
    found = findings("memory-bound", *TENSORRT_LLM)["memory-bound"]
    assert "reserves memory for answers" in found.claim.words
    assert dict(found.claim.remedies[0].change) == {"engine.policy": "chunked_prefill"}


def test_vllm_before_v1_is_told_to_try_chunks_only_where_it_has_none() -> None:
    assert advised({"policy": "vllm_v0"})[0] == {"engine.enable_chunked_prefill": True}
    chunks = advised({"policy": "vllm_v0", "enable_chunked_prefill": True})
    assert chunks
    assert not any("engine.policy" in setting for setting in chunks)
    found = findings("chunk-too-large", "engine.policy=vllm_v0", "engine.enable_chunked_prefill=true")
    remedies = found["chunk-too-large"].claim.remedies
    assert all(set(remedy.change) == {"engine.max_num_batched_tokens"} for remedy in remedies)


def test_chunks_that_were_switched_off_are_switched_on() -> None:
    off = {"policy": "vllm", "enable_chunked_prefill": False}
    assert advised(off)[0] == {"engine.enable_chunked_prefill": True}
    assert advised({**off, "policy": "tensorrt_llm"})[0] == {"engine.enable_chunked_prefill": True}
    assert advised({"policy": "orca"})[0] == {"engine.policy": "chunked_prefill"}  # has none to switch on


def test_prompts_that_are_cut_fit_beside_answers() -> None:
    """Only whole prompts wait for answers to end; a long one in chunks is told of by other rules."""
    found = findings("whole-prompts")["whole-prompts"]
    changes = [dict(remedy.change) for remedy in found.claim.remedies]
    longest, slots = 8187, 2048
    assert changes == [{"engine.max_num_batched_tokens": longest + slots}, {"engine.enable_chunked_prefill": True}]
    assert "whole-prompts" not in findings("whole-prompts", "engine.enable_chunked_prefill=true")


def test_a_policy_of_ones_own_is_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    silent, whole = ({"policy": f"{tmp_path}/own.py:{name}"} for name in ("Silent", "Whole"))
    assert not evidence(chat(engine=silent)).traits.reserves
    assert evidence(chat(engine=whole)).traits.reserves
    assert not any("engine.policy" in setting for setting in advised(silent))
    assert advised(whole)[0] == {"engine.policy": "chunked_prefill"}
