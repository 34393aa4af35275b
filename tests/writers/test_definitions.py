"""The page of definitions, and the README's table that is written from it."""

from __future__ import annotations

from pathlib import Path

from docs.writers.definitions import markdown
from reports.columns import COLUMNS
from reports.definitions import METRICS_TABLE
from simulator.metrics.latency import LATENCIES

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_has_the_table() -> None:
    again = "write it again: make pages PAGES=metrics"
    assert f"\n{markdown()}\n" in README.read_text(encoding="utf-8"), again


def test_every_column_is_defined() -> None:
    defined = {row[0] for row in METRICS_TABLE.body}
    for column in COLUMNS.values():
        assert column.title in defined or column.title.rpartition(" ")[0] in defined
    assert all(f"| {name} | {latency.definition}" in markdown() for name, latency in LATENCIES.items())
