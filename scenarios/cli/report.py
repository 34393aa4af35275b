"""`batchlab report`, and the tables that all verbs print of results."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import Console, Out, Overwrite, Quiet
from simulator.errors import InputError

if TYPE_CHECKING:
    from reports.tables.terminal import Terminal
    from scenarios.show import Shown

_COSTS = "warning: the runs have different step costs ({}): what differs between them may be these and not the policies"
_UNEQUAL = "the folders hold different numbers of seeds: the first of each is shown"


def tables(runs: Sequence[Shown], terminal: Terminal) -> str:
    """Return the verdict table, the tables by class and by replica where there are several, and the figures' basis."""
    from reports.tables.basis import provenance_words
    from reports.tables.request_tables import class_table, replica_table
    from reports.tables.verdict_table import MOST_OF_A_LABEL, verdict_table, wrapped
    from reports.units import fitted
    from reports.verdict.slo_targets import facts
    from scenarios.show import are_paired

    first, paired = runs[0].scenario, are_paired(runs)
    cuts = first.measure.window(runs[0].records)
    slo = first.resolve_slo() if paired else None
    summaries = {run.label: run.summaries for run in runs}
    known = {
        run.label: facts(run.records, run.scenario.resolve_slo(), **run.scenario.measure.window(run.records))
        for run in runs
    }
    parts = [verdict_table(summaries, slo, known, terminal, paired=paired)]
    if found := [run for run in runs if run.findings is not None]:
        parts.append(_findings(found, terminal))
    if paired and len(runs) > 1:
        parts += _difference_lines(runs, cuts, terminal)
    lines = [(fitted(run.label, MOST_OF_A_LABEL), run.records) for run in runs]
    for title, rows in (("By class", class_table(lines, slo, **cuts)), ("By replica", replica_table(lines, **cuts))):
        if rows is not None:
            parts.append(f"{_title(title, runs, terminal)}\n{rows.text(terminal.width)}\n")
    if basis := provenance_words(summaries):
        parts.append(terminal.paint(wrapped(basis, terminal.prose_width), "dim") + "\n")
    return "\n".join(parts)


def _title(text: str, runs: Sequence[Shown], terminal: Terminal) -> str:
    return terminal.paint(text, "title") + (" (first seed)" if len(runs[0].summaries) > 1 else "")


def diagnosed(runs: Sequence[Shown]) -> list[Shown]:
    """Return the runs with the findings of their first seeds."""
    from scenarios.diagnosis.diagnose import diagnose
    from scenarios.diagnosis.words import findings_text

    return [
        replace(run, findings=findings_text(diagnose(run.scenario, run.records, run.summaries[0], run.workload)))
        for run in runs
    ]


def _findings(runs: Sequence[Shown], terminal: Terminal) -> str:
    """Return the diagnosis, in a line or two for each run."""
    from reports.tables.verdict_table import wrapped

    lines = [_title("Diagnosis", runs, terminal)]
    for run in runs:
        said = run.findings.lines if run.findings is not None else ()
        begin = f"{run.label}: " if len(runs) > 1 else ""
        lines += [
            wrapped(f"{begin if not place else ''}{line}", terminal.prose_width) for place, line in enumerate(said)
        ]
    ill = next((run for run in runs if run.findings is not None and run.findings.rows), None)
    if ill is not None:
        place = "RUN_DIR" if ill.folder is None else shlex.quote(ill.folder.as_posix())
        lines.append(terminal.paint(f"batchlab explain {place} tries what helps.", "dim"))
    return "\n".join(lines) + "\n"


def _difference_lines(runs: Sequence[Shown], cuts: Mapping[str, float], terminal: Terminal) -> list[str]:
    """Return the differences of the runs to the first, where they are known."""
    from reports.tables.differences import OVER_SEEDS, WITHIN_RUNS, difference_table, differences
    from reports.tables.verdict_table import MOST_OF_A_LABEL, wrapped
    from reports.units import fitted

    labels = {run.label: fitted(run.label, MOST_OF_A_LABEL) for run in runs}
    found = differences({run.label: run.summaries for run in runs}, {run.label: run.records for run in runs}, **cuts)
    rows = difference_table({labels[label]: of_run for label, of_run in found.items()})
    if rows is None:
        return []
    title = terminal.paint(f"Differences to {labels[runs[0].label]}", "title")
    basis = OVER_SEEDS if len(runs[0].summaries) > 1 else WITHIN_RUNS
    basis = terminal.paint(wrapped(basis, terminal.prose_width), "dim")
    return [f"{title}\n{rows.text(terminal.width)}\n{basis}\n"]


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of runs and comparisons, or of one sweep.")
    ],
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Draw the report of saved runs.

    The report comes from their rows; nothing is simulated. Plots and report.html go to --out, else into the given
    folder, or to runs/report-FOLDERS for several. An existing report is replaced only if the new one is the same, or
    with --overwrite.
    """
    from scenarios.runs.storage.folder_names import default_folder
    from scenarios.runs.storage.output import SWEEP, kind_of
    from scenarios.runs.storage.run_folder import REPORT
    from scenarios.show import write_pictures

    console = Console(quiet=quiet)
    given = list(dict.fromkeys(folders))
    if any(kind_of(folder) == SWEEP for folder in given):
        _report_sweep(given, out, console, overwrite=overwrite)
        return
    runs, notes = _together([entry for folder in given for entry in _read(folder)])
    target = out or (given[0] if len(given) == 1 else default_folder("report", "+".join(map(str, given))))
    console.notes(notes)
    runs = diagnosed(runs)
    with _drawn(target, overwrite=overwrite, own=target in given) as inside:
        console.note("drawing the report")
        write_pictures(inside, runs, notes)
    console.out(tables(runs, console.terminal))
    console.out(f"\nreport: {target / REPORT}\n")


def _drawn(target: Path, *, overwrite: bool, own: bool) -> AbstractContextManager[Path]:
    """Open the folder for a report. Where it holds the report's `own` rows, these stay beside it."""
    from scenarios.runs.storage.output import kind_of, output
    from scenarios.runs.storage.run_folder import report_files

    is_equal = own or kind_of(target) is None
    owned = report_files(target) if own else None
    return output(target, overwrite=overwrite, expected={} if is_equal else None, owned=owned)


