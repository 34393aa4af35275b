"""What SGLang's own scheduler decided on random cases: our decisions are the same, step by step.

Every test run holds a few cases of each recorded file against ours, with and without fast-forward. All of them, and
new ones from the scheduler itself, need `-m slow` and an environment with SGLang: BATCHLAB_SGLANG_PYTHON names its
python, BATCHLAB_PARITY_CASES how many cases of each kind, and BATCHLAB_PARITY_FIRST the seed of the first.
"""

import copy
import os
from itertools import islice
from typing import Any

import pytest

from tests.parity.cases import Case
from tests.parity.sglang_cases import Recorded, decisions_of, first_difference, recorded
from tests.parity.sglang_live import answers
from tests.parity.sglang_random import crowd, drawn
from tests.shared_data import shared

CASES = int(os.environ.get("BATCHLAB_PARITY_CASES", "500"))
FIRST = int(os.environ.get("BATCHLAB_PARITY_FIRST", "200000"))

FILES = ("A", "AF", "B", "C", "D", "E", "F", "G", "G1", "G2", "H", "R", "RB", "RM")

# What the recorded cases do not have, and what they have, again: kinds of new cases, by their settings.
OVERLAP, RADIX, RECKLESS = {"overlap": True}, {"disable_radix_cache": False}, {"schedule_conservativeness": 0.05}
MIXED, SURE = {"enable_mixed_chunk": True}, {"eos_share": 0.0}  # answers of max_tokens: memory lacks more often
LPM, LIMITS = {**RADIX, "schedule_policy": "lpm"}, {"clip": True}  # max_tokens beyond memory
DELAYER = {**OVERLAP, "enable_prefill_delayer": True}
DRAFTS = {**OVERLAP, "speculative_algorithm": "EAGLE"}
LIVE: dict[str, dict[str, Any]] = {
    "no radix": {"disable_radix_cache": True, **LIMITS},
    "radix": {**RADIX, **RECKLESS, "schedule_policy": "fcfs"},
    "lpm": LPM,
    "dfs-weight": {**RADIX, "schedule_policy": "dfs-weight"},
    "lof": {"schedule_policy": "lof"},
    "mixed": {**MIXED, **RECKLESS},
    "page 16": {"page_size": 16, **RECKLESS},
    "page 64": {"page_size": 64},
    "ignore_eos": {"ignore_eos": True},
    "overlap": {**OVERLAP, **LIMITS},
    "overlap, retractions": {**OVERLAP, **RECKLESS, **SURE},
    "overlap, lpm": {**OVERLAP, **LPM},
    "overlap, mixed": {**OVERLAP, **MIXED, **RECKLESS},
    "overlap, page 16": {**OVERLAP, "page_size": 16},
    "overlap, page 64": {**OVERLAP, "page_size": 64},
    "overlap, ignore_eos": {**OVERLAP, "ignore_eos": True},
    "delayer": DELAYER,
    "delayer, lpm": {**DELAYER, **LPM},
    "delayer, mixed": {**DELAYER, **MIXED, **RECKLESS, **SURE},
    "delayer, ignore_eos": {**DELAYER, "ignore_eos": True, "disable_radix_cache": True},
    "drafts": DRAFTS,
    "drafts, no overlap": {**DRAFTS, "overlap": False},
    "drafts, page 16": {**DRAFTS, **RECKLESS, **SURE, "page_size": 16},
    "drafts, retractions": {**DRAFTS, **RADIX, **RECKLESS, **SURE},
    "drafts, lpm": {**DRAFTS, **LPM},
    "drafts, mixed": {**DRAFTS, **MIXED, **RECKLESS, **SURE},
    "drafts, mixed, no overlap": {**DRAFTS, **MIXED, **RECKLESS, "overlap": False},
    "drafts, ignore_eos": {**DRAFTS, "ignore_eos": True},
    "drafts, delayer": {**DRAFTS, **DELAYER},
    "drafts of n-grams": {**DRAFTS, "speculative_algorithm": "NGRAM"},
    "drafts of a model, page 64": {**DRAFTS, "speculative_algorithm": "STANDALONE", "page_size": 64},
}
CROWDS: dict[str, dict[str, Any]] = {
    "radix": {**RADIX, **RECKLESS, **SURE},
    "overlap": {**OVERLAP, **RECKLESS, **SURE},
    "overlap, lpm": {**OVERLAP, **LPM},
    "overlap, lpm, mixed, page 16": {**OVERLAP, **LPM, **MIXED, **RECKLESS, **SURE, "page_size": 16},
    "delayer, page 16": {**DELAYER, **RECKLESS, "page_size": 16},
    "drafts": {**DRAFTS, **RECKLESS, **SURE},
}


