"""A simulation beside a scrape of a real server's metrics: the errors, and every figure of both sides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reports.html import pieces as html
from reports.pages.validation_report import error_bars
from reports.tables.request_tables import TableRows


@dataclass(frozen=True, slots=True)
class ScrapePage:
    """All that the page says. `errors` are signed fractions by name, as `validation_report.Facing` has them."""

    title: str
    subtitle: str
    rows: TableRows
    errors: Mapping[str, float]
    words: Sequence[str]
    notes: Sequence[str]
    scenario_yaml: str


def write_scrape(folder: Path, page: ScrapePage) -> Path:
    """Write the picture and report.html into `folder`; return the page's path. Equal input gives equal bytes."""
    pictures = [error_bars(page.errors)] if page.errors else []
    sections = [
        html.section("Verdict", html.paragraphs(list(page.words), "verdict")),
        html.section("Errors", *map(html.figure, pictures), html.table(page.rows)),
        html.section("Notes", html.paragraphs(list(page.notes), "notes")),
        html.section("Scenario", html.details("Resolved scenario", page.scenario_yaml)),
    ]
    return html.write_page(folder, page.title, page.subtitle, sections, pictures)
