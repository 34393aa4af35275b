"""`batchlab parity` beside a fake engine: equal, each kind of difference in words, and bad input."""

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.parity import after_plan, after_results
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.real.asked import Memory, TokenBlocks, engine_settings, scenario_key
from simulator.policies.sglang import Sglang
from simulator.request import PromptContent, Request
from simulator.speculative import Drafting, SpeculativeConfig
from tests.command import Done, batchlab, small
from tests.scenarios.parity.fake_python import fake_python

DRAFTS = "engine.speculative_config={method: ngram, num_speculative_tokens: 2, acceptance: {rates: [0.7, 0.4]}}"
SGLANG = ("--set", "engine.policy=sglang", "--set", "engine.max_num_batched_tokens=2048")


def parity(folder: Path, fault: str = "none", *more: str) -> Done:
    """The verb beside the fake engine, with memory for all requests."""
    told = (small(folder), "--engine-python", fake_python(folder, fault), "--set", "hardware.num_gpu_blocks=2000")
    return batchlab("parity", *told, *more, cwd=folder)


def test_equal_decisions(tmp_path: Path) -> None:
    done = parity(tmp_path, "none", "--json")
    found = json.loads(done.out)
    assert done.code == 0, done
    assert {**found, "steps": 0} == {
        "engine": "vllm", "version": "9.9", "steps": 0, "equal": True, "first_difference": None,
    }  # fmt: skip
    assert found["steps"] > 100
    assert done.err == "vLLM 9.9 decides beside chunked_prefill\n"
    said = parity(tmp_path, "none", "--steps", "7", "--quiet")
    assert (said.code, said.out, said.err) == (0, "equal: 7 steps decided as by vLLM 9.9\n", "")


def test_an_engine_that_computes_prompts_first(tmp_path: Path) -> None:
    asked = (*SGLANG, "--set", "engine.async_scheduling=false", "--json")
    found = json.loads(parity(tmp_path, "none", *asked).out)
    assert (found["engine"], found["equal"]) == ("sglang", True), found
    assert found["steps"] > 100
    assert not json.loads(parity(tmp_path, "slot", *asked).out)["equal"]


def test_drafts_and_their_acceptance_are_told(tmp_path: Path) -> None:
    """The fake engine follows our run only if it is told of all accepted tokens and of new drafts."""
    found = json.loads(parity(tmp_path, "none", "--set", DRAFTS, "--json").out)
    assert found["equal"], found
    assert found["steps"] < 0.9 * json.loads(parity(tmp_path, "none", "--json").out)["steps"]
    fewer = parity(tmp_path, "drafts", "--set", DRAFTS)
    assert (fewer.code, "computes" in fewer.out) == (3, True)


def test_each_group_of_a_fleet_has_its_own_settings(tmp_path: Path) -> None:
    fleet = "fleet=[{name: a, engine: {max_num_seqs: 4}}, {name: b, replicas: 2}]"
    found = json.loads(parity(tmp_path, "none", "--set", fleet, "--json").out)
    assert found["equal"], found


@pytest.mark.parametrize(
    ("fault", "key", "words"),
    [
        ("slot", "scheduled", "vLLM 9.9 computes nothing; batchlab computes"),
        ("order", "order", "vLLM 9.9 computes in the order "),
        ("memory", "num_free_blocks_end", "free blocks when the step is over; batchlab has "),
    ],
)
def test_a_difference_in_words(fault: str, key: str, words: str, tmp_path: Path) -> None:
    done = parity(tmp_path, fault)
    assert done.code == 3
    assert "first difference in step " in done.out
    assert words in done.out
    found = json.loads(parity(tmp_path, fault, "--json").out)
    first = found["first_difference"]
    assert not found["equal"]
    assert list(first) == ["step", "t_s", "key", "theirs", "ours"]
    assert first["key"] == key
    assert first["theirs"] != first["ours"]


