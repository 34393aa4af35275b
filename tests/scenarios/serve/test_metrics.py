"""/metrics, read by Prometheus' own parser."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")

from prometheus_client.parser import text_string_to_metric_families

from simulator.metrics.vllm_metrics import one_two_five
from tests.command import batchlab
from tests.scenarios.serve.client import Client, served

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def total(samples: Samples, name: str) -> float:
    return sum(value for (sample, _), value in samples.items() if sample == name)


async def talk(client: Client) -> tuple[Samples, Samples]:
    bodies = [{"prompt": list(range(30 + place)), "max_tokens": 40, "ignore_eos": True} for place in range(6)]
    calls = [asyncio.create_task(client.call("/v1/completions", body)) for body in bodies]
    await asyncio.sleep(0.05)
    gone = {"prompt": [1, 2], "max_tokens": 9000, "ignore_eos": True}
    calls.append(asyncio.create_task(client.call("/v1/completions", gone, leave_after_s=0.02)))
    await asyncio.sleep(0.001)
    during = read((await client.call("/metrics")).body.decode())
    await asyncio.gather(*calls)
    await asyncio.sleep(1)
    return during, read((await client.call("/metrics")).body.decode())


def test_drafts_are_counted_as_vllm_counts_them(tmp_path: Path) -> None:
    config = "engine.speculative_config={method: ngram, num_speculative_tokens: 2, acceptance: {rates: [1, 0.5]}}"
    (_, after), _, result = served(tmp_path / "run", talk, "engine.policy=vllm", config)
    assert result is not None
    drafts = result.records.drafts
    assert drafts is not None
    steps, accepted = int(drafts.steps.sum()), int(drafts.steps @ drafts.accepted)
    assert total(after, "vllm:spec_decode_num_drafts_total") == steps > 0
    assert total(after, "vllm:spec_decode_num_draft_tokens_total") == int(drafts.steps @ drafts.drafts)
    assert total(after, "vllm:spec_decode_num_accepted_tokens_total") == accepted
    by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert total(after, by_position) == accepted
    assert (
        after[by_position, (("engine", "0"), ("position", "0"))]
        > after[by_position, (("engine", "0"), ("position", "1"))]
    )
    exported = batchlab("export", "run", "--format", "prometheus", cwd=tmp_path)
    assert exported.code == 0, exported.err
    saved = read((tmp_path / "run" / "metrics.prom").read_text())
    assert {key: value for key, value in saved.items() if "spec_decode" in key[0] and "created" not in key[0]} == {
        key: value for key, value in after.items() if "spec_decode" in key[0] and "created" not in key[0]
    }


def test_metrics_agree_with_the_run(tmp_path: Path) -> None:
    (during, after), _, result = served(tmp_path / "run", talk, "replicas=2")
    assert result is not None
    running, kv = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
    assert total(during, running) >= 6
    ended = [value for (name, _), value in during.items() if name == "vllm:e2e_request_latency_seconds_count"]
    assert ended == [0, 0], "histograms are there before the first request of a replica ends"
    assert total(during, kv) > 0
    assert total(after, running) == total(after, "vllm:num_requests_waiting") == total(after, kv) == 0
    requests = result.records.requests
    done = requests.status == 0
    assert total(after, "vllm:prompt_tokens_total") == requests.input_tokens[done].sum()
    assert total(after, "vllm:generation_tokens_total") >= requests.output_tokens.sum()
    assert after["vllm:request_success_total", (("engine", "0"), ("finished_reason", "length"))] == 3
    assert total(after, "vllm:e2e_request_latency_seconds_count") == 6
    assert total(after, "vllm:e2e_request_latency_seconds_sum") == pytest.approx(
        (requests.last_token_s - requests.arrival_s)[done].sum()
    )
    assert total(after, "vllm:request_queue_time_seconds_sum") == pytest.approx(
        (requests.scheduled_s - requests.arrival_s)[done].sum()
    )
    first = (requests.first_token_s - requests.arrival_s).sum()
    assert total(after, "vllm:time_to_first_token_seconds_sum") == pytest.approx(first)
    assert total(after, "vllm:time_to_first_token_seconds_count") == 7
    assert total(after, "vllm:inter_token_latency_seconds_count") >= 6 * 39
    assert (
        sum(
            value
            for (name, labels), value in after.items()
            if name == "vllm:request_success_total" and ("finished_reason", "abort") in labels
        )
        == 1
    )
    # The snapshot of the folder is what the server said, of all that does not count the calls.
    exported = batchlab("export", "run", "--format", "prometheus", cwd=tmp_path)
    assert exported.code == 0, exported.err
    snapshot = read((tmp_path / "run" / "metrics.prom").read_text())
    calls = "vllm:request_params_"
    gone = "vllm:inter_token_latency", "vllm:generation_tokens"  # tokens that an abort took back were sent here
    assert {key for key in snapshot if not key[0].startswith(calls)} == {
        key
        for key in after
        if key[0].startswith("vllm:") and not key[0].endswith("_created") and not key[0].startswith(calls)
    }
    for (name, labels), value in snapshot.items():
        if not name.startswith((calls, *gone)):
            assert value == pytest.approx(after[name, labels]), (name, labels)


def test_adapters_in_use_are_named_as_vllm_names_them(tmp_path: Path) -> None:
    async def ask(client: Client) -> tuple[list[str], str, str]:
        models = [each["id"] for each in (await client.call("/v1/models")).json["data"]]
        body = {"prompt": [1, 2], "max_tokens": 400, "ignore_eos": True}
        calls = [asyncio.create_task(client.call("/v1/completions", {**body, "model": name})) for name in models[:3]]
        await asyncio.sleep(0.05)
        during = (await client.call("/metrics")).body.decode()
        answers = await asyncio.gather(*calls)
        assert [answer.json["model"] for answer in answers] == models[:3]
        assert (await client.call("/v1/completions", {**body, "model": "chat-9"})).status == 404
        return models, during, (await client.call("/metrics")).body.decode()

    keys = ("engine.policy=vllm", "engine.max_loras=1", "workload.classes.0.lora={adapters: 3, name: sql}")
    (models, during, after), _, result = served(tmp_path / "run", ask, *keys)
    assert result is not None
    assert models == ["quickstart", "sql-1", "sql-2", "sql-3"] or models[1:] == ["sql-1", "sql-2", "sql-3"]
    assert during.count('vllm:lora_requests_info{max_lora="1"') == 1
    assert 'running_lora_adapters="sql-1,sql-2",waiting_lora_adapters="sql-1,sql-2"' in during
    assert 'running_lora_adapters="",waiting_lora_adapters=""' in after
    adapters = result.records.adapters
    assert adapters is not None
    assert adapters.loaded.tolist() == [1, 1]
    assert adapters.shut_out_s[1] > adapters.shut_out_s[0] == 0


def test_buckets_of_token_counts_are_vllms() -> None:
    assert one_two_five(1000) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert one_two_five(4096)[-1] == 2000
