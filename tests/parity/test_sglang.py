"""What SGLang's own scheduler decided on random cases: our decisions are the same, step by step.

Every test run holds a few cases of each recorded file against ours, with and without fast-forward. All of them, and
new ones from the scheduler itself, need `-m slow` and an environment with SGLang: BATCHLAB_SGLANG_PYTHON names its
python, BATCHLAB_PARITY_CASES how many cases of each kind, and BATCHLAB_PARITY_FIRST the seed of the first.
"""

from __future__ import annotations

import copy
import os
import runpy
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.parity.cases import Case
from tests.parity.sglang_cases import Recorded, decisions_of, first_difference, recorded
from tests.parity.sglang_live import answers, python
from tests.shared_data import shared

CASES = int(os.environ.get("BATCHLAB_PARITY_CASES", "500"))
FIRST = int(os.environ.get("BATCHLAB_PARITY_FIRST", "200000"))

FILES = ("A", "AF", "B", "C", "D", "E", "F", "G", "G1", "G2", "H", "R", "RB", "RM")

# What the recorded cases do not have, and what they have, again: kinds of new cases, by the settings of the generator.
OVERLAP, RADIX, RECKLESS = "overlap=true", "disable_radix_cache=false", "schedule_conservativeness=0.05"
LIVE: dict[str, tuple[str, ...]] = {
    "no radix": ("disable_radix_cache=true", "clip=true"),
    "radix": (RADIX, 'schedule_policy="fcfs"', RECKLESS),
    "lpm": (RADIX, 'schedule_policy="lpm"'),
    "dfs-weight": (RADIX, 'schedule_policy="dfs-weight"'),
    "lof": ('schedule_policy="lof"',),
    "mixed": ("enable_mixed_chunk=true", RECKLESS),
    "page 16": ("page_size=16", RECKLESS),
    "page 64": ("page_size=64",),
    "ignore_eos": ("ignore_eos=true",),
    "overlap": (OVERLAP, "clip=true"),
    "overlap, retractions": (OVERLAP, RECKLESS, "eos_share=0.0"),
    "overlap, lpm": (OVERLAP, RADIX, 'schedule_policy="lpm"'),
    "overlap, mixed": (OVERLAP, "enable_mixed_chunk=true", RECKLESS),
    "overlap, page 16": (OVERLAP, "page_size=16"),
    "overlap, page 64": (OVERLAP, "page_size=64"),
    "overlap, ignore_eos": (OVERLAP, "ignore_eos=true"),
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
    few = list(islice(recorded(path), 0, 120, 10))
    hold(few)
    hold(few[::4], fast_forward=False)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("kind", LIVE)
def test_new_cases_are_scheduled_as_sglang_does(kind: str, tmp_path: Path) -> None:
    record = shared("oracle/engines/sglang_record.py")
    first = FIRST + 10_000 * list(LIVE).index(kind)
    out = tmp_path / "cases.jsonl.gz"
    command = [python(), str(record), str(first), str(CASES), str(out), *LIVE[kind]]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=record.parent, env=environment)
    assert done.returncode == 0, done.stderr
    cases = list(recorded(out))
    steps, retracted = sum(len(item.steps) for item in cases), sum(len(s["preempted"]) for i in cases for s in i.steps)
    print(f"{kind}: {len(cases)} cases, {steps} steps, {retracted} retractions")
    assert len(cases) > 0.9 * CASES
    hold([item for item in cases if item.seed % 2])
    hold([item for item in cases if item.seed % 2 == 0], fast_forward=False)


CROWDS: dict[str, dict[str, Any]] = {
    "radix": {"schedule_conservativeness": 0.05, "disable_radix_cache": False, "eos_share": 0.0},
    "overlap": {"schedule_conservativeness": 0.05, "eos_share": 0.0, "overlap": True},
    "overlap, lpm": {"schedule_policy": "lpm", "disable_radix_cache": False, "overlap": True},
    "overlap, lpm, mixed, page 16": {
        "schedule_policy": "lpm",
        "disable_radix_cache": False,
        "overlap": True,
        "enable_mixed_chunk": True,
        "page_size": 16,
        "schedule_conservativeness": 0.05,
        "eos_share": 0.0,
    },
}


def crowd(seed: int, settings: dict[str, Any]) -> Case:
    """The requests of ten cases of the generator in one, as far as its memory holds each: up to two hundred."""
    draw = runpy.run_path(str(shared("oracle/engines/sglang_gen.py")))["case"]
    drawn = [draw(10 * seed + part, **settings) for part in range(10)]
    case: Case = drawn[0]
    most = case["config"]["max_total_tokens"] - 2 * case["config"]["page_size"] - 2
    requests = [
        {**request, "id": f"{part}{request['id']}"}
        for part, one in enumerate(drawn)
        for request in one["requests"]
        if request["prompt_len"] + request["max_tokens"] <= most
    ]
    return {**case, "requests": sorted(requests, key=lambda request: request["arrival_time"])}


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("kind", CROWDS)
def test_crowds_are_scheduled_as_by_sglang(kind: str) -> None:
    seeds = range(FIRST, FIRST + max(1, CASES // 10))
    cases = [crowd(seed, CROWDS[kind]) for seed in seeds]
    told = answers(cases, shared("oracle/engines"))
    kept = [Recorded(seed, case, [*theirs]) for seed, case, theirs in zip(seeds, cases, told, strict=True)]
    steps, retracted = sum(len(item.steps) for item in kept), sum(len(s["preempted"]) for i in kept for s in i.steps)
    print(f"crowds, {kind}: {len(cases)} cases, {steps} steps, {retracted} retractions")
    hold(kept)
