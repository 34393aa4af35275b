"""`batchlab report`, the tables that all verbs print of results, and a sweep in the form that `reports` takes."""

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
    from reports.sweep.points import SweepAxis, SweepPoint, SweepResult
    from reports.tables.terminal import Terminal
    from scenarios.show import Shown
    from scenarios.studies.run_sweep import Row, Swept
    from scenarios.studies.study import Setting, Study

_COSTS = "warning: the runs have different step costs ({}): what differs between them may be these and not the policies"
_UNEQUAL = "the folders hold different numbers of seeds: the first of each is shown"


def tables(runs: Sequence[Shown], terminal: Terminal) -> str:
    """Return the verdict table, the tables by class and by replica where there are several, and the figures' basis."""
    from reports.tables.details import class_table, provenance_words, replica_table
    from reports.tables.verdict_table import MOST_OF_A_LABEL, verdict_table, wrapped
    from reports.units import fitted
    from reports.verdict.shown_metrics import facts
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
    from scenarios.diagnosis.diagnose import diagnose, findings_text

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
    from reports.tables.details import OVER_SEEDS, WITHIN_RUNS, difference_table, differences
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
    from scenarios.runs.storage.output import SWEEP, default_folder, kind_of
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
    from scenarios.runs.variants import arrange

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

    from scenarios.assembly.engines import policies_label
    from scenarios.runs.storage.run_folder import SCENARIO, is_comparison, read_run, read_runs, read_summary
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


# A sweep in the form that `reports` takes: it knows no scenarios.

_MOST_IN_TERMINAL = 10
_UNITS = {"rate": "requests/s"}  # of keys whose name does not say it


def write_sweep_report(target: Path, swept: Swept) -> SweepResult:
    """Write plots and report.html into the folder of a sweep, whole or not at all. Raises InputError."""
    from reports.sweep.sweep_report import write_sweep_report as write_report
    from scenarios.runs.storage.run_folder import report_files, staging

    result = sweep_result(swept)
    with staging(target, replace=report_files(target)) as folder:
        write_report(folder, result)
    return result


def best(result: SweepResult, terminal: Terminal) -> str:
    """Return the best points as a table, the basis of it, and the Pareto fronts with what keeps the SLO."""
    from reports.sweep.points import best_points, trades
    from reports.sweep.sweep_report import best_table, best_words, front_table
    from reports.tables.verdict_table import wrapped

    found = best_points(result)
    rows = best_table(found, named=0)
    words = "\n".join(wrapped(text, terminal.prose_width) for text in best_words(result, found))
    table = "" if rows is None else f"{rows.text(terminal.width)}\n\n"
    fronts = [
        f"{trade.title}: the Pareto front\n{front_table(result, trade, _MOST_IN_TERMINAL).text(terminal.width)}\n\n"
        for trade in trades(result)
    ]
    return f"\n{table}{words}\n\n{''.join(fronts)}"


def sweep_result(swept: Swept) -> SweepResult:
    """The points of a sweep on their axes."""
    from reports.sweep.points import SweepResult
    from scenarios.runs.variants import shortest_names

    study = swept.study
    groups = [axis.keys for axis in study.axes] or [(key,) for key in study.keys]  # keys that move together
    titles = shortest_names({key for keys in groups for key in keys})
    axes = [_axis(keys, study.settings, titles) for keys in groups]
    places = {axis.keys: {text: place for place, text in enumerate(axis.labels)} for axis in axes}
    count = len(study.seeds)
    points = []
    for index, setting in enumerate(study.settings):
        at = tuple(places[axis.keys][_text(axis.keys, setting)] for axis in axes)
        label = ", ".join(f"{titles[key]} {_value(key, value)}" for key, value in setting.items())
        points.append(_point(label, at, swept.rows[index * count : (index + 1) * count]))
    return SweepResult(study.name, tuple(axes), tuple(points), count, study.dump(), _limits(study))


def _axis(keys: tuple[str, ...], settings: Sequence[Setting], titles: Mapping[str, str]) -> SweepAxis:
    from reports.sweep.points import SweepAxis

    found = {_text(keys, setting): setting.get(keys[0]) for setting in settings}
    numbers = [value for value in found.values() if isinstance(value, (int, float)) and not isinstance(value, bool)]
    are_numbers = len(keys) == 1 and len(numbers) == len(found)
    unit = _UNITS.get(keys[0].rpartition(".")[2], "") if len(keys) == 1 else ""
    title = ", ".join(titles[key] for key in keys) + (f" ({unit})" if unit else "")
    return SweepAxis(keys, title, tuple(found), tuple(map(float, numbers)) if are_numbers else ())


def _text(keys: tuple[str, ...], setting: Setting) -> str:
    return ", ".join(_value(key, setting[key]) if key in setting else "-" for key in keys)


def _value(key: str, value: object) -> str:
    from scenarios.assembly.engines import policy_label

    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    return policy_label(value) if key == "engine.policy" and isinstance(value, str) else str(value)


def _point(label: str, at: tuple[int, ...], rows: Sequence[Row]) -> SweepPoint:
    from reports.sweep.points import SweepPoint

    error = next((outcome.error for _, _, outcome in rows if outcome.error), "")
    return SweepPoint(label, at, () if error else tuple(outcome.summary for _, _, outcome in rows), error)


def _limits(study: Study) -> dict[str, float]:
    """Return the SLO's limits by key of summary.json; none where the SLO itself varies."""
    slo = study.base.resolve_slo()
    if slo is None or any(key.partition(".")[0] == "slo" for key in study.keys):
        return {}
    return {**{f"p99_{name}_ms": limit for name, limit in slo.per_request().items()}, **slo.targets}
