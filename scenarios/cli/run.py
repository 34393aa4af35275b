"""`batchlab run` and `batchlab compare`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import Console, Json, Out, Quiet, Scenario, Seed, Set, overrides
from scenarios.cli.report import Shown, tables, write_pictures

if TYPE_CHECKING:
    from scenarios.runs.comparison import Compare
    from scenarios.runs.result import Result

RUNS = Path("runs")  # where results go without --out, below the working directory

Policies = Annotated[
    str,
    typer.Option(
        "--policies",
        metavar="A,B,...",
        help="The policies to compare (batchlab list policies, or path.py:Class), each with settings of its own where "
        "wanted: static,chunked_prefill,chunked_prefill:max_num_batched_tokens=512:max_num_seqs=64.",
    ),
]


def run(
    scenario: Scenario,
    set_: Set = None,
    seed: Seed = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    report: Annotated[bool, typer.Option("--report", help="Also draw plots and write report.html.")] = False,
    log_decisions: Annotated[bool, typer.Option("--log-decisions", help="Also write what each step decided.")] = False,
    no_fast_forward: Annotated[
        bool, typer.Option("--no-fast-forward", help="One event an engine step: slower, the same bytes.")
    ] = False,
) -> None:
    """Simulate one scenario.

    A table goes to stdout, rows and summary to a run folder: --out, else runs/NAME-POLICY.
    """
    from scenarios.build.parts import policy_label
    from scenarios.runs.runner import run as simulate
    from scenarios.runs.storage.run_folder import REPORT, check_target, owned_files, to_json, write_result
    from scenarios.runs.storage.staging import staging
    from scenarios.schema.loader import load

    console = Console(quiet=quiet)
    chosen = load(scenario, overrides(set_, seed))
    label = policy_label(chosen.engine.policy)
    target = out or RUNS / _file_name(f"{chosen.name}-{label}")
    check_target(target)
    with console.timed() as timed, staging(target, owned=owned_files(target)) as folder:
        result = simulate(
            chosen, log_decisions=log_decisions, fast_forward=not no_fast_forward, progress=timed.progress
        )
        timed.simulated()
        console.notes(result.notes)
        write_result(folder, result)
        if report:
            console.note("drawing the report")
            write_pictures(folder, [_shown(label, result)], result.notes)
    if json:
        console.out(to_json(result.summary))
    else:
        console.out(tables([_shown(label, result)]) + "\n")
    say = console.note if json else console.out
    say(f"run folder: {target}\n")
    if report:
        say(f"report: {target / REPORT}\n")


def compare(
    scenario: Scenario,
    policies: Policies,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="K", help="So many seeds, from the scenario's.")] = 1,
    set_: Set = None,
    seed: Seed = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="No plots and no report.html.")] = False,
) -> None:
    """The same requests through several policies.

    A verdict table goes to stdout; plots, report.html and a run folder for each policy and seed go to --out, else
    to runs/NAME-compare. One policy may be given several times, with other settings. A --set of a key of the engine
    is applied to the policies that take it.
    """
    from scenarios.runs.comparison import Compare
    from scenarios.runs.storage.run_folder import REPORT, check_target, owned_files, to_json, write_means
    from scenarios.runs.storage.staging import staging
    from scenarios.runs.variants import split_variants

    console = Console(quiet=quiet)
    comparing = Compare(scenario, split_variants(policies), seeds, overrides=overrides(set_, seed))
    target = out or RUNS / _file_name(f"{comparing.base.name}-compare")
    check_target(target)
    with console.timed() as timed, staging(target, owned=owned_files(target)) as folder:
        comparing.progress = timed.progress
        places = _write_runs(folder, comparing)
        timed.simulated()
        found = comparing.comparison()
        console.notes(found.notes)
        means = {label: {**entry, "runs": places[label]} for label, entry in found.means().items()}
        write_means(folder, comparing.base, means)
        runs = [_shown(label, result, found.summaries[label]) for label, result in found.first.items()]
        if not no_report:
            console.note("drawing the report")
            write_pictures(folder, runs, found.notes)
    if json:
        console.out(to_json(means))
    else:
        console.out(tables(runs) + "\n")
    say = console.note if json else console.out
    say(f"run folders: {target}\n")
    if not no_report:
        say(f"report: {target / REPORT}\n")


def _write_runs(folder: Path, comparing: Compare) -> dict[str, list[str]]:
    """Run all of a comparison, a folder for each run; returns these folders by label, in the order of the seeds."""
    from scenarios.runs.storage.run_folder import run_path, write_result

    places: dict[str, list[str]] = {label: [] for label in comparing.labels}
    for label, seed, result in comparing:
        place = run_path(label, seed)
        (folder / place).mkdir(parents=True)
        write_result(folder / place, result)
        places[label].append(place.as_posix())
    return places


def _shown(label: str, result: Result, summaries: Sequence[Mapping[str, Any]] | None = None) -> Shown:
    return Shown(
        label,
        result.scenario,
        result.scenario_yaml,
        result.records,
        [result.summary] if summaries is None else summaries,
    )


def _file_name(text: str) -> str:
    """The text as the name of a folder."""
    return re.sub(r"[^\w.+-]+", "-", text)
