"""What clients ask and get."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from scenarios.serve.submission import Tokenizer
from simulator.results.records import Status
from tests.scenarios.serve.client import Answer, Client, served

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello there"}]


def ask(tmp_path: Path, path: str, body: Any, *overrides: str, **options: Any) -> Answer:
    async def talk(client: Client) -> Answer:
        return await client.call(path, body)

    return served(tmp_path / "run", talk, *overrides, **options)[0]


def test_whole_completion(tmp_path: Path) -> None:
    answer = ask(
        tmp_path, COMPLETIONS, {"model": "llama-3.1-8b", "prompt": "one two three", "max_tokens": 7, "ignore_eos": True}
    )
    assert answer.status == 200
    [choice] = answer.json["choices"]
    assert len(choice["text"].split()) == 7
    assert choice["finish_reason"] == "length"
    assert answer.json["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}


def test_stream_has_the_tokens_one_by_one_and_the_usage_last(tmp_path: Path) -> None:
    body = {
        "messages": HELLO,
        "max_tokens": 5,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = ask(tmp_path, CHAT, body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    first, *tokens, usage, done = answer.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [len(token["choices"][0]["delta"]["content"].split()) for token in tokens] == [1] * 5
    assert [token["choices"][0]["finish_reason"] for token in tokens] == [None] * 4 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 5
    assert done == "[DONE]"


def test_tokens_come_when_the_run_folder_says(tmp_path: Path) -> None:
    import pandas as pd

    body = {"prompt": list(range(700)), "max_tokens": 9, "ignore_eos": True, "stream": True}
    answer = ask(tmp_path, COMPLETIONS, body, "front_end={fixed_s: 0.03, per_running_s: 0}")
    [request] = pd.read_csv(tmp_path / "run/requests.csv.gz").to_dict("records")
    assert answer.times[0] * 1000 == pytest.approx(request["ttft_ms"], abs=1e-3)
    assert (answer.times[8] - answer.times[0]) / 8 * 1000 == pytest.approx(request["tpot_ms"], abs=1e-3)


def test_time_scale_is_a_factor_on_the_wall_clock(tmp_path: Path) -> None:
    body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "stream": True}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    slow = ask(tmp_path / "a", COMPLETIONS, body)
    fast = ask(tmp_path / "b", COMPLETIONS, body, time_scale=4.0)
    assert fast.times[19] == pytest.approx(slow.times[19] / 4, rel=1e-6)


def test_prompts_and_choices_are_numbered_through(tmp_path: Path) -> None:
    body = {"prompt": ["a b", "c d e"], "n": 2, "max_tokens": 3, "ignore_eos": True}
    answer = ask(tmp_path, COMPLETIONS, body)
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2, 3]
    assert answer.json["usage"] == {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}


@pytest.mark.parametrize("streams", [False, True])
def test_stop_strings_end_the_text(tmp_path: Path, streams: bool) -> None:
    body = {"prompt": "p", "max_tokens": 40, "ignore_eos": True, "seed": 3}
    (tmp_path / "a").mkdir()
    whole = ask(tmp_path / "a", COMPLETIONS, body).json["choices"][0]["text"]
    stop = whole.split()[11]
    (tmp_path / "b").mkdir()
    answer = ask(tmp_path / "b", COMPLETIONS, {**body, "stop": [stop], "stream": streams})
    if streams:
        texts = [event["choices"][0] for event in answer.events[:-1]]
        text, reason = "".join(part["text"] for part in texts), texts[-1]["finish_reason"]
    else:
        text, reason = answer.json["choices"][0]["text"], answer.json["choices"][0]["finish_reason"]
    assert text == whole[: whole.index(stop)]
    assert reason == "stop"


def test_lengths_are_those_of_the_scenario_within_what_the_client_allows(tmp_path: Path) -> None:
    async def talk(client: Client) -> list[int]:
        bodies = [
            {"messages": HELLO, "max_tokens": cap, "min_tokens": low} for cap, low in [(10_000, 0), (5, 0), (900, 900)]
        ]
        answers = [await client.call(CHAT, body) for body in bodies]
        return [answer.json["usage"]["completion_tokens"] for answer in answers]

    same = [f"workload.classes.{place}.output={{dist: fixed, value: 77}}" for place in (0, 1)]
    assert served(tmp_path / "run", talk, *same)[0] == [77, 5, 900]


def test_a_seed_or_no_temperature_gives_the_same_answer_again(tmp_path: Path) -> None:
    async def talk(client: Client) -> list[str]:
        bodies = [
            {"prompt": "p", "max_tokens": 30, **extra} for extra in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {}, {})
        ]
        return [(await client.call(COMPLETIONS, body)).json["choices"][0]["text"] for body in bodies]

    one, again, other, free, freer = served(tmp_path / "run", talk)[0]
    assert one == again
    assert len({one, other, free, freer}) == 4


WRONG: list[tuple[int, str, Any, str | None]] = [
    (400, COMPLETIONS, b"{", None),
    (400, COMPLETIONS, b"[1]", None),
    (400, COMPLETIONS, {"max_tokens": 3}, "prompt"),
    (400, COMPLETIONS, {"prompt": "x", "max_tokens": 0}, "max_tokens"),
    (400, COMPLETIONS, {"prompt": "x", "n": 0}, "n"),
    (400, COMPLETIONS, {"prompt": ""}, "prompt"),
    (400, COMPLETIONS, {"prompt": []}, "prompt"),
    (400, COMPLETIONS, {"prompt": "x", "max_tokens": 10**6}, "max_tokens"),
    (400, COMPLETIONS, {"prompt": "x", "logprobs": 5}, "logprobs"),
    (400, COMPLETIONS, {"prompt": "x", "stream_options": {"include_usage": True}}, None),
    (400, CHAT, {"messages": []}, "messages"),
    (400, CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    (404, COMPLETIONS, {"prompt": "x", "model": "gpt-9"}, "model"),
    (404, "/v1/nothing", {}, None),
    (405, CHAT, None, None),
]


def test_a_wrong_call_gets_an_error_in_openais_shape(tmp_path: Path) -> None:
    async def talk(client: Client) -> list[Answer]:
        return [await client.call(path, body) for _, path, body, _ in WRONG]

    for answer, (status, path, body, param) in zip(served(tmp_path / "run", talk)[0], WRONG, strict=True):
        error = answer.json["error"]
        assert (answer.status, error["code"], error["param"]) == (status, status, param), (path, body, error)
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]


def test_a_request_that_never_fits_is_refused(tmp_path: Path) -> None:
    answer = ask(
        tmp_path, COMPLETIONS, {"prompt": list(range(2000)), "ignore_eos": True}, "hardware.num_gpu_blocks=100"
    )
    assert answer.status == 400
    assert "KV cache" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("policy", "status", "cap", "reason"),
    [
        ("vllm", 503, "max_queued_requests=3", "max_num_queued_reqs"),
        ("tgi", 429, "max_queued_requests=3", "max_num_queued_reqs"),
        ("vllm", 503, "max_num_queued_reqs=5", "max_num_queued_reqs"),
        ("vllm", 503, "max_num_queued_tokens=3", "max_num_queued_tokens"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_a_full_queue_is_told(tmp_path: Path, policy: str, status: int, cap: str, reason: str, streams: bool) -> None:
    async def talk(client: Client) -> list[Answer]:
        body = {"prompt": "x", "max_tokens": 50, "stream": streams}
        return await asyncio.gather(*[client.call(COMPLETIONS, body) for _ in range(9)])

    overrides = (f"engine.policy={policy}", "engine.max_num_seqs=2", f"engine.{cap}")
    answers, serving, _ = served(tmp_path / "run", talk, *overrides)
    statuses = [answer.status for answer in answers]
    assert statuses.count(200) + statuses.count(status) == 9
    assert statuses.count(status) >= 4
    refused = answers[statuses.index(status)]
    assert refused.headers["retry-after"] == "1"
    counted = f'vllm:admission_rejections_total{{model_name="llama-3.1-8b",reason="{reason}"}}'
    assert f"{counted} {statuses.count(status)}.0" in serving.meters.text().decode()


@pytest.mark.parametrize(
    ("cap", "statuses"),
    # One call of 3 answers, which take 8 prompt tokens each; then one of 3 and one of 1.
    [("max_num_queued_reqs=4", [200, 503, 200]), ("max_num_queued_tokens=1", [200, 503, 503])],
)
def test_the_answers_of_a_call_are_admitted_or_refused_together(tmp_path: Path, cap: str, statuses: list[int]) -> None:
    async def talk(client: Client) -> list[Answer]:
        body = {"prompt": list(range(8)), "max_tokens": 500, "ignore_eos": True}
        return await asyncio.gather(*[client.call(COMPLETIONS, {**body, "n": n}) for n in (3, 3, 1)])

    answers, serving, _ = served(tmp_path / "run", talk, f"engine.{cap}")
    assert [answer.status for answer in answers] == statuses
    assert not serving.engine._tickets


def test_a_client_that_leaves_frees_its_blocks(tmp_path: Path) -> None:
    async def talk(client: Client) -> list[float]:
        body = {"prompt": list(range(1000)), "max_tokens": 4000, "ignore_eos": True, "stream": True}
        [replica] = client.serving.engine.live.replicas
        call = asyncio.create_task(client.call(COMPLETIONS, body, leave_after_s=1.0))
        await asyncio.sleep(0.9)
        before = replica.load.kv_utilization
        await call
        await asyncio.sleep(0.1)
        return [before, replica.load.kv_utilization]

    (before, after), serving, _ = served(tmp_path / "run", talk)
    assert before > 0
    assert after == 0
    assert not serving.engine._tickets, "a call is still under way"


def test_the_key_is_asked_for(tmp_path: Path) -> None:
    async def talk(client: Client) -> list[int]:
        keys = [{}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer secret"}]
        answers = [await client.call("/v1/models", headers=headers) for headers in keys]
        return [answer.status for answer in [*answers, await client.call("/health")]]

    assert served(tmp_path / "run", talk, api_key="secret")[0] == [401, 401, 200, 200]


def test_models_and_tokens(tmp_path: Path) -> None:
    async def talk(client: Client) -> list[Answer]:
        tokens = await client.call("/tokenize", {"prompt": "Hello, world of tokens"})
        back = await client.call("/detokenize", {"tokens": tokens.json["tokens"]})
        return [await client.call("/v1/models"), await client.call("/v1/models/mine"), tokens, back]

    models, model, tokens, back = served(tmp_path / "run", talk, served_name="mine")[0]
    assert [card["id"] for card in models.json["data"]] == [model.json["id"]] == ["mine"]
    assert tokens.json["count"] == len(tokens.json["tokens"]) == 5
    assert back.json == {"prompt": "Hello, world of tokens"}


def test_a_draining_server_takes_nothing_new(tmp_path: Path) -> None:
    async def talk(client: Client) -> tuple[Answer, Answer, Answer]:
        under_way = asyncio.create_task(
            client.call(COMPLETIONS, {"prompt": "x", "max_tokens": 100, "ignore_eos": True})
        )
        await asyncio.sleep(0.05)
        client.serving.service.draining = True
        late, health = await client.call(COMPLETIONS, {"prompt": "x"}), await client.call("/health")
        return await under_way, late, health

    under_way, late, health = served(tmp_path / "run", talk)[0]
    assert (under_way.status, late.status, health.status) == (200, 503, 503)


def test_a_second_signal_ends_what_is_under_way(tmp_path: Path) -> None:
    async def talk(client: Client) -> Answer:
        under_way = asyncio.create_task(
            client.call(COMPLETIONS, {"prompt": "x", "max_tokens": 9000, "ignore_eos": True})
        )
        await asyncio.sleep(0.05)
        client.serving.engine.leave_all()
        return await under_way

    answer, _, result = served(tmp_path / "run", talk)
    assert answer.status == 503
    assert result is not None
    assert list(result.records.requests.status) == [Status.ABORTED]


def test_a_conversation_finds_its_history_in_the_prefix_cache(tmp_path: Path) -> None:
    async def talk(client: Client) -> None:
        said = [{"role": "user", "content": "tell me a long story about it " * 20}]
        answer = await client.call(CHAT, {"messages": said, "max_tokens": 200, "ignore_eos": True})
        said += [answer.json["choices"][0]["message"], {"role": "user", "content": "go on"}]
        await client.call(CHAT, {"messages": said, "max_tokens": 5})

    _, _, result = served(tmp_path / "run", talk, "engine.policy=vllm", "engine.enable_prefix_caching=true")
    assert result is not None
    [first, second] = result.records.requests.cached_tokens
    assert first == 0
    tokens = Tokenizer().count("tell me a long story about it " * 20) + 200
    assert second >= tokens - 2 * 16
    assert set(result.records.requests.status) == {Status.FINISHED}
