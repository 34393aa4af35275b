"""Write the pages that are made from the code: `python -m docs.writers [NAME ...]`."""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from docs.writers import (
    bounds,
    commands,
    definitions,
    findings,
    gallery,
    json_schema,
    measured_kernels,
    reference,
    refused_pairs,
    run_folder,
    studies,
    systems,
    trace_formats,
)
from docs.writers.accuracy import compute as accuracy
from docs.writers.accuracy import others_page, served_page
from docs.writers.claims import page as claims
from docs.writers.studies.study import Study
from docs.writers.tables import Files, write_files
from scenarios.schema.source.hints import did_you_mean
from simulator.errors import InputError

DOCS = Path(__file__).parents[1]


def _text(page: Callable[[], str], path: Path) -> Callable[[], None]:
    """A writer of one file of text."""

    def write() -> None:
        path.write_text(page(), encoding="utf-8", newline="\n")

    return write


def _with_data(page: Callable[[], str], path: Path, files: Callable[[], Files]) -> Callable[[], None]:
    """A writer of a page and its data files."""

    def write() -> None:
        _text(page, path)()
        write_files(DOCS, files())

    return write


def _table(markdown: Callable[[], str], page: Path) -> Callable[[], None]:
    """A writer of the table of a page that is written by hand; its head, two lines, says which table."""

    def write() -> None:
        text, table = page.read_text(encoding="utf-8"), markdown()
        head = "".join(table.splitlines(keepends=True)[:2])
        written = re.sub(re.escape(head) + r"(?:\|.*\n)*", lambda _: table, text)
        page.write_text(written, encoding="utf-8", newline="\n")

    return write


def _study(study: Study) -> Callable[[], None]:
    """A writer of a study's page and picture."""
    return lambda: studies.write(DOCS / "studies", study)


WRITERS: dict[str, Callable[[], None]] = {
    "commands": _text(commands.page, DOCS / "commands.md"),
    "diagnosis": _text(findings.page, DOCS / "diagnosis.md"),
    "metrics": _table(definitions.markdown, DOCS / "metrics.md"),
    "reference": _text(reference.page, DOCS / "reference.md"),
    "run-folder": _text(run_folder.page, DOCS / "run-folder.md"),
    "schema": _text(json_schema.text, json_schema.FILE),
    "systems": _text(systems.page, DOCS / "systems.md"),
    "traces": _table(trace_formats.markdown, DOCS / "traces.md"),
    "not-modelled": _table(refused_pairs.markdown, DOCS / "not-modelled.md"),
    "bounds": _table(bounds.markdown, DOCS / "bound.md"),
    "claims": _with_data(claims.page, DOCS / "claims.md", claims.files),
    "gallery": lambda: gallery.write(DOCS),
    **{name: _study(study) for name, study in studies.studies().items()},
    "kernels": _text(measured_kernels.text, measured_kernels.FILE),
    "served": lambda: served_page.write_page(DOCS),
    "disaggregated": _with_data(
        others_page.disaggregated_page, DOCS / "disaggregated.md", others_page.disaggregated_files
    ),
    "newcomer": _with_data(others_page.newcomer_page, DOCS / "newcomer.md", others_page.newcomer_files),
    "accuracy": lambda: accuracy.write(DOCS),
}
"""Every page by its name, the quick ones first; the last needs the measurements of the shared folder."""


def write_pages(names: Iterable[str]) -> None:
    """Write the named pages again, all of them without names. Raises InputError for a name that is no page."""
    wanted = list(names) or list(WRITERS)
    for name in wanted:
        if name not in WRITERS:
            raise InputError(f"no page is called {name!r}", hint=did_you_mean(name, list(WRITERS)))
    for name in wanted:
        WRITERS[name]()
        print(name, flush=True)


if __name__ == "__main__":
    try:
        write_pages(sys.argv[1:])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
