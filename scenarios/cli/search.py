"""`batchlab search`: find a policy for a scenario, and prove it on traffic that the search never saw."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli.flags import Address, Console, Executor, Given, NoReport, Scenario
from simulator.errors import InputError

if TYPE_CHECKING:
    from reports.pages.search_report import SearchPage
    from scenarios.search.search import Searched


def search(
    scenario: Scenario,
    objective: Annotated[
        str, typer.Option("--objective", metavar="METRIC", help="What is to become better: a key of summary.json.")
    ],
    slo: Annotated[
        list[str] | None,
        typer.Option("--slo", metavar="METRIC<=VALUE", help="A limit that the policy must keep; repeatable."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, metavar="N", help="Number of candidates; default: 200.")
    ] = None,
    budget_s: Annotated[
        float | None, typer.Option("--budget-s", metavar="S", help="Begin no further run after S CPU seconds.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=2, metavar="N", help="Seeds of drawn traffic, held-out ones included; default: 8."),
    ] = None,
    holdout: Annotated[
        float, typer.Option("--holdout", metavar="SHARE", help="Share of the traffic that the search does not see.")
    ] = 0.5,
    executor: Executor = "local",
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Number of processes; default: one per core.")
    ] = None,
    address: Address = None,
    *,
    given: Given,
    no_report: NoReport = False,
) -> None:
    """Search a better policy for a scenario, and prove it.

    Candidates are shipped policies, their settings, and compositions: order of the queue, caps, cadence, shedding. They
    race on one part of the traffic. The best is compared with the scenario's own policy on the rest. --out gets the
    policy as a file, a scenario that runs it, all trials and a report. A search that was stopped goes on there.
    """
    from scenarios.plan.goal import parse_goal
    from scenarios.runs.storage.output import check_output
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.schema.loader import load
    from scenarios.search.race import SEEDS, TRIALS
    from scenarios.search.search import checked
    from scenarios.search.search import search as run_search
    from scenarios.studies.run_sweep import executor as make_executor

    console, out = given.console, given.out
    base = load(scenario, given.changed)
    checked(objective, base)
    if out is None:
        raise InputError("a search writes a policy into a folder", file="--out", hint="give --out DIR")
    goals = tuple(dict.fromkeys(parse_goal(text, base) for text in slo or []))
    if any(goal.class_name is not None or goal.own is not None for goal in goals):
        raise InputError("a search takes limits on metrics of all requests", file="--slo")
    check_output(out, overwrite=given.overwrite, expected=None)
    made = make_executor(executor, workers, address)
    with _kept(out, console) as folder, console.counted(base.name, 0, "runs") as progress:
        found = run_search(
            base, objective, goals, folder, made,
            trials=trials or TRIALS, seeds=seeds or SEEDS, holdout=holdout, budget_s=budget_s, progress=progress,
        )  # fmt: skip
        _write(out, found, overwrite=given.overwrite, report=not no_report)
    console.out(to_json(found.to_json()) if given.json else _text(found, console))
    console.note(f"{found.made:,} runs in {found.cpu_s:.1f} CPU seconds; {found.reused:,} were there already")


@contextmanager
def _kept(out: Path, console: Console) -> Iterator[Path]:
    """Yield the hidden folder that keeps the runs until the search is written; a search that is stopped leaves it."""
    import shutil

    from scenarios.runs.storage.run_folder import PARTIAL

    folder, is_new = out / f"{PARTIAL}search", not out.exists()
    try:
        yield folder
    except (KeyboardInterrupt, SystemExit):
        if folder.is_dir() and any(folder.iterdir()):
            console.note(f"the runs are kept in {out}: the same command goes on")
        raise
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new and out.is_dir() and not any(out.iterdir()):
            out.rmdir()
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _text(found: Searched, console: Console) -> str:
    from reports.tables.terminal import aligned
    from scenarios.search import search

    terminal = console.terminal
    lines = [terminal.folded(search.answer(found), 0), ""]
    lines.append(aligned([search.HELD_OUT_HEAD, *search.held_out_rows(found)], 1, terminal.width))
    if rows := search.group_rows(found):
        lines += ["", aligned([search.GROUP_HEAD, *rows], 1, terminal.width)]
    lines += ["", *([terminal.folded(said, 0)] if (said := search.payers(found)) else [])]
    lines.append(f"traffic: {found.parts.words}; {len(found.trials):,} candidates")
    lines.append(f"deploy:  {found.deploy or 'no flags of a server say all of it: it is a policy of its own'}")
    return "\n".join(lines) + "\n"


def _write(target: Path, found: Searched, *, overwrite: bool, report: bool) -> None:
    from scenarios.runs.storage.output import output
    from scenarios.runs.storage.run_folder import POLICY, SCENARIO, SCHEDULER, SEARCH, TRIALS, to_json
    from scenarios.search import search
    from scenarios.search.search import policy_text, scenario_text, scheduler_text, weights_of

    taken = found.taken.scenario
    about = f"The policy that `batchlab search` took for {found.base.name}, for the sake of {found.aim.metric}."
    with output(target, overwrite=overwrite, expected=None) as folder:
        policy = folder / POLICY
        policy.write_text(policy_text(taken, about), encoding="utf-8", newline="\n")
        text = scenario_text(taken, str(policy.resolve()))
        (folder / SCENARIO).write_text(text, encoding="utf-8", newline="\n")
        if (weights := weights_of(taken)) is not None:
            (folder / SCHEDULER).write_text(scheduler_text(weights), encoding="utf-8", newline="\n")
        answer = {key: value for key, value in found.to_json().items() if key not in ("cpu_s", "runs", "reused")}
        (folder / SEARCH).write_text(to_json(answer), encoding="utf-8", newline="\n")
        rows = search.trial_rows(found)
        ends = ("rounds", "error")
        names = [*dict.fromkeys(key for row in rows for key in row if key not in ends), *ends]
        with (folder / TRIALS).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        if report:
            from reports.pages.search_report import write_report

            write_report(folder, search_page(found))


# A search in the form that the report takes: plain rows and points.

_POINTS = 10  # of a line over the lengths of prompts


def search_page(found: Searched) -> SearchPage:
    """Return the content of a search's report."""
    from reports.pages.search_report import SearchPage
    from reports.tables.details import TableRows
    from scenarios.search import search
    from scenarios.search.race import mean
    from scenarios.search.search import settings_of

    settings = tuple((key, str(value)) for key, value in settings_of(found.best.candidate).items())
    first = [mean(found.aim.metric, trial.rounds[0]) if trial.rounds else None for trial in found.trials]
    return SearchPage(
        f"{found.base.name}: a policy for {found.aim.metric}",
        f"{len(found.trials):,} candidates; {found.parts.words}. A simulation by batchlab.",
        [search.answer(found), *filter(None, [search.payers(found)])],
        found.deploy or "",
        TableRows(("setting", "best candidate"), settings, text_columns=2),
        TableRows(search.HELD_OUT_HEAD, search.held_out_rows(found)),
        TableRows(search.GROUP_HEAD, search.group_rows(found)),
        _over_prompts(found),
        [(place, value, len(trial.rounds)) for place, (trial, value) in enumerate(zip(found.trials, first, strict=True))
         if value is not None],
        found.aim.metric,
    )  # fmt: skip


def _over_prompts(found: Searched) -> list[tuple[float, tuple[float, float], tuple[float, float] | None]]:
    """Points over the median prompt of each tenth of the requests: mean TTFT in ms and share within the SLO."""
    from scenarios.search.search import groups

    return [(each.middle, each.ttft_ms, each.within) for each in groups(*found.runs, parts=_POINTS) if each.middle]
