"""Prompts are tokenised one after another before the engine has them, where clients react to answers."""

from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.schema.scenario import Scenario
from scenarios.servers import server_of

EACH_S = 0.001


def fixed(tokens: int) -> dict[str, Any]:
    return {"dist": "fixed", "value": tokens}


def served(arrival: dict[str, Any], prompt_s: float) -> Any:
    """Two requests of 100 tokens each, at once."""
    return scenarios.run({
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100"},
        "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 0, "per_context_token_s": 0},
        "front_end": {"fixed_s": 0.002, "per_running_s": 0, "per_prompt_token_s": prompt_s},
        "workload": {
            "requests": 2,
            "arrival": arrival,
            "classes": [{"name": "a", "input": fixed(100), "output": fixed(3)}],
        },
    })  # fmt: skip


def ttft_s(result: Any) -> Any:
    requests = result.records.requests
    return requests.first_token_s - requests.arrival_s


def test_users_wait_for_the_prompts_before_theirs() -> None:
    """The first prompt is tokenised after 0.1 s, the second after 0.2 s: they no longer share a step of 10 ms."""
    loop = {"process": "closed_loop", "concurrency": 2}
    assert ttft_s(served(loop, 0.0)) == pytest.approx([0.012, 0.012])
    result = served(loop, EACH_S)
    assert ttft_s(result) == pytest.approx([0.112, 0.212])
    assert result.records.requests.arrival_s.tolist() == [0.0, 0.0]
    assert result.summary["provenance"]["front_end"]["per_prompt_token_s"] == EACH_S


def test_requests_that_wait_for_no_answer_are_late_by_their_own_prompts() -> None:
    """The engine has them as they arrive."""
    arrival = {"process": "poisson", "rate": 1.0}
    plain, late = served(arrival, 0.0), served(arrival, EACH_S)
    assert ttft_s(late) == pytest.approx(ttft_s(plain) + 100 * EACH_S)
    assert np.array_equal(late.records.rows.start_s, plain.records.rows.start_s)


@pytest.mark.parametrize(("vocab", "each_s"), [(128256, 6e-6), (151936, 10e-6)], ids=["Llama 3", "others"])
def test_a_prompt_token_takes_as_long_as_the_models_tokeniser(vocab: int, each_s: float) -> None:
    server = server_of("vllm")
    front_end = server.front_end.of(vocab)
    assert front_end.per_prompt_token_s == each_s
    assert server.source_of_front_end(front_end) == server.front_end_source


def test_a_scenario_takes_its_models_tokeniser() -> None:
    for model, each_s in (("llama-3.1-8b", 6e-6), ("qwen3-32b", 10e-6)):
        data = {"name": "a", "model": model, "hardware": {"gpu": "h100"}, "engine": {"policy": "vllm"}, "front_end": {}}
        workload = {"preset": "chat"}
        found = Scenario.model_validate({**data, "workload": workload})
        assert found.resolve_front_end().per_prompt_token_s == each_s


def test_the_engine_sees_a_prompt_when_it_is_tokenised() -> None:
    """Four users at once, one slot: each is named as waiting once its prompt is there, and rejected no earlier."""
    loop = {"process": "closed_loop", "concurrency": 4}
    chat = {"name": "a", "input": fixed(40), "output": fixed(30)}
    for control in (None, {"ttl_s": 0.05}, {"queue_depth_threshold": 1, "ttl_s": 0.05}):
        scenario = {
            "model": "llama-3.1-8b",
            "hardware": {"gpu": "h100"},
            "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 0, "per_context_token_s": 0},
            "engine": {"max_num_seqs": 1},
            "front_end": {"fixed_s": 0, "per_running_s": 0, "per_prompt_token_s": EACH_S},
            "workload": {"requests": 4, "arrival": loop, "classes": [chat]},
            "flow_control": control,
        }
        fast, stepwise = (scenarios.run(scenario, log_decisions=True, fast_forward=each) for each in (True, False))
        assert fast.decisions == stepwise.decisions
        for step in fast.decisions or ():
            named = {int(name[2:]) for name in (*step["waiting"], *step["running"])}
            assert named <= {row for row in range(4) if 0.04 * (row + 1) <= step["t_start_s"] + 1e-9}
        passages = fast.records.passages
        if passages is not None:
            assert passages.wait_s.max() <= 0.05 + 1e-9, "it waits from when its prompt is there"
            assert (passages.wait_s == 0.0).sum() >= 1
            came_s = 0.04 * (passages.row + 1)
            np.testing.assert_allclose(passages.at_s - passages.wait_s, came_s, atol=1e-9)