def test_each_replica_has_a_scheduler_of_its_own(tmp_path: Path) -> None:
    one = json.loads(parity(tmp_path, "none", "--json").out)
    two = json.loads(parity(tmp_path, "none", "--json", "--set", "replicas=2").out)
    assert two["equal"]
    assert two["steps"] > one["steps"]


def test_clients_that_give_up_leave_the_real_scheduler_too(tmp_path: Path) -> None:
    done = parity(tmp_path, "none", "--set", "workload.classes.0.client={timeout_s: 0.4}", "--json")
    assert json.loads(done.out)["equal"], done


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("dies", "ended without an answer: ImportError: no such thing"),
        ("absent", "has no vLLM that can be asked\n  install it there, or name another Python: ModuleNotFoundError"),
        ("refuses", "engine.watermark: vLLM 9.9: it has no setting watermark, which is 0.1 here"),
        ("fails", "vLLM 9.9: AssertionError: here"),
    ],
)
def test_bad_input(fault: str, told: str, tmp_path: Path) -> None:
    done = parity(tmp_path, fault)
    assert done.code == 2
    assert told in done.err


def test_other_bad_input(tmp_path: Path) -> None:
    nowhere = batchlab("parity", small(tmp_path), "--engine-python", "no/such/python", cwd=tmp_path)
    assert (nowhere.code, "no program that can be run: no/such/python" in nowhere.err) == (2, True)
    unknown = parity(tmp_path, "none", "--engine", "vlm")
    assert (unknown.code, "did you mean vllm?" in unknown.err) == (2, True)
    python = fake_python(tmp_path)
    itself = parity(tmp_path, "none", "--set", "engine.policy=real", "--set", f"engine.python={python}")
    assert (itself.code, "compared with itself" in itself.err) == (2, True)
    drafts = parity(tmp_path, "none", "--engine", "sglang", "--set", DRAFTS)
    words = "engine.speculative_config: drafts cannot be combined with SGLang's own scheduler"
    assert (drafts.code, words in drafts.err) == (2, True), drafts
    apart = "fleet=[{name: p, role: prefill}, {name: d, role: decode}]"
    offload = ("--set", "engine.enable_prefix_caching=true", "--set", "hardware.kv_offload={host_gib: 10}")
    told = parity(tmp_path, "none", *offload)
    assert (told.code, "copies of KV are not handed to it" in told.err) == (2, True), told
    groups = parity(tmp_path, "none", "--set", "model={base: gpt-oss-20b, max_model_len: 4000}")
    assert (groups.code, "groups of layers are not handed to it" in groups.err) == (2, True), groups
    stages = parity(tmp_path, "none", "--set", "hardware.pipeline_parallel=2")
    assert (stages.code, "stages are not handed to it" in stages.err) == (2, True), stages
    halves = parity(tmp_path, "none", "--set", apart, "--set", "kv_transfer={bandwidth_gb_s: 50}")
    assert (halves.code, "it serves whole requests" in halves.err) == (2, True), halves


OURS: dict[str, Any] = {
    "step": 4, "t_start_s": 0.5, "preempted": [], "scheduled": {"a": 1, "b": 16}, "admitted": {"b": 32},
    "running": ["a", "b"], "waiting": ["c"], "num_free_blocks": 3, "spec": {"a": 2},
}  # fmt: skip
THEIRS: dict[str, Any] = {
    "preempted": [], "scheduled": {"a": 1, "b": 16}, "admitted": {"b": 32}, "running": ["a", "b"], "waiting": ["c"],
    "free": 3, "spec": {"a": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"preempted": [["c", 0]]}, "vLLM preempts c; batchlab preempts none"),
        ({"scheduled": {"a": 1, "b": 9, "d": 1}}, "computes 9 tokens of b, 1 tokens of d; batchlab computes 16 tokens"),
        ({"admitted": {"b": 0}}, "finds in its prefix cache 0 tokens of b; batchlab finds in its prefix cache 32"),
        ({"spec": {}}, "vLLM verifies nothing; batchlab verifies 2 drafts of a"),
        ({"running": ["b", "a"]}, "has running b, a; batchlab has running a, b"),
        ({"waiting": []}, "leaves waiting none; batchlab leaves waiting c"),
        ({"free": 1_000}, "has 1,000 free blocks; batchlab has 3 free blocks"),
    ],
)
def test_every_part_of_a_plan_is_compared(changed: dict[str, Any], words: str) -> None:
    assert after_plan(OURS, THEIRS) is None
    found = after_plan(OURS, {**THEIRS, **changed})
    assert found is not None
    assert words in found.words("vLLM")
    assert found.words("vLLM").startswith("first difference in step 4 at 0.5 s: vLLM ")


