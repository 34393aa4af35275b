"""A thousand calls of nonsense: each gets an answer or an error in OpenAI's shape, and no block is lost."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from tests.scenarios.serve.client import Answer, Client, served

KEYS = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos", "n", "stop",
    "stream", "stream_options", "seed", "temperature", "priority", "user", "echo", "logprobs", "tokens", "top_p",
)  # fmt: skip
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/models", "/metrics", "/v1", "/")


def value(rng: random.Random, depth: int = 0) -> Any:
    plain: list[Any] = [
        None,
        True,
        -1,
        0,
        1,
        7,
        2**40,
        -(2**70),
        0.5,
        1e300,
        float("nan"),
        "",
        "x",
        "\ud800",
        "a\nb" * 9,
        "[",
        [],
    ]
    if depth > 2 or rng.random() < 0.6:
        return rng.choice(plain)
    if rng.random() < 0.5:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice([*KEYS, "role", "content", "type", "text"]): value(rng, depth + 1) for _ in range(3)}


def body(rng: random.Random) -> Any:
    """Mostly a good call with a key or two that are not."""
    if rng.random() < 0.05:
        return rng.choice([b"", b"{", b"nul", b'"x"', b"\xff\xfe", b"[" * 5000, b"1e999"])
    good: dict[str, Any] = {"prompt": "why " * rng.randrange(1, 200), "max_tokens": rng.randrange(1, 60)}
    if rng.random() < 0.5:
        good = {"messages": [{"role": "user", "content": good["prompt"]}], "max_tokens": good["max_tokens"]}
    good["stream"] = rng.random() < 0.5
    for _ in range(rng.randrange(3)):
        good[rng.choice(KEYS)] = value(rng)
    return good


def test_nonsense_gets_an_answer_and_loses_no_block(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(7)

    async def talk(client: Client) -> list[Answer]:
        calls = []
        for _ in range(1000):
            leaves = rng.uniform(0, 0.5) if rng.random() < 0.2 else None
            headers = {"x-request-id": rng.choice(["a", "b c", "\x00", "é" * 300])} if rng.random() < 0.3 else {}
            path = rng.choices(PATHS, [8, 8, 1, 1, 1, 0.2, 0.2, 0.2])[0]
            calls.append(asyncio.create_task(client.call(path, body(rng), headers=headers, leave_after_s=leaves)))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.expovariate(50))
        return await asyncio.gather(*calls)

    overrides = ("hardware.num_gpu_blocks=300", "engine.policy=vllm", "engine.enable_prefix_caching=true")
    answers, serving, _ = served(tmp_path / "run", talk, *overrides)
    statuses = {answer.status for answer in answers}
    assert {200, 400, 404} <= statuses <= {200, 400, 404, 405, 503}  # 503: to a client that has gone
    for answer in answers:
        if answer.status != 200:
            assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in capfd.readouterr().err
    assert not serving.engine._tickets, "a call is still under way"
    for replica in serving.engine.live.replicas:
        assert replica.state.blocks.num_free == replica.state.blocks.num_blocks
