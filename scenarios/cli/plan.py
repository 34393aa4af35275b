"""`batchlab plan`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli.flags import Console, Given, NoReport, Scenario
from simulator.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from scenarios.plan.answer import Plan
    from scenarios.plan.plan import Find
    from scenarios.plan.tried import Tried
    from scenarios.schema.scenario import Scenario as Loaded

Slo = Annotated[
    list[str] | None,
    typer.Option(
        "--slo",
        metavar="METRIC<=VALUE",
        help="A limit (<= or >=) on a key of summary.json, CLASS:METRIC<=VALUE for one class; repeatable. Default: the "
        "scenario's SLO.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option("--vary", metavar="KEY=VALUES", help="Settings to choose from, as in `sweep`; several make a grid."),
]


def plan(
    scenario: Scenario,
    slo: Slo = None,
    find: Annotated[
        str, typer.Option("--find", metavar="rate|replicas|config", help="What to look for; default: rate.")
    ] = "rate",
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="R", help="The load for replicas and config, in requests/s; default: the scenario's."
        ),
    ] = None,
    gpus: Annotated[str, typer.Option("--gpus", metavar="a,b", help="GPUs to choose from.")] = "",
    policies: Annotated[str, typer.Option("--policies", metavar="a,b", help="Policies to choose from.")] = "",
    vary: Vary = None,
    budget_s: Annotated[
        float | None,
        typer.Option("--budget-s", metavar="S", help="Stop after S CPU seconds; the answer says what is left open."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, metavar="K", help="Number of seeds for drawn traffic; default: 5.")
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            "--confidence",
            metavar="P",
            help="Size by the pessimistic end of the prediction's interval of probability P (0.5 to 0.98).",
        ),
    ] = None,
    *,
    given: Given,
    no_report: NoReport = False,
) -> None:
    """Plan capacity: rate, replicas or settings for an SLO.

    It finds the largest rate that meets the SLO, the fewest replicas for a load, or the best settings, and what they
    cost. Rates have a 95 % interval; candidates whose intervals do not separate them are called equal. --out writes a
    report, plan.json and, for each of the best candidates, a scenario and what starts its server: a script, a compose
    file, Kubernetes manifests, and values of llm-d and Dynamo where these start it. A plan that was
    stopped goes on there.
    """
    from scenarios.plan.goal import chosen_goals
    from scenarios.plan.plan import SEEDS, make_plan
    from scenarios.runs.storage.output import check_output
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.schema.loader import load
    from scenarios.studies.study_axes import parse_vary

    console, out = given.console, given.out
    chosen = _find(find)
    base = load(scenario, given.changed)
    goals = chosen_goals(slo or [], base)
    axes = [parse_vary(text) for text in vary or []]
    named = [part.strip() for part in gpus.split(",") if part.strip()]
    if out is not None:
        check_output(out, overwrite=given.overwrite, expected=None)
    counting = console.counted(base.name, 0, "runs" if chosen == "config" else "candidates")
    with _kept(out, console) as tried, counting as progress:
        found = make_plan(
            base,
            goals,
            chosen,
            rate=rate,
            gpus=named,
            policies=policies,
            axes=axes,
            budget_s=budget_s,
            seeds=SEEDS if seeds is None else seeds,
            progress=progress,
            tried=tried,
            confidence=confidence,
        )
    console.notes(found.notes)
    if out is not None:
        _write(out, found, base, overwrite=given.overwrite, report=not no_report)
        if tried is not None:
            tried.forget()
    console.out(to_json(found.to_json()) if given.json else _text(found, console))
    earlier = f", {tried.found:,} of them from before" if tried is not None and tried.found else ""
    console.note(f"{found.runs:,} runs in {found.cpu_s:.1f} CPU seconds{earlier}")


@contextmanager
def _kept(out: Path | None, console: Console) -> Iterator[Tried | None]:
    """Yield the keeper of what is tried, if there is a folder; a plan that is stopped says how it goes on."""
    if out is None:
        yield None
        return
    from scenarios.plan.tried import Tried

    tried = Tried(out)
    try:
        yield tried
    except (KeyboardInterrupt, SystemExit):
        if not tried.is_empty:
            console.note(f"what was tried is kept in {out}: the same command goes on")
        raise
    finally:
        if tried.is_empty:  # bad input, or stopped at once: nothing is left behind
            tried.forget()


def _find(word: str) -> Find:
    from scenarios.plan.plan import FINDS
    from scenarios.schema.source.hints import did_you_mean

    for each in FINDS:
        if word == each:
            return each
    raise InputError(f"--find does not know {word!r}", file="--find", hint=did_you_mean(word, FINDS))


def _text(found: Plan, console: Console) -> str:
    from reports.tables.terminal import aligned
    from scenarios.plan.text import TEXT_COLUMNS, below, sentence, table

    terminal = console.terminal
    lines = [terminal.folded(line, 9) for line in below(found)]
    text = [terminal.folded(sentence(found), 0), "", aligned(table(found), TEXT_COLUMNS, terminal.width), "", *lines]
    return "\n".join(text).rstrip() + "\n"


def _write(target: Path, found: Plan, base: Loaded, *, overwrite: bool, report: bool) -> None:
    from scenarios.plan.folder import write_plan
    from scenarios.runs.storage.output import output

    with output(target, overwrite=overwrite, expected=None) as folder:
        write_plan(folder, found, base)
        if report:
            from reports.pages.plan_report import write_report
            from scenarios.cli.plan_page import plan_page

            write_report(folder, plan_page(found))
