"""`measure.warmup_s: auto`: the summary says what was cut, and runs that are compared are cut alike."""

from typing import Any

import pytest

from scenarios.runs.comparison import compare
from scenarios.runs.runner import run
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.metrics.warmup_cut import warmup_cut
from tests.traffic import one_class

SCENARIO: dict[str, Any] = {
    "name": "filling",
    "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 1e-5, "per_context_token_s": 1e-6},
    "workload": one_class(900, 6, (50, 150), (200, 300), name="chat"),
    "measure": {"warmup_s": "auto"},
}


def test_the_summary_and_a_note_say_what_was_cut() -> None:
    result = run(SCENARIO)
    found = warmup_cut(result.records)
    assert found.settled
    assert found.requests > 0
    assert result.summary["warmup"] == found.entry()
    assert result.summary["completed"] == 900 - found.requests
    assert found.words() in result.notes
    assert "warmup_s: auto" in result.scenario_yaml


def test_a_cut_in_seconds_is_the_same_run_and_says_nothing() -> None:
    auto = run(SCENARIO).summary
    given = run({**SCENARIO, "measure": {"warmup_s": auto["warmup"]["cut_s"]}})
    assert "warmup" not in given.summary
    assert given.summary["p99_ttft_ms"] == auto["p99_ttft_ms"]
    assert not any("warm-up" in note for note in given.notes)


def test_runs_that_are_compared_are_cut_alike() -> None:
    found = compare(SCENARIO, ["chunked_prefill", "continuous"], seeds=2)
    cuts = {result.scenario.measure.warmup_s for result in found.first.values()}
    assert len(cuts) == 1
    alone = {label: run({**SCENARIO, "engine": {"policy": label}}).summary["warmup"] for label in found.first}
    assert cuts == {max(each["cut_s"] for each in alone.values())}
    assert len({summaries[0]["completed"] for summaries in found.summaries.values()}) == 1
    assert sum("the same for all runs" in note for note in found.notes) == 1


@pytest.mark.parametrize("word", ["automatic", "-3"])
def test_another_word_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="a number of at least 0, or auto"):
        load(SCENARIO, [f"measure.warmup_s={word}"])
