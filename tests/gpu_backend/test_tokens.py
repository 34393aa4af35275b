"""The tokens that a request generates are the same under every policy: paging, tables, swaps and masks are right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (the extra [gpu])")

from gpu_backend.executor import DeviceExecutor
from simulator.policies import built_in_policies
from simulator.request import PromptContent
from simulator.workload import Workload
from tests.gpu_maker import WORKLOAD, differences, policy_maker, serve, tokens
from tests.laws.scenarios import POLICIES, make_workload

TIGHT: dict[str, Any] = {"blocks": 30}  # too few for all that arrive


@pytest.fixture(scope="module")
def alone() -> DeviceExecutor:
    """Everybody served alone, prompt at once: what the others are held against."""
    executor, _ = serve(policy_maker("continuous", seqs=1, budget=4096), block_size=16)
    return executor


def test_the_policies_tested_are_all_there_are() -> None:
    assert {name.partition(" ")[0] for name in POLICIES} <= set(built_in_policies())


def test_answers_differ_among_themselves(alone: DeviceExecutor) -> None:
    """A model that always says the same would hide every mistake."""
    said = tokens(alone)
    assert [len(said[row]) for row in sorted(said)] == WORKLOAD.output_tokens.tolist()
    assert len({token for answer in said.values() for token in answer}) > 40


@pytest.mark.parametrize("name", sorted({*POLICIES, *built_in_policies()}))
def test_every_policy_gives_the_same_tokens(name: str, alone: DeviceExecutor) -> None:
    executor, _ = serve(policy_maker(name))
    assert differences(alone.stories, executor.stories) == []


@pytest.mark.parametrize(
    "name", ["chunked_prefill", "vllm_v0", "preemptive", "fastserve", "tensorrt_llm max_utilization"]
)
def test_recomputed_after_preemption(name: str, alone: DeviceExecutor) -> None:
    executor, records = serve(policy_maker(name), **TIGHT)
    assert differences(alone.stories, executor.stories) == []
    assert name == "fastserve" or records.requests.preemptions.sum() > 0


@pytest.mark.parametrize("name", ["preemptive", "vllm_v0"])
def test_swapped_out_and_back(name: str, alone: DeviceExecutor) -> None:
    executor, records = serve(policy_maker(name, preemption_mode="swap"), **TIGHT, host=200)
    assert differences(alone.stories, executor.stories) == []
    assert records.requests.swapped_out_blocks.sum() == records.requests.swapped_in_blocks.sum() > 0


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 7, 13, 31])
def test_chunks_of_awkward_sizes(budget: int, alone: DeviceExecutor) -> None:
    executor, _ = serve(policy_maker("chunked_prefill", budget=budget))
    assert differences(alone.stories, executor.stories) == []


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 8, 16, 32])
def test_every_block_size(block_size: int, alone: DeviceExecutor) -> None:
    executor, _ = serve(policy_maker("chunked_prefill"), block_size=block_size, blocks=2 + 400 // block_size)
    assert differences(alone.stories, executor.stories) == []


def group_workload() -> Workload:
    """Three families of prompts, each with 30 tokens in common, and two of no family."""
    lengths = [(37 + 5 * (row % 3), 6 + row) for row in range(8)]
    plain = make_workload([0.003 * row for row in range(8)], lengths)
    families = [PromptContent(prefix_group=f"g{row % 3}", prefix_tokens=30) for row in range(6)]
    return replace(plain, content=[*families, None, None])


def hash_workload() -> Workload:
    """Prompts of blocks of 8 tokens by their hashes; the first two prompts are one."""
    hashes = [(1, 2, 3), (1, 2, 3), (1, 2, 9), (7, 8), (1, 5)]
    lengths = [(24, 9), (24, 9), (22, 14), (16, 5), (13, 11)]
    plain = make_workload([0.0, 0.0, 0.004, 0.008, 0.012], lengths)
    return replace(plain, content=[PromptContent(block_hashes=each, hash_block_size=8) for each in hashes])


def dialogue_workload() -> Workload:
    """The second prompt is the first, its recorded answer, and more: what was sampled must not be taken for it."""
    first, answer = tuple(range(100, 120)), tuple(range(300, 316))
    second = (*first, *answer, *range(400, 409))
    plain = make_workload([0.0, 5.0], [(20, 16), (45, 8)])
    contents = [
        PromptContent(prompt_token_ids=first, output_token_ids=answer),
        PromptContent(prompt_token_ids=second),
    ]
    return replace(plain, content=contents)


@pytest.mark.parametrize("make", [group_workload, hash_workload, dialogue_workload])
@pytest.mark.parametrize("blocks", [200, 34])
def test_prefixes_shared(make: Any, blocks: int) -> None:
    workload = make()
    plain, _ = serve(policy_maker("continuous", seqs=1, budget=4096), workload)
    shared, records = serve(policy_maker("chunked_prefill"), workload, caches=True, blocks=blocks)
    assert differences(plain.stories, shared.stories) == []
    assert records.requests.cached_tokens.sum() > 0


def test_equal_prompts_get_equal_answers() -> None:
    executor, _ = serve(policy_maker("chunked_prefill"), hash_workload())
    first, second, other = (executor.stories[row].sampled for row in (0, 1, 2))
    assert first == second
    assert first != other[: len(first)]


def test_a_wrong_page_is_noticed(alone: DeviceExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests can fail: with two pages of each table exchanged, answers change."""
    from gpu_backend import backend, work

    def wrong(*given: Any) -> work.StepArrays:
        rows = work.step_arrays(*given)
        if rows.tables.shape[1] > 1:
            rows.tables[:, [0, 1]] = rows.tables[:, [1, 0]]
        return rows

    monkeypatch.setattr(backend, "step_arrays", wrong)
    executor, _ = serve(policy_maker("continuous"))
    assert differences(alone.stories, executor.stories) != []
