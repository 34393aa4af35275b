"""The report of a search has its sections, and pictures of who pays and of the race."""

from pathlib import Path

from reports.pages.search_report import SearchPage, write_report
from reports.tables.details import TableRows

ROWS = TableRows(("metric", "own policy", "found"), (("goodput", "1", "2"),))


def test_the_page_has_its_sections_and_pictures(tmp_path: Path) -> None:
    over = [(100.0, (500.0, 50.0), (0.5, 0.9)), (2000.0, (800.0, 1500.0), (0.4, 0.2))]
    trials = [(0, 1.0, 2), (1, 2.0, 2), (2, 0.5, 1)]
    page = SearchPage("t", "s", ["Take it."], "vllm serve X", ROWS, ROWS, ROWS, over, trials, "request_goodput")
    write_report(tmp_path, page)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for title in (
        "Answer",
        "The best candidate",
        "On traffic that the search never saw",
        "Which requests pay",
        "The race",
    ):
        assert f"<h2>{title}</h2>" in text
    assert "vllm serve X" in text
    assert {path.name for path in (tmp_path / "plots").glob("*.png")} == {"race.png", "which_requests_pay.png"}
