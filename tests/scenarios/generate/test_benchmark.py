"""`workload: {benchmark: ...}` against the same client written out."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import scenarios
from scenarios.generate import GeneratedWorkload, generate

CLIENT = {"client": "inferencex", "max_concurrency": 3, "input_len": 1024, "output_len": 100}


def of(**changes: Any) -> GeneratedWorkload:
    return GeneratedWorkload.model_validate({"benchmark": CLIENT | changes})


def lengths(low: int, high: int) -> dict[str, object]:
    return {"dist": "uniform", "min": low, "max": high} if low < high else {"dist": "fixed", "value": high}


@pytest.mark.parametrize(
    ("client", "requests", "prompt", "answer"),
    [
        ("inferencex", 30, lengths(820, 1024), lengths(80, 100)),
        ("vllm_bench", 1000, lengths(1024, 1024), lengths(100, 100)),
    ],
)
def test_a_benchmarks_client_is_its_users(client: str, requests: int, prompt: object, answer: object) -> None:
    written = {
        "requests": requests,
        "arrival": {"process": "closed_loop", "concurrency": 3},
        "classes": [{"name": client, "input": prompt, "output": answer}],
    }
    runs = [
        scenarios.run(scenarios.load({"name": "same", "workload": workload})).requests
        for workload in ({"benchmark": {**CLIENT, "client": client}}, written)
    ]
    assert runs[0].equals(runs[1])
    assert len(runs[0]) == requests


def test_a_number_of_prompts_may_be_named() -> None:
    (loop,) = generate(of(num_prompts=7), 0).loops
    assert loop.requests == 7


def test_lengths_lie_between_the_shares_of_the_client() -> None:
    (loop,) = generate(of(), 0).loops
    drawn = loop.draw(2000).input_tokens
    assert (int(np.min(drawn)), int(np.max(drawn))) == (820, 1024)


@pytest.mark.parametrize("key", ["requests", "duration_s", "classes", "preset", "arrival"])
def test_nothing_stands_beside_a_benchmark(key: str) -> None:
    values: dict[str, Any] = {
        "requests": 3,
        "duration_s": 3.0,
        "preset": "chat",
        "arrival": {"process": "poisson", "rate": 1.0},
        "classes": [{"name": "one", "input": lengths(1, 1), "output": lengths(1, 1)}],
    }
    with pytest.raises(ValidationError, match="the benchmark says all that its client sends"):
        GeneratedWorkload.model_validate({"benchmark": CLIENT, key: values[key]})
