"""What the verbs show of results: tables on stdout, pictures in a folder. The way to `reports`, imported when used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.schema import Scenario
from simulator.records import Records


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of a table or a report: a run, and the summaries of all its seeds."""

    label: str
    scenario: Scenario
    scenario_yaml: str
    records: Records  # of the first seed
    summaries: Sequence[Mapping[str, Any]]


def tables(runs: Sequence[Shown]) -> str:
    """The verdict table, the table by class where there are several, and what the output costs."""
    from reports.table import verdict_table
    from reports.tables import class_table

    first = runs[0].scenario
    slo = first.resolve_slo()
    parts = [verdict_table({run.label: run.summaries for run in runs}, slo)]
    by_class = class_table([(run.label, run.records) for run in runs], slo, **first.measure.model_dump())
    if by_class is not None:
        seeds = " (first seed)" if len(runs[0].summaries) > 1 else ""
        parts.append(f"By class{seeds}\n{_aligned([by_class.head, *by_class.body], by_class.text_columns)}\n")
    if costs := _costs(runs):
        parts.append(costs)
    return "\n".join(parts)


def write_pictures(folder: Path, runs: Sequence[Shown], notes: Sequence[str]) -> None:
    """Plots and report.html into an existing folder."""
    from reports.build import ReportRun, write_report

    report_runs = [
        ReportRun(
            label=run.label,
            policy=run.scenario.engine.policy,
            records=run.records,
            summaries=run.summaries,
            scenario_yaml=run.scenario_yaml,
            slo=run.scenario.resolve_slo(),
            warmup_s=run.scenario.measure.warmup_s,
            cooldown_s=run.scenario.measure.cooldown_s,
        )
        for run in runs
    ]
    write_report(folder, report_runs, notes)


def _costs(runs: Sequence[Shown]) -> str:
    """A line on the price of the output, where it is known; what was not served stands beside it."""
    parts = []
    for run in runs:
        prices = [summary.get("usd_per_million_output_tokens") for summary in run.summaries]
        known = [price for price in prices if price is not None]
        if known:
            lost = sum(summary["rejected"] + summary["unfinished"] for summary in run.summaries)
            parts.append(
                f"{run.label} {sum(known) / len(known):.3f}" + (f" ({lost:,} requests not served)" if lost else "")
            )
    return f"USD per million output tokens: {', '.join(parts)}\n" if parts else ""


def _aligned(rows: Sequence[Sequence[str]], text_columns: int) -> str:
    """Rows as lines: text to the left, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index < text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