def kept(name: str) -> list[Recorded]:
    return list(recorded(shared(f"oracle/engines/recorded/sgl_{name}.jsonl.gz")))


def hold(cases: list[Recorded], *, fast_forward: bool = True) -> None:
    """No case differs; the message names all that do."""
    wrong: list[str] = []
    for item in cases:
        different = first_difference(item.case, decisions_of(item.case, fast_forward=fast_forward), item.steps)
        if different is not None:
            wrong.append(f"seed {item.seed}, {different}, {item.case['config']}")
    assert not wrong, f"{len(wrong)} of {len(cases)} cases differ:\n" + "\n".join(wrong)


@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_recorded_cases_are_scheduled_as_sglang_did(name: str) -> None:
    path = shared(f"oracle/engines/recorded/sgl_{name}.jsonl.gz")
    few = list(islice(recorded(path), 0, 36, 6))
    hold(few)
    hold(few[::3], fast_forward=False)


@pytest.mark.long
@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_all_recorded_cases_are_scheduled_as_sglang_did(name: str) -> None:
    hold(kept(name))


@pytest.mark.shared
@pytest.mark.parametrize("key", ["scheduled", "preempted", "admitted", "waiting", "free", "free_end", "finished"])
def test_a_wrong_answer_is_noticed(key: str) -> None:
    item = next(recorded(shared("oracle/engines/recorded/sgl_F.jsonl.gz")))
    wrong = copy.deepcopy(item.steps)
    value = wrong[-1][key]
    wrong[-1][key] = {**value, "x": 1} if isinstance(value, dict) else [*value, "x"] if isinstance(value, list) else -1
    ours = decisions_of(item.case)
    assert first_difference(item.case, ours, item.steps) is None
    assert first_difference(item.case, ours, wrong) is not None
    assert first_difference(item.case, ours, item.steps[:-1]) is not None


@pytest.mark.shared
def test_overlap_scheduling_decides_otherwise() -> None:
    """The same cases with and without it."""
    for item in list(recorded(shared("oracle/engines/recorded/sgl_AF.jsonl.gz")))[:10]:
        case = copy.deepcopy(item.case)
        case["config"]["overlap"] = False
        assert first_difference(case, decisions_of(case), item.steps) is not None


def ask(kind: str, seeds: range, cases: list[Case]) -> None:
    """Hold these cases against SGLang's answers, every second one without fast-forward.

    Those that SGLang's scheduler does not finish are held up to there.
    """
    told = answers(cases, shared("oracle/engines"))
    found = [Recorded(seed, case, [*theirs]) for seed, case, theirs in zip(seeds, cases, told, strict=True)]
    for item in [item for item in found if item.steps and "failed" in item.steps[-1]]:
        print(f"seed {item.seed} ends in SGLang's own error: {item.steps[-1]['failed'].splitlines()[0]}")
        found.remove(item)
        before = item.steps[:-1]
        assert first_difference(item.case, decisions_of(item.case)[: len(before)], before) is None, item.seed
    steps, retracted = sum(len(item.steps) for item in found), sum(len(s["preempted"]) for i in found for s in i.steps)
    print(f"{kind}: {len(cases)} cases, {steps} steps, {retracted} retractions")
    hold(found[::2])
    hold(found[1::2], fast_forward=False)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("kind", LIVE)
def test_new_cases_are_scheduled_as_sglang_does(kind: str) -> None:
    first = FIRST + 10_000 * list(LIVE).index(kind)
    seeds = range(first, first + CASES)
    ask(kind, seeds, [drawn(seed, **LIVE[kind]) for seed in seeds])


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("kind", CROWDS)
def test_crowds_are_scheduled_as_by_sglang(kind: str) -> None:
    """A tenth as many, for they are ten times as large."""
    seeds = range(FIRST, FIRST + max(1, CASES // 10))
    ask(f"crowds, {kind}", seeds, [crowd(seed, **CROWDS[kind]) for seed in seeds])
