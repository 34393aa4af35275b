"""Results as a line, a table for a notebook, pictures, a report.

This is where `scenarios` reaches `reports`, which is imported when it is used: a simulation draws nothing and loads no
matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.results.records import Records
from simulator.results.shared_prefixes import PrefixColumns, shared_prefixes
from simulator.workload import Workload

if TYPE_CHECKING:
    from reports.picture import Picture as Picture  # for the annotations of others
    from reports.picture import ReportRun


@dataclass(frozen=True, slots=True)
class FindingsText:
    """The diagnosis of a run in words: its state, a line or two for a terminal, and rows of finding, weight, time,
    evidence and remedy."""

    state: str
    lines: tuple[str, ...]
    rows: tuple[tuple[str, str, str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of a table or a report: a run, and the summaries of all its seeds."""

    label: str
    scenario: Scenario
    scenario_yaml: str
    records: Records  # of the first seed
    summaries: Sequence[Mapping[str, Any]]
    findings: FindingsText | None = None
    workload: Workload | None = None  # the requests, where they are at hand
    prefixes: PrefixColumns | None = None  # that their prompts share, where they are not
    folder: Path | None = None  # its run folder, where it is known


def are_paired(runs: Sequence[Shown]) -> bool:
    """Return whether all runs saw the same requests and are held to the same SLO: only such runs can be ranked."""
    asked = [(run.scenario.workload, run.scenario.seed, run.scenario.resolve_slo()) for run in runs]
    return all(each == asked[0] for each in asked)


def one_line(summary: Mapping[str, Any]) -> str:
    """Return the main figures of a run in a line: requests, TTFT, TPOT, tokens a second."""
    from reports.units import latency, short

    completed, duration = summary["completed"], summary["duration"]
    parts = [f"{completed:,} requests completed in {latency(1e3 * duration)}"]
    for name, key in (("TTFT p99", "p99_ttft_ms"), ("TPOT p99", "p99_tpot_ms")):
        if summary.get(key) is not None:
            parts.append(f"{name} {latency(summary[key])}")
    if summary.get("output_throughput") is not None:
        parts.append(f"{short(summary['output_throughput'])} tok/s")
    lost = [f"{summary[key]:,} {key}" for key in ("rejected", "unfinished", "aborted") if summary.get(key)]
    return ", ".join([*parts, *lost])


def html_table(title: str, runs: Sequence[Shown]) -> str:
    """The verdict table as HTML, with what its figures rest on."""
    from reports.tables.details import provenance_words
    from reports.tables.verdict_table import html_table as of_summaries

    summaries = {run.label: run.summaries for run in runs}
    return of_summaries(title, summaries, provenance_words(summaries))


def picture(runs: Sequence[Shown], kind: str) -> Picture:
    """One picture of the report. Raises InputError for an unknown kind."""
    from reports.pages.run_report import plots
    from reports.picture import styles
    from scenarios.schema.source.hints import did_you_mean

    drawn = [report_run(run) for run in runs]
    known = {plot.name: plot for plot in plots(drawn, styles([(run.label, run.policy) for run in drawn]))}
    if kind not in known:
        raise InputError(f"no picture of the kind {kind!r}", hint=did_you_mean(kind, tuple(known)))
    return known[kind].paint()


def write_pictures(folder: Path, runs: Sequence[Shown], notes: Sequence[str]) -> None:
    """Write plots and report.html into an existing folder."""
    from reports.pages.run_report import write_report

    write_report(folder, [report_run(run) for run in runs], notes, paired=are_paired(runs))


def export_files() -> frozenset[str]:
    """The names of all files that `batchlab export` may write."""
    from reports.exports import exported_run

    return exported_run.export_files()


def report_run(run: Shown) -> ReportRun:
    """Return the run as `reports` takes it, which knows no scenarios."""
    from reports.picture import ReportRun

    return ReportRun(
        label=run.label,
        policy=run.scenario.engine.policy,
        records=run.records,
        summaries=run.summaries,
        scenario_yaml=run.scenario_yaml,
        slo=run.scenario.resolve_slo(),
        **run.scenario.measure.window(run.records),
        state="" if run.findings is None else run.findings.state,
        findings=() if run.findings is None else run.findings.rows,
        prefixes=run.prefixes or shared_prefixes(run.workload, run.records),
    )
