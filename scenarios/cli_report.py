"""`batchlab report`: tables and pictures again, from the rows of a run, nothing simulated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli_flags import Console, Out, Quiet

if TYPE_CHECKING:
    from scenarios.cli_output import Shown

DEFAULT = Path("runs", "report")  # for several folders together


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Folders of runs and comparisons.")],
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Draw the report of saved runs again.

    From their rows: nothing is simulated. Plots and report.html go to --out, else into the folder given, or to
    runs/report where there are several.
    """
    from scenarios.cli_output import tables, write_pictures
    from scenarios.comparison import merge_notes
    from scenarios.run_folder import REPORT, check_target, report_files
    from scenarios.staging import staging

    console = Console(quiet=quiet)
    found = [entry for folder in folders for entry in _read(folder)]
    names = Counter(shown.label for shown, _, _ in found)
    runs, notes = [], {}
    for shown, folder, noted in found:
        label = shown.label if names[shown.label] == 1 else f"{shown.label} ({folder.name})"
        runs.append(replace(shown, label=label))
        notes[label] = noted
    target = out or (folders[0] if len(folders) == 1 else DEFAULT)
    check_target(target)
    merged = merge_notes(notes)
    console.notes(merged)
    with staging(target, owned=report_files(target)) as inside:
        console.note("drawing the report")
        write_pictures(inside, runs, merged)
    console.out(tables(runs))
    console.out(f"report: {target / REPORT}\n")


def _read(folder: Path) -> list[tuple[Shown, Path, list[str]]]:
    """The lines of a report that a folder holds, each with its folder and its notes over all seeds."""
    from scenarios.build import policy_label
    from scenarios.cli_output import Shown
    from scenarios.loader import load
    from scenarios.run_folder import SCENARIO, is_comparison, read_run, read_runs, read_summary

    lines = {"": [folder]}
    if is_comparison(folder):
        lines = read_runs(folder)
    found = []
    for label, places in lines.items():
        first = read_run(places[0])
        others = [read_summary(place) for place in places[1:]]
        scenario = load(places[0] / SCENARIO, check_files=False)
        shown = Shown(
            label or policy_label(scenario.engine.policy),
            scenario,
            first.scenario_yaml,
            first.records,
            [first.summary, *(summary for summary, _ in others)],
        )
        notes = dict.fromkeys([*first.notes, *(note for _, noted in others for note in noted)])
        found.append((shown, folder, list(notes)))
    return found
