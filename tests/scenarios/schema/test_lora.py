"""Adapters in a scenario: what is drawn, what a trace says, and what is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.assembly.workloads import build_workload
from simulator.errors import InputError

CLASS = {
    "name": "chat",
    "input": {"dist": "fixed", "value": 40},
    "output": {"dist": "fixed", "value": 8},
    "lora": {"adapters": 3, "zipf": 1.0},
}


def scenario(engine: dict[str, Any] | None = None, **more: Any) -> scenarios.Scenario:
    workload = {"requests": 400, "arrival": {"process": "poisson", "rate": 40}, "classes": [{**CLASS, **more}]}
    return scenarios.load({"name": "adapters", "engine": {"policy": "vllm", **(engine or {})}, "workload": workload})


def test_popular_adapters_are_asked_for_more_often() -> None:
    asked = Counter(build_workload(scenario({"max_loras": 2})).lora or ())
    assert asked["chat-1"] > asked["chat-2"] > asked["chat-3"] > 0
    assert asked["chat-1"] / 400 == pytest.approx(6 / 11, abs=0.08)


def test_a_session_keeps_its_adapter() -> None:
    workload = build_workload(scenario({"max_loras": 2}, session={"turns": 4}))
    by_session: dict[str | None, set[str | None]] = {}
    for session, lora in zip(workload.session_ids or (), workload.lora or (), strict=True):
        by_session.setdefault(session, set()).add(lora)
    assert len(by_session) == 100
    assert all(len(each) == 1 for each in by_session.values())


def test_the_adapters_of_others_change_nothing_but_the_lora() -> None:
    plain = build_workload(scenario(lora=None))
    drawn = build_workload(scenario({"max_loras": 2}))
    assert plain.lora is None
    assert plain.arrival_s.tolist() == drawn.arrival_s.tolist()


def test_adapters_slow_a_run_and_take_memory() -> None:
    with_loras = scenarios.run(scenario({"max_loras": 2, "max_lora_rank": 64}))
    plain = scenarios.run(scenario(lora=None))
    assert with_loras.summary["mean_tpot_ms"] > plain.summary["mean_tpot_ms"] + 2
    assert scenario({"max_loras": 2}).resolved()["engine"]["max_loras"] == 2
    assert "max_loras" not in scenario(lora=None).resolved()["engine"]


def test_a_trace_names_adapters(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_time_s,input_tokens,output_tokens,lora\n0,9,2,sql\n1,9,2,\n", encoding="utf-8")
    given = {"name": "t", "workload": {"trace": {"path": str(path)}}}
    assert build_workload(scenarios.load({**given, "engine": {"max_loras": 1}})).lora == ["sql", None]
    with pytest.raises(InputError, match="takes no adapters") as error:
        build_workload(scenarios.load(given))
    assert error.value.hint == "give engine.max_loras, as in max_loras: 4"


def test_drafts_do_not_change_who_is_shut_out() -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": {"mean_length": 2}}
    result = scenarios.run(scenario({"max_loras": 1, "speculative_config": drafts}))
    assert result.summary["completed"] == 400
    assert result.summary["lora_shut_out_rate"] > 0.2
    assert result.summary["spec_decode_num_drafts"] > 0


def test_a_rank_without_adapters_is_refused() -> None:
    with pytest.raises(InputError, match=r"engine.max_lora_rank: the engine takes no adapters"):
        scenarios.run(scenario({"max_lora_rank": 8}, lora=None))


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ({}, "workload.classes.0.lora: the engine takes no adapters"),
        ({"policy": "sglang"}, "workload.classes.0.lora: the policy sglang serves no adapters"),
        ({"max_loras": 0}, "engine.max_loras"),
        ({"max_loras": 2, "version": "0.20"}, "max_loras is known as vLLM 0.33 has it"),
        ({"max_loras": 2, "prefill_schedule_interval": 4}, "max_loras cannot be combined with prefill_schedule"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(engine: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        scenarios.run(scenario(engine))
    assert text in str(error.value)
