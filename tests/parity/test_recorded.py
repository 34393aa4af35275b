"""What vLLM's own scheduler answered once: our decisions are the same, step by step, however they are computed."""

import copy
import gzip
import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.parity import live, recorded
from tests.parity.cases import COMPARED, Case, decisions_of, first_difference
from tests.parity.random_cases import aborted, random_async_caching_case, random_async_case
from tests.shared_data import shared

MODES = {
    "fast_forward": {"fast_forward": True},
    "stepwise": {"fast_forward": False},
    "fast_forward_by_id": {"fast_forward": True, "by_id": True},
    "stepwise_by_id": {"fast_forward": False, "by_id": True},
}


# `make test` takes each way of planning and each way of naming once.
in_modes = pytest.mark.parametrize(
    "mode",
    [pytest.param(m, marks=() if m in ("fast_forward", "stepwise_by_id") else pytest.mark.long) for m in MODES],
)

FILES = {
    "plain": recorded.FILE,
    "caching": recorded.CACHING_FILE,
    "async": recorded.ASYNC_FILE,
    "aborts": recorded.ABORTS_FILE,
}


@cache
def kept(kind: str = "plain") -> recorded.Recorded:
    return recorded.read(FILES[kind])


@in_modes
def test_recorded_cases_are_scheduled_as_vllm_did(mode: str) -> None:
    for number, (case, theirs) in enumerate(zip(kept().cases, kept().answers, strict=True)):
        different = first_difference(case, decisions_of(case, **MODES[mode]), theirs)
        assert different is None, f"recorded case {number}: {different}\n{json.dumps(case)}"


@pytest.mark.parametrize("mode", ["fast_forward", "stepwise"])
def test_recorded_cases_with_a_prefix_cache_are_scheduled_as_vllm_did(mode: str) -> None:
    for number, (case, theirs) in enumerate(zip(kept("caching").cases, kept("caching").answers, strict=True)):
        assert case["config"]["enable_prefix_caching"] is True
        different = first_difference(case, decisions_of(case, **MODES[mode]), theirs)
        assert different is None, f"recorded caching case {number}: {different}\n{json.dumps(case)}"


@in_modes
def test_recorded_asynchronous_cases_are_scheduled_as_vllm_did(mode: str) -> None:
    for number, (case, theirs) in enumerate(zip(kept("async").cases, kept("async").answers, strict=True)):
        assert case["config"]["async_scheduling"] is True
        different = first_difference(case, decisions_of(case, **MODES[mode]), theirs)
        assert different is None, f"recorded asynchronous case {number}: {different}\n{json.dumps(case)}"


@in_modes
def test_recorded_cases_with_aborts_are_scheduled_as_vllm_did(mode: str) -> None:
    for number, (case, theirs) in enumerate(zip(kept("aborts").cases, kept("aborts").answers, strict=True)):
        different = first_difference(case, decisions_of(case, **MODES[mode]), theirs)
        assert different is None, f"recorded case with aborts {number}: {different}\n{json.dumps(case)}"


@pytest.mark.parametrize("seed", [165, 206, 505, 629])
def test_two_dropped_tokens_of_a_victim_or_of_an_answer_too_long(seed: int) -> None:
    """Tokens on their way that a prefill gave, after a preemption or as the last one: found by vLLM's random cases."""
    for draw in (random_async_case, random_async_caching_case):
        case = aborted(draw, seed)
        assert decisions_of(case) == decisions_of(case, fast_forward=False)


def test_recorded_cases_with_aborts_are_hard() -> None:
    """They abort requests that wait, run, were preempted, and had their last token on its way."""
    cases, answers = kept("aborts").cases, kept("aborts").answers
    assert len(cases) >= 60
    waited = ran = again = 0
    for steps in answers:
        preempted: set[str] = set()
        for step in steps:
            preempted.update(step["preempted"])
            waited += len(set(step["aborted"]) & set(step["waiting"]))
            ran += len(set(step["aborted"]) & set(step["running"]))
            again += len(set(step["aborted"]) & preempted)
    assert min(waited, ran) > 30
    assert again > 10
    assert {case["config"].get("async_scheduling", False) for case in cases} == {False, True}
    assert {case["config"].get("enable_prefix_caching", False) for case in cases} == {False, True}
    for case, steps in zip(cases, answers, strict=True):
        patient = copy.deepcopy(case)
        for request in patient["requests"]:
            request.pop("abort_time", None)
        assert first_difference(patient, decisions_of(patient), steps) is not None


def test_recorded_asynchronous_cases_are_hard() -> None:
    """They preempt, find their blocks again, throw tokens away, and have victims whose last token comes late."""
    cases, answers = kept("async").cases, kept("async").answers
    assert len(cases) >= 50
    assert sum(any(step["preempted"] for step in steps) for steps in answers) > 40
    assert sum(live.hit_tokens(steps) > 0 for steps in answers) > 20
    assert sum("max_tokens" in request for case in cases for request in case["requests"]) > 100
    behind = wasted = idle = 0
    for steps in answers:
        for step, after in pairwise(steps):
            behind += len(set(step["finished"]) & set(after["waiting"]))
            wasted += len(set(step["finished"]) & set(after["scheduled"]))
            idle += not after["scheduled"]
    assert behind > 5, "ended while they waited"
    assert wasted > 50, "were given one token too many"
    assert idle > 10, "steps of nothing"


