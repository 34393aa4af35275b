"""Prefill and decode apart in scenarios: what a run says of it, its files, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.check.law_trial import differences
from scenarios.runs.runner import run
from scenarios.runs.storage.run_folder import read_run
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.results.records import Records

APART: list[dict[str, Any]] = [{"name": "p", "role": "prefill", "replicas": 2}, {"name": "d", "role": "decode"}]


def scenario(fleet: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    arrival = {"process": "poisson", "rate": 20}
    lengths = {"input": {"dist": "uniform", "min": 20, "max": 2000}, "output": {"dist": "uniform", "min": 1, "max": 60}}
    return {
        "name": "apart",
        "workload": {"requests": 100, "classes": [{"name": "c", "arrival": arrival, **lengths}]},
        "engine": {"policy": "chunked_prefill"},
        "fleet": fleet,
        **keys,
    }


def test_kv_takes_its_bytes_over_the_bandwidth() -> None:
    result = run(scenario(APART, kv_transfer={"bandwidth_gb_s": 10, "latency_s": 0.004}))
    moved, requests = result.records.transfers, result.records.requests
    assert moved is not None
    two_halves = requests.output_tokens > 1
    assert result.summary["kv_transfers"] == int(two_halves.sum()) == len(moved.row)
    per_block = 16 * result.scenario.resolve_model().kv_bytes_per_token(1)
    assert np.array_equal(moved.bytes, -(-requests.input_tokens[moved.row] // 16) * per_block)
    assert np.allclose(moved.end_s - moved.start_s, moved.bytes / 10e9 + 0.004)
    assert result.summary["kv_transfer_gib"] == pytest.approx(moved.bytes.sum() / 2**30)
    second_s = np.full(len(requests.row), np.inf)
    second_s[moved.row] = moved.end_s
    assert np.all(requests.last_token_s[two_halves] > second_s[two_halves])


def test_groups_of_both_roles_are_a_fleet_like_any_other() -> None:
    one = run(scenario([{**group, "role": "both"} for group in APART]))
    two = run(scenario([{key: group[key] for key in group if key != "role"} for group in APART]))
    assert differences(one.records, two.records) == []
    assert one.summary == two.summary
    assert one.scenario_yaml == two.scenario_yaml


def test_the_run_folder_keeps_the_transfers(tmp_path: Path) -> None:
    result = run(scenario(APART))
    saved = read_run(result.save(tmp_path / "run"))
    assert differences(saved.records, result.records) == []
    again = run(load(tmp_path / "run" / "scenario.yaml"))
    assert differences(again.records, result.records) == []


PREFILL, DECODE = APART


@pytest.mark.parametrize(
    ("fleet", "keys", "words"),
    [
        ([PREFILL], {}, "groups of the roles prefill make no fleet"),
        ([PREFILL, {"name": "b"}], {}, "groups of the roles both, prefill make no fleet"),
        ([PREFILL, {**DECODE, "engine": {"policy": "continuous"}}], {}, "takes KV memory in advance"),
        (
            [PREFILL, {**DECODE, "engine": {"enable_prefix_caching": True}}],
            {},
            "a prefix cache cannot be combined with a group that decodes what it is sent",
        ),
        ([{**PREFILL, "engine": {"policy": "static"}}, DECODE], {}, "a batch at a time"),
        ([PREFILL, {**DECODE, "model": "qwen3-8b"}], {}, "have different models"),
        ([{"name": "b"}], {"kv_transfer": {"bandwidth_gb_s": 1}}, "kv_transfer: nothing is transferred"),
    ],
)
def test_what_cannot_be_is_refused(fleet: list[dict[str, Any]], keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        run(load(scenario(fleet, **keys)))
    assert words in str(caught.value)


def timed(
    policy: str, prompt: int, answer: int, requests: int = 2, decode: dict[str, Any] | None = None, **keys: Any
) -> Records:
    """A run of equal requests that come at once; a step takes 10 ms."""
    lengths = {"input": {"dist": "fixed", "value": prompt}, "output": {"dist": "fixed", "value": answer}}
    arrival = {"process": "closed_loop", "concurrency": requests}
    return run(
        {
            "name": "apart",
            "workload": {"requests": requests, "classes": [{"name": "c", "arrival": arrival, **lengths}]},
            "fleet": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode", **(decode or {})}],
            "engine": {"policy": policy, "max_num_seqs": 8, "max_num_batched_tokens": 4096, **keys},
            "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 0.0, "per_context_token_s": 0.0},
        }
    ).records


def test_sglang_takes_memory_first_and_sends_the_first_token_from_there() -> None:
    # 1000 + 512 tokens are left free for each request: of 2048 the second finds too few until the first has ended.
    memory = {"hardware": {"num_gpu_blocks": 129}}
    wide, short = timed("sglang", 1000, 5), timed("sglang", 1000, 5, decode=memory)
    assert wide.requests.scheduled_s[1] == 0.0
    assert short.requests.scheduled_s[1] >= short.requests.last_token_s[0]
    moved = short.transfers
    assert moved is not None
    assert np.all(short.requests.first_token_s >= moved.end_s)
    vllm = timed("chunked_prefill", 1000, 5, decode=memory)
    assert vllm.requests.scheduled_s[1] == 0.0
    assert vllm.transfers is not None
    assert np.array_equal(vllm.requests.first_token_s, vllm.transfers.ready_s)


def test_sglang_refuses_what_would_wait_for_ever() -> None:
    with pytest.raises(InputError, match="what a decoding server keeps free make 1520"):
        timed("sglang", 1000, 5, decode={"hardware": {"num_gpu_blocks": 90}})


def test_tensorrt_llm_gives_memory_for_the_whole_answer_and_a_place_on_the_way() -> None:
    few = {"hardware": {"num_gpu_blocks": 16}}  # 240 tokens: for prompt and answer of one
    moved = timed("tensorrt_llm", 100, 60, decode=few).transfers
    on_demand = timed("tensorrt_llm", 100, 60, capacity_policy="max_utilization", decode=few).transfers
    assert moved is not None
    assert on_demand is not None
    assert moved.start_s[1] - moved.start_s[0] > 0.5 > on_demand.start_s[1] - on_demand.start_s[0]
    one = timed("tensorrt_llm", 100, 60, decode={"engine": {"max_num_seqs": 1}}).transfers
    assert one is not None
    assert one.start_s[1] - one.start_s[0] > 0.5


def test_asynchronous_groups_hand_over_when_the_result_is_there() -> None:
    late, plain = [timed("chunked_prefill", 1000, 5, requests=1, async_scheduling=each) for each in (True, False)]
    assert late.transfers is not None
    assert plain.transfers is not None
    assert late.transfers.ready_s.tolist() == plain.transfers.ready_s.tolist()
    # The last token's step is followed by one more, which is thrown away only where the answer ends by itself.
    assert late.requests.last_token_s.tolist() == pytest.approx(plain.requests.last_token_s.tolist())