def _report_sweep(given: Sequence[Path], out: Path | None, console: Console, *, overwrite: bool) -> None:
    """Draw the report of a sweep from its study and its table."""
    from reports.sweep.sweep_report import write_sweep_report
    from scenarios.cli.report_sweeps import best, sweep_result
    from scenarios.runs.storage.run_folder import REPORT
    from scenarios.studies.run_sweep import read_sweep

    if len(given) > 1:
        raise InputError("a sweep has a report of its own", file="batchlab report", hint="give its folder alone")
    target = out or given[0]
    result = sweep_result(read_sweep(given[0]))
    with _drawn(target, overwrite=overwrite, own=target == given[0]) as inside:
        console.note("drawing the report")
        write_sweep_report(inside, result)
    console.out(best(result, console.terminal).lstrip("\n"))
    console.out(f"report: {target / REPORT}\n")


@dataclass(frozen=True, slots=True)
class _Found:
    """A line that a folder holds."""

    shown: Shown
    folder: Path
    data: Mapping[str, Any]  # the resolved scenario
    notes: Sequence[str]  # of all its seeds


def _together(found: Sequence[_Found]) -> tuple[list[Shown], tuple[str, ...]]:
    """Give the lines of several folders labels of their own. Returns them, and the notes on them."""
    from scenarios.runs.comparison import merge_notes

    seeds = min(len(each.shown.summaries) for each in found)
    unequal = any(len(each.shown.summaries) != seeds for each in found)
    kinds = dict.fromkeys(str(each.data["cost"]["kind"]) for each in found)
    common = [_UNEQUAL] if unequal else []
    common += [_COSTS.format(", ".join(kinds))] if len(kinds) > 1 else []
    runs: list[Shown] = []
    notes: dict[str, list[str]] = {}
    for label, each in _labelled(found):
        shown = each.shown
        # Comparisons are paired by seed.
        runs.append(replace(shown, label=label, summaries=shown.summaries[:1] if unequal else shown.summaries))
        notes[label] = [*common, *each.notes]
    return runs, merge_notes(notes)


def _labelled(found: Sequence[_Found]) -> list[tuple[str, _Found]]:
    """Return the lines in the order to show them, under labels that say in what they differ.

    The lines of one folder keep their labels. Equal labels have their folder behind them.
    """
    from scenarios.runs.labels import arrange

    if len({each.folder for each in found}) == 1:
        return [(each.shown.label, each) for each in found]
    labels = arrange([each.data for each in found])
    count = Counter(label.text for label in labels)
    return [
        (label.text if count[label.text] == 1 else f"{label.text} ({found[label.place].folder})", found[label.place])
        for label in labels
    ]


def _read(folder: Path) -> list[_Found]:
    """Read the lines of a report from a folder: one for a run, one for each policy of a comparison."""
    import yaml

    from scenarios.assembly.engine_policy import policies_label
    from scenarios.runs.storage.run_folder import SCENARIO
    from scenarios.runs.storage.saved_run import is_comparison, read_run, read_runs, read_summary
    from scenarios.schema.loader import load
    from scenarios.show import Shown

    lines = read_runs(folder) if is_comparison(folder) else {"": [folder]}
    found = []
    for label, places in lines.items():
        first = read_run(places[0])
        others = [read_summary(place) for place in places[1:]]
        scenario = load(places[0] / SCENARIO, check_files=False)
        shown = Shown(
            label or policies_label(scenario),
            scenario,
            first.scenario_yaml,
            first.records,
            [first.summary, *(summary for summary, _ in others)],
            prefixes=first.prefixes,
            folder=places[0],
        )
        notes = dict.fromkeys([*first.notes, *(note for _, noted in others for note in noted)])
        found.append(_Found(shown, folder, yaml.safe_load(first.scenario_yaml), list(notes)))
    return found