def test_who_finishes_is_compared() -> None:
    settled = {**OURS, "finished": ["a"], "num_free_blocks_end": 4}
    assert after_results([settled], {"finished": [["a"]], "free_before": 4}) is None
    waits = {**settled, "scheduled": {}, "finished": [], "num_free_blocks_end": 9}
    assert after_results([settled, waits], {"finished": [["a"], []], "free_before": 4}) is None
    found = after_results([settled], {"finished": [[]], "free_before": 4})
    assert found is not None
    assert found.key == "finished"


def test_settings_have_the_names_of_the_engine() -> None:
    policy = ChunkedPrefill(order="priority", watermark=0.1, reserve_full_isl=False)
    found = engine_settings("vllm", policy, Memory(99, 16, True), {"own": 1})
    assert found["policy"] == "priority"
    assert found["scheduler_reserve_full_isl"] is False
    assert found["watermark"] == 0.1
    assert (found["num_gpu_blocks"], found["block_size"], found["enable_prefix_caching"]) == (100, 16, True)
    assert (found["async_scheduling"], found["own"]) == (False, 1)
    assert "version" not in found
    assert scenario_key("policy") == scenario_key("schedule_policy") == "order"
    drafting = Drafting(SpeculativeConfig("eagle", 3), 4096)
    found = engine_settings("vllm", policy, Memory(99, 16, True), drafting=drafting)
    assert (found["speculative_config"]["num_speculative_tokens"], found["max_model_len"]) == (3, 4096)
    assert (found["name_size"], found["block_size"]) == (1, 16)


@pytest.mark.parametrize(
    ("given", "chunk", "begin"),
    [({}, 512, 512), ({"chunked_prefill_size": 100, "max_prefill_tokens": 900}, 100, 900),
     ({"chunked_prefill_size": -1, "max_prefill_tokens": 900}, -1, 512)],
)  # fmt: skip
def test_the_budget_of_a_step_bounds_sglangs_own_numbers(given: dict[str, Any], chunk: int, begin: int) -> None:
    policy = Sglang(max_num_seqs=700, max_num_batched_tokens=512, order="lpm", **given)
    found = engine_settings("sglang", policy, Memory(99, 16, True))
    assert (found["chunked_prefill_size"], found["max_prefill_tokens"]) == (chunk, begin)
    assert (found["max_running_requests"], found["schedule_policy"]) == (512, "lpm")
    assert "max_num_batched_tokens" not in found


def test_equal_blocks_have_equal_names() -> None:
    tokens = TokenBlocks(4)

    def names(row: int, group: str | None, shared: int) -> list[int]:
        content = PromptContent(prefix_group=group, prefix_tokens=shared)
        return tokens.of(Request(row, str(row), 0.0, 14, 3, 9, content=content))

    assert names(0, "a", 9) == [1, 2]
    assert names(1, "b", 4) == [3]
    assert names(2, "a", 14) == [1, 2, 4]
    assert tokens.of(Request(3, "3", 0.0, 14, 3, 9)) == []
    talk = PromptContent(conversation="x")
    first = tokens.of(Request(4, "4", 0.0, 6, 5, 9, content=talk))
    assert tokens.of(Request(5, "5", 0.0, 14, 3, 9, content=talk))[: len(first)] == first
