"""`batchlab explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import Given

if TYPE_CHECKING:
    from reports.tables.terminal import Terminal
    from scenarios.diagnosis.diagnose import Explanation


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The folder of a run.")],
    no_what_if: Annotated[bool, typer.Option("--no-what-if", help="Name the remedies without trying them.")] = False,
    *,
    given: Given,
) -> None:
    """Say what is wrong with a run, and what helps.

    The run is simulated again from its scenario.yaml, with what --set and --seed change. Each finding has its evidence
    and remedies. Each remedy is tried on the same requests, and the answer says whether it helps. --out writes a page
    with pictures of the run (report.html) and explain.json to a folder, which may be that of the run.
    """
    from scenarios.diagnosis.diagnose import data, with_findings
    from scenarios.diagnosis.diagnose import explain as find
    from scenarios.runs.storage.output import output, same_scenario
    from scenarios.runs.storage.run_folder import EXPLANATION, REPORT, SCENARIO, read_summary, single_run, to_json
    from scenarios.schema.loader import load
    from scenarios.show import write_pictures

    console, changed, out = given.console, given.changed, given.out
    saved, _ = read_summary(single_run(run, "explain"))
    scenario = load(run / SCENARIO, changed)
    with console.timed() as timed:
        found = find(scenario, what_if=not no_what_if, progress=timed.progress)
        timed.simulated()
    console.notes(found.result.notes)
    if not changed and found.result.summary != saved:
        console.note("warning: the run comes out differently now: its trace, its policy's file or batchlab changed")
    if out is not None:
        expected = same_scenario(lambda: found.result.scenario_yaml)
        with output(out, overwrite=given.overwrite, expected=expected) as folder:
            (folder / EXPLANATION).write_text(to_json(data(found)), encoding="utf-8", newline="\n")
            if not (out / SCENARIO).is_file():
                (folder / SCENARIO).write_text(found.result.scenario_yaml, encoding="utf-8", newline="\n")
            shown: Any = found.result.shown()
            write_pictures(folder, [with_findings(shown, found)], found.result.notes)
    console.out(to_json(data(found)) if given.json else _text(found, console.terminal))
    if out is not None:
        (console.note if given.json else console.out)(f"\nreport: {out / REPORT}\n")


def _text(found: Explanation, terminal: Terminal) -> str:
    """Return the state of the run, then each finding with its evidence and its remedies."""
    from reports.tables.verdict_table import wrapped
    from scenarios.diagnosis.diagnose import capital, change_text, headline, outcome, weight, when

    def indented(text: str, first: str, rest: str) -> str:
        lines = wrapped(text, terminal.prose_width - len(rest)).split("\n")
        return "\n".join([first + lines[0], *(rest + line for line in lines[1:])])

    result = found.result
    parts = [wrapped(f"{result.scenario.name}, {result.label}: {headline(found.findings)}", terminal.prose_width)]
    for place, (each, tried) in enumerate(zip(found.findings.found, found.tried, strict=True), 1):
        title = terminal.paint(f"{place}. {capital(each.rule.title)}", "title")
        lines = [f"{title} ({weight(each)}, {when(each)})", indented(f"{capital(each.claim.words)}.", "   ", "   ")]
        for trial in tried:
            lines.append(indented(f"{change_text(trial.remedy.change)} ({trial.remedy.why})", "   - ", "     "))
            lines.append(indented(outcome(trial), "     ", "     "))
        if not tried:
            lines += [
                indented(f"{change_text(remedy.change)} ({remedy.why}): not tried", "   - ", "     ")
                for remedy in each.claim.remedies
            ]
        if not each.claim.remedies:
            lines.append("   no remedy among the keys of the scenario")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
