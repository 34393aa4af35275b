"""`batchlab sweep`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli.flags import Address, Bound, Console, Executor, Json, NoReport, Out, Quiet, Seed, Set, overrides
from simulator.errors import InputError

if TYPE_CHECKING:
    from scenarios.studies.study import Study

Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", help="Number of processes; default: one per core.")
]


def sweep(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study (path or name), or a scenario (path or name) with --vary.")
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=VALUES",
            help="A key and its values: a,b,c, or 1:4:7 (seven from 1 to 4), or 1:64:7:log; several make a grid.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", min=1, metavar="K", help="Runs of each point, with seeds counted from the scenario's seed."
        ),
    ] = None,
    executor: Executor = "local",
    workers: Workers = None,
    address: Address = None,
    set_: Set = None,
    seed: Seed = None,
    out: Out = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again also what the folder holds already.")] = False,
    bound: Bound = False,
    json: Json = False,
    quiet: Quiet = False,
    no_report: NoReport = False,
) -> None:
    """Run a grid of scenarios, in parallel.

    The table goes to --out, else to runs/NAME-sweep-KEYS, with one row for each point and seed. A report beside it has
    the best points, knees, Pareto fronts and heat maps. Finished runs are kept there: a stopped sweep goes on, and a
    changed one runs only what changed. If a point fails, its error is in the table, and the others go on.
    """
    from scenarios.cli.report import best, write_sweep_report
    from scenarios.runs.storage.output import default_folder
    from scenarios.runs.storage.run_folder import REPORT, TABLE, to_json
    from scenarios.studies.run_sweep import executor as make_executor
    from scenarios.studies.run_sweep import sweep as run_sweep

    console = Console(quiet=quiet)
    changed = overrides(set_, seed)
    chosen = _study(study, vary or [], seeds, changed)
    several = f"seeds={len(chosen.seeds)}" if len(chosen.seeds) > 1 else ""
    target = out or default_folder(chosen.name, "sweep", "+".join(chosen.keys), several, changed=changed)
    made = make_executor(executor, workers, address)
    with console.counted(chosen.name, len(chosen), "runs") as progress:
        swept = run_sweep(chosen, target, executor=made, fresh=fresh, bounded=bound, progress=progress)
    counts = swept.counts()
    if counts["failed"]:
        first = next(outcome.error for _, _, outcome in swept.rows if outcome.error)
        console.note(f"warning: {counts['failed']:,} of {counts['points']:,} runs failed; the first: {first}")
    result = None
    if not no_report:
        console.note("drawing the report")
        result = write_sweep_report(target, swept)
    if json:
        console.out(to_json({**counts, "table": str(target / TABLE)}))
        return
    console.out(f"{counts['done']:,} runs done, {counts['reused']:,} reused, {counts['failed']:,} failed\n")
    if result is not None:
        console.out(best(result, console.terminal))
    console.out(f"table: {target / TABLE}\n")
    if result is not None:
        console.out(f"report: {target / REPORT}\n")


def _study(given: str, vary: list[str], seeds: int | None, changed: list[str]) -> Study:
    from scenarios.studies.study import find_study, load_study, parse_vary, study_of

    if (file := find_study(given)) is not None:
        if vary:
            raise InputError("a study file has its own `vary:`", file="--vary", hint="change `vary:` in the file")
        return load_study(file, changed, seeds)
    if not vary:
        raise InputError(
            f"{given} is a scenario: nothing varies",
            file="batchlab sweep",
            hint="add --vary KEY=VALUES, or give a study",
        )
    chosen = study_of(given, [parse_vary(text) for text in vary], seeds=seeds or 1, overrides=changed)
    _check_texts(chosen)
    return chosen


def _check_texts(study: Study) -> None:
    """Raise InputError for a text among numbers that its key never takes: no run could succeed with it."""
    for axis in study.axes:
        values = [value for (value, *_) in axis.places]
        if len(axis.keys) > 1 or not any(isinstance(value, int | float) for value in values):
            continue
        others = {key: value for each in study.axes for key, value in each.setting(0).items()}
        for value in values:
            if isinstance(value, str):
                key = axis.keys[0]
                try:
                    study.scenario({**others, key: value}, study.seeds[0])
                except InputError as error:
                    raise InputError(error.message, file=f"--vary {key}={value}", hint=error.hint) from None
