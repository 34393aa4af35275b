"""The block of the verdict table about a real server: ends of intervals, over seeds, in units that suit them."""

from typing import Any

import pytest

from reports.tables.verdict_table import ends_of, prediction_note, verdict_table

TTFT, RATE = "mean_ttft_ms", "request_throughput"


def run(low: float, high: float, why: str = "measured kernels") -> dict[str, Any]:
    entry = {
        "coverage": 0.9,
        "why": why,
        "metrics": {TTFT: {"low": low, "high": high}, RATE: {"low": 4.0, "high": 5.5}},
    }
    return {"completed": 10, TTFT: 100.0, "prediction": entry}


def test_the_ends_stand_beside_the_figures_of_a_run() -> None:
    text = verdict_table({"vllm": [run(80.0, 217.4)]})
    assert "On a real server" in text
    assert "80.0 to 217.4" in text
    assert "4.00 to 5.50" in text
    assert "90 % of similar real servers fell in this range (measured kernels)" in text
    assert "surer" not in text


def test_long_times_are_in_a_longer_unit() -> None:
    lines = verdict_table({"vllm": [run(8100.0, 21400.0)]}).splitlines()
    head = next(place for place, text in enumerate(lines) if text.startswith("On a real server"))
    assert lines[head + 1].split() == ["s", "req/s"]
    assert "8.10 to 21.40" in lines[head + 2]


def test_over_seeds_the_ends_are_means() -> None:
    assert ends_of([run(1.0, 3.0), run(2.0, 5.0)], TTFT) == (1.5, 4.0)
    assert ends_of([run(1.0, 3.0), {"completed": 1}], TTFT) is None


def test_a_run_without_an_interval_has_a_dash_and_none_has_no_block() -> None:
    both: dict[str, Any] = {"vllm": [run(1.0, 3.0)], "own": [{"completed": 10, TTFT: 100.0}]}
    line = next(text for text in verdict_table(both).splitlines() if text.startswith("own") and "-" in text)
    assert line.split()[-2:] == ["-", "-"]
    assert "On a real server" not in verdict_table({"own": both["own"]})


@pytest.mark.parametrize(("whys", "said"), [(("a", "a"), "(a)"), (("a", "b"), "(a; b)")])
def test_the_note_names_each_reason_once_and_what_runs_share(whys: tuple[str, str], said: str) -> None:
    note = prediction_note({str(place): [run(1.0, 2.0, why)] for place, why in enumerate(whys)})
    assert said in note
    assert "their order is more certain" in note
