"""The page of errors: made of what it is given, and as the code and the measurements have it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docs.writers.accuracy.cases import CASES, CaseResult
from docs.writers.accuracy.composed import LeftOut
from docs.writers.accuracy.data import CLOSED_LOOP, HELD_OUT, MODELS_LEFT_OUT, ROWS_LEFT_OUT, accuracy_files
from docs.writers.accuracy.page import page
from docs.writers.accuracy.picture import sensitivity_picture
from docs.writers.accuracy.sensitivity import Change, Effect, Sensitivity, changes_for, sensitivity
from docs.writers.accuracy.silicon import Scored
from scenarios.validate.compare import Side, compare
from simulator.timing.host import Host
from tests.command import small
from tests.shared_data import shared
from tests.writers.accuracy.test_silicon import RUN

ROOT = Path(__file__).parents[3]


def side(scale: float) -> Side:
    times = scale * np.arange(1.0, 21.0)
    count = np.arange(1, 21)
    names, arrival_s = tuple(map(str, count)), np.arange(20.0)
    return Side(names, arrival_s, arrival_s, count, count + 1, times, times / 9, 2 * times, None, 40.0 * scale)


ERRORS = {"mape": 3.21, "median": 2.0, "p95": 9.0, "bias": -0.5, "rows": 77}
PROFILE = {
    "name": "a-profile",
    "software": "vLLM 0.19.0",
    "sources": [{"source": "who/what", "commit": "abcdef0123", "licence": "MIT"}],
    "errors": {"gemm": {"random": ERRORS}},
}


def test_everything_given_is_on_the_page() -> None:
    ours = compare(side(1.0), side(1.1), "order")
    result = CaseResult(CASES[0], ours, None, compare(side(1.0), side(1.3), "order"), ())
    summary = dict.fromkeys(
        ("p50_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p50_e2el_ms", "p99_e2el_ms", "duration"), 1234.0
    )
    moved = Sensitivity("a-scenario", {}, (Effect(Change("no prefix cache", ()), (0.05, -0.02, 0.0)),))
    scored = [Scored(RUN, 0.011, "profile"), Scored(replace(RUN, concurrency=64), 0.009, "profile")]
    text = page(
        [PROFILE, {"name": "bare"}],
        [result],
        {"blind-x": {**summary, "preemptions": 7}},
        scored,
        {"profile": Host(0.0015, 2e-5)},
        [moved],
        parts_beside=[{"name": "of-experts", "software": "vLLM 9", "errors": {"experts_bf16": {"models": ERRORS}}}],
    )
    for part in (
        "| vLLM | experts | 1 | 2.0 | 2.0 | 9.0 | `of-experts`, experts_bf16, models |",
        "| Llama-3.1-8B, one RTX PRO 6000 | batchlab | 10.00 | +10.0 |",
        "| LLMServingSim | 30.00 |",
        "| `blind-x` | 1,234 |",
        "| h100 | qwen3-32b | bf16 | profile | 2 | 10.0 | -10.0 | TP 2, 64 at once |",
        "kernels by profile: 1.50 ms, and 20 microseconds a request",
        "| vLLM | products | 1 | 2.0 | 2.0 | 9.0 | `a-profile`, gemm, random |",
        "| no prefix cache | +5.0 | -2.0 | 0.0 |",
        "## What is not modelled",
    ):
        assert part in text, part
    assert "\n\n\n" not in text
    assert page([], [], {}, [], {}, []).count("## ") == 1


def test_data_files_have_every_row() -> None:
    experts = {"name": "of-experts", "software": "vLLM 9", "errors": {"experts_bf16": {"models": ERRORS}}}
    scored = [Scored(RUN, 0.011, "profile"), Scored(replace(RUN, concurrency=64), 0.009, "profile")]
    left_out = [LeftOut("a-profile", "some-tables", {"decodes": (0.01, -0.03)})]
    files = accuracy_files([PROFILE, {"name": "bare"}], scored, left_out, [], [experts])
    rows = {name: text.splitlines()[1:] for name, text in files.items()}
    assert rows == {
        HELD_OUT: [
            "a-profile,vLLM 0.19.0,who/what at abcdef0 (MIT),gemm,random,77,3.2,2.0,9.0,-0.5",
            "of-experts,vLLM 9,,experts_bf16,models,77,3.2,2.0,9.0,-0.5",
        ],
        ROWS_LEFT_OUT: [],
        MODELS_LEFT_OUT: ["a-profile,some-tables,decodes,2,2.0,2.9,-1.0"],
        CLOSED_LOOP: [
            "a,h100,qwen3-32b,bf16,,profile,2,8,256,64,10.00,10.0",
            "a,h100,qwen3-32b,bf16,,profile,2,64,256,64,10.00,-10.0",
        ],
    }


def test_an_input_that_matters_moves_the_answer(tmp_path: Path) -> None:
    path = str(small(tmp_path))
    found = sensitivity(path, [Change("slower", ("cost.base_s=0.01",)), Change("same", ("seed=7",))])
    slower, same = (effect.moves for effect in found.effects)
    assert min(slower) > 0.1
    assert same == (0.0, 0.0, 0.0)


def test_only_changes_that_a_scenario_can_have_are_made(tmp_path: Path) -> None:
    names = [change.name for change in changes_for(str(small(tmp_path)))]
    assert "10 % fewer KV blocks" in names
    assert "all-reduce left out" not in names
    assert "skew of contexts left out" not in names  # its costs are linear


def test_the_figure_is_the_same_each_time_and_needs_a_case() -> None:
    cases = {"a": [("x", (0.1, -0.2, 0.0)), ("y", (0.0, 0.0, 0.0))], "b": [("z", (9.0, 0.0, -0.9))]}
    assert sensitivity_picture(cases).png == sensitivity_picture(cases).png
    with pytest.raises(ValueError, match="at least one case"):
        sensitivity_picture({})


@pytest.mark.shared
def test_scores_are_as_good_as_the_page_says() -> None:
    from docs.writers.accuracy.cases import evaluate

    shared("measured/ground_truth")
    llama, mixture = (evaluate(case) for case in CASES)
    assert llama.ours.score < 0.023
    assert abs(llama.ours.worst[1]) < 0.06
    assert mixture.ours.score < 0.06
    assert abs(mixture.ours.worst[1]) < 0.20
    for result in (llama, mixture):
        assert result.ours.score < result.peer.score
        assert 100 * result.peer.score == pytest.approx(result.case.published[0], abs=0.05)


@pytest.mark.long
@pytest.mark.shared
def test_the_page_in_the_repository_is_what_the_code_writes() -> None:
    shared("measured/ground_truth")
    from docs.writers.accuracy.compute import compute

    written = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    text, files, _ = compute()
    assert written == text, "write it again: make pages PAGES=accuracy"
    assert {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in files} == files
