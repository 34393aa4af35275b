"""The page of definitions, and the table of docs/metrics.md that is written from it."""

from pathlib import Path

from docs.writers.definitions import markdown
from reports.tables.details import METRICS_TABLE
from reports.verdict.shown_metrics import COLUMNS
from simulator.metrics.latency import LATENCIES

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_of_metrics_has_the_table() -> None:
    again = "write it again: make pages PAGES=metrics"
    assert f"\n{markdown()}\n" in PAGE.read_text(encoding="utf-8"), again


def test_every_column_is_defined() -> None:
    defined = {row[0] for row in METRICS_TABLE.body}
    for column in COLUMNS.values():
        assert column.title in defined or column.title.rpartition(" ")[0] in defined
    assert all(f"| {name} | {latency.definition}" in markdown() for name, latency in LATENCIES.items())
