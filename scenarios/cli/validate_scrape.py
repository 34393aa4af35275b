"""`batchlab validate` with a scrape of `/metrics` in place of a log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reports.tables.request_tables import TableRows
    from scenarios.cli.flags import Console
    from scenarios.schema.scenario import Scenario as Loaded
    from scenarios.validate.scraped import Figure, Scraped


def validate_scrape(
    chosen: Loaded,
    measured: Path,
    earlier: Path | None,
    target: Path,
    console: Console,
    *,
    overwrite: bool,
    json: bool,
    report: bool,
) -> None:
    """Run the scenario, compare it with the scrape, or with what came after an earlier one, and print the errors."""
    from reports.tables.verdict_table import wrapped
    from scenarios.assembly.engine_policy import policy_label, resolved_yaml
    from scenarios.measured.scrape import read_scrape
    from scenarios.runs.runner import run
    from scenarios.runs.storage.output import output, same_scenario
    from scenarios.runs.storage.run_folder import VALIDATION, to_json
    from scenarios.validate.scraped import compare_scrape

    scrape = read_scrape(measured)
    if earlier is not None:
        scrape = scrape.since(read_scrape(earlier))
    expected = same_scenario(lambda: resolved_yaml(chosen))
    with console.timed() as timed, output(target, overwrite=overwrite, expected=expected) as folder:
        result = run(chosen, progress=timed.progress)
        timed.simulated()
        found = compare_scrape(scrape, result.records)
        console.notes((*result.notes, *found.notes))
        result.write(folder)
        (folder / VALIDATION).write_text(to_json(found.data()), encoding="utf-8", newline="\n")
        rows, words = _rows(found), _words(found)
        if report:
            from reports.pages.scrape_report import ScrapePage, write_scrape

            console.note("drawing the report")
            title, notes = f"{chosen.name}: simulated and measured", (*result.notes, *found.notes)
            subtitle = f"a scrape of /metrics, {measured.name}; policy {policy_label(chosen.engine.policy)}"
            write_scrape(folder, ScrapePage(title, subtitle, rows, found.scored, words, notes, result.scenario_yaml))
    prose = "\n".join(wrapped(text, console.terminal.prose_width) for text in words)
    console.out(to_json(found.data()) if json else f"{rows.text(console.terminal.width)}\n\n{prose}\n\n")
    console.written(f"run folder: {target}", target if report else None, json=json)


def _rows(found: Scraped) -> TableRows:
    from reports.tables.request_tables import TableRows

    body = [_row(f"{_title(each.name)} {each.statistic}", "ms", each, 1e3) for each in found.latencies]
    body += [_row(f"{each.name} mean", "", each, 1.0) for each in found.lengths]
    body += [_row(each.name, "", each, 1.0) for each in found.counts]
    return TableRows(("", "", "measured", "simulated", "error"), tuple(body), 2)


def _words(found: Scraped) -> list[str]:
    from scenarios.validate.scraped import NOT_COMPARED

    there, here = found.requests
    score = found.data()["score"]
    return [
        f"{there:,} requests in the scrape, {here:,} in the simulation."
        + (f" TTFT, TPOT and E2E are off by {100 * float(str(score)):.1f} % on average." if score is not None else "")
        + " Percentiles of both sides are read from the server's buckets.",
        f"Not compared: {'; '.join((*NOT_COMPARED, *found.missing))}. A log with an entry for each request tells them.",
    ]


def _title(name: str) -> str:
    return name.upper() if name in ("ttft", "tpot", "e2e") else name


def _row(title: str, unit: str, each: Figure, scale: float) -> tuple[str, str, str, str, str]:
    from reports.units import MISSING, short

    error = MISSING if each.error != each.error else f"{100 * each.error:+.1f} %"
    return title, unit, short(scale * each.measured), short(scale * each.simulated), error
