"""The page of a plan: its limits in words, and a map where two settings vary."""

from dataclasses import replace
from pathlib import Path

import pytest

from reports.pages.plan_report import (
    OverKeys,
    PlanPage,
    Searched,
    limit_words,
    over_keys_picture,
    search_picture,
    write_report,
)
from reports.tables.details import TableRows
from tests.reports.plots.test_pictures import everything

GRID = OverKeys(
    "max_num_seqs", ("16", "64", "256"), "gpu", ("h100", "h200"),
    ("largest rate (req/s)", 1), {(0, 0): 2.0, (1, 0): 4.5, (2, 1): 6.25}, costs={(1, 0): 2.95, (2, 1): 2.951},
)  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("p99_ttft_ms<=500", "TTFT p99 ≤ 500 ms"),
        ("chat:p99_ttft_ms<=20000", "TTFT p99 of chat ≤ 20 s"),
        ("slo_attainment>=0.99", "within SLO ≥ 99 %"),
        ("something else", "something else"),
    ],
)
def test_limits_are_said_in_words(limit: str, words: str) -> None:
    assert limit_words(limit) == words


def test_a_map_has_rates_and_costs_and_blanks() -> None:
    picture = over_keys_picture(GRID)
    said = everything(picture).splitlines()
    for text in ("largest rate (req/s)", "cost (USD/M output tokens)", "max_num_seqs", "gpu", "h200", "4.5", "6.25"):
        assert text in said
    assert said.count("–") == 7, "three of six have a rate, two a cost"
    assert said.count("2.95") == 2
    assert "best over the other settings" not in picture.caption


def test_fewer_is_lighter_where_fewer_is_better() -> None:
    fewest = replace(GRID, best=("fewest GPUs for 100 req/s", -1), costs={})
    assert "fewest GPUs for 100 req/s" in everything(over_keys_picture(fewest)).splitlines()


def test_titles_are_broken_between_settings() -> None:
    label = "max_num_seqs 256, max_num_batched_tokens 8192, gpu_memory_utilization 0.95, chunked_prefill"
    searched = Searched(label, {"p99_ttft_ms<=500": [[(102.0, 0.5), (108.0, 1.2)]]}, (101.0, 104.0, 108.0))
    said = everything(search_picture([searched])).splitlines()
    for line in ("max_num_seqs 256, max_num_batched_tokens 8192,", "gpu_memory_utilization 0.95, chunked_prefill"):
        assert line in said
    assert "…" not in "".join(said)


@pytest.mark.parametrize(("at_best", "drawn"), [(150.0, True), (400.0, False), (None, False)])
def test_the_best_is_drawn_where_it_is_near(at_best: float | None, drawn: bool) -> None:
    used = {"p99_ttft_ms<=500": [[(102.0, 0.5), (108.0, 1.2)]]}
    picture = search_picture([Searched("a", used, (101.0, 104.0, 108.0), at_best=at_best)])
    assert ("upper bound for any scheduler" in picture.caption) == drawn
    assert ('id="bound"' in picture.svg) == drawn


def test_the_page_has_the_map_where_two_settings_vary(tmp_path: Path) -> None:
    rows = TableRows(("candidate", "rate"), (("a", "1"),))
    for folder, grid in (("one", None), ("two", GRID)):
        write_report(tmp_path / folder, PlanPage("t", "s", "a", (), rows, over_keys=grid))
        page = (tmp_path / folder / "report.html").read_text(encoding="utf-8")
        assert ("Over two settings" in page) == (grid is not None)
        assert (tmp_path / folder / "plots/settings.svg").exists() == (grid is not None)