def test_recorded_asynchronous_cases_differ_from_synchronous_ones() -> None:
    cases = copy.deepcopy(kept("async").cases)
    for case in cases:
        case["config"]["async_scheduling"] = False
    pairs = zip(cases, kept("async").answers, strict=True)
    assert all(first_difference(case, decisions_of(case), steps) is not None for case, steps in pairs)


def test_recorded_cases_with_a_prefix_cache_use_it() -> None:
    """Each of them would be scheduled otherwise without it, but for few; half of them preempt too."""
    cases, answers = kept("caching").cases, kept("caching").answers
    assert len(cases) >= 60
    assert sum(live.hit_tokens(steps) > 0 for steps in answers) > 55
    assert sum(any(step["preempted"] for step in steps) for steps in answers) > 30
    assert sum("prompt_token_ids" in request for case in cases for request in case["requests"]) > 100
    assert sum("prefix_group" in request for case in cases for request in case["requests"]) > 50
    off = [copy.deepcopy(case) for case in cases]
    for case in off:
        case["config"]["enable_prefix_caching"] = False
    different = [
        first_difference(case, decisions_of(case), steps) is not None for case, steps in zip(off, answers, strict=True)
    ]
    assert sum(different) > 55


def test_recorded_cases_are_hard() -> None:
    preemptions = [sum(len(step["preempted"]) for step in steps) for steps in kept().answers]
    assert len(preemptions) >= 100
    assert sum(count > 0 for count in preemptions) > 60
    assert sum(count > 2 for count in preemptions) > 25
    configs = [case["config"] for case in kept().cases]
    for name in ("enable_chunked_prefill", "scheduler_reserve_full_isl", "policy"):
        shares = [sum(config[name] == value for config in configs) for value in {config[name] for config in configs}]
        assert len(shares) == 2, name
        assert min(shares) > 10, name
    for name in ("long_prefill_token_threshold", "watermark"):
        assert sum(config[name] > 0 for config in configs) > 25, name
    assert sum("cost" in case for case in kept().cases) > 25


@pytest.mark.parametrize("name", [*COMPARED, *recorded.TIMES])
def test_a_wrong_answer_is_noticed(name: str) -> None:
    """The comparison looks at every column, in every step."""
    case, theirs = next(
        (case, steps) for case, steps in zip(kept().cases, kept().answers, strict=True) if case.get("cost")
    )
    wrong = copy.deepcopy(theirs)
    value = wrong[-1][name]
    wrong[-1][name] = {**value, "x": 1} if isinstance(value, dict) else [*value, "x"] if isinstance(value, list) else -1
    assert first_difference(case, decisions_of(case), theirs) is None
    assert first_difference(case, decisions_of(case), wrong) is not None
    assert first_difference(case, decisions_of(case), theirs[:-1]) is not None


def test_the_order_within_a_step_is_compared() -> None:
    case, theirs = next(
        (case, steps)
        for case, steps in zip(kept().cases, kept().answers, strict=True)
        if len(steps[0]["scheduled"]) > 1
    )
    wrong = copy.deepcopy(theirs)
    wrong[0]["scheduled"] = dict(reversed(wrong[0]["scheduled"].items()))
    assert first_difference(case, decisions_of(case), wrong) is not None


@pytest.mark.parametrize("kind", FILES)
def test_the_file_is_the_same_when_written_again(kind: str, tmp_path: Path) -> None:
    """The unpacked bytes: another zlib may pack them differently."""
    again = [tmp_path / "first.gz", tmp_path / "second.gz"]
    for path in again:
        recorded.write(kept(kind), path)
    assert again[0].read_bytes() == again[1].read_bytes()
    assert gzip.decompress(again[0].read_bytes()) == gzip.decompress(FILES[kind].read_bytes())
    assert FILES[kind].stat().st_size < 100_000


@pytest.mark.shared
def test_cases_of_the_oracle() -> None:
    """The small cases that lie beside vLLM's harness."""
    compared = hits = 0
    for file in sorted(shared("oracle/cases").glob("*.json")):
        case: Case = json.loads(file.read_text(encoding="utf-8"))
        with gzip.open(file.with_suffix(".out.jsonl.gz"), "rt", encoding="utf-8") as lines:
            records: list[dict[str, Any]] = [json.loads(line) for line in lines]
        theirs = [record for record in records if "scheduled" in record]
        for mode, settings in MODES.items():
            assert first_difference(case, decisions_of(case, **settings), theirs) is None, f"{file.name}, {mode}"
        compared += 1
        hits += live.hit_tokens(theirs)
    assert compared >= 6
    assert hits > 0, "one of them has a prefix cache"


@pytest.mark.vllm
@pytest.mark.shared
@pytest.mark.parametrize("kind", FILES)
def test_vllm_still_answers_so(kind: str) -> None:
    """The version that is installed here; a change of vLLM's rules is seen first here."""
    cases, answers = kept(kind).cases, kept(kind).answers
    for case, then, now in zip(cases, answers, live.answers(cases, shared("oracle")), strict=True):
        columns = recorded.columns_of(case)
        told = [[[step.get(name, []) for name in columns] for step in steps] for steps in (now, then)]
        assert told[0] == told[1]
