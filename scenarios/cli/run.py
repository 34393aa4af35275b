"""`batchlab run`, `batchlab compare` and `batchlab bound`: what policies do, and what no scheduler can do better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli import flags
from scenarios.cli.flags import Console, overrides
from scenarios.cli.report import diagnosed, tables

if TYPE_CHECKING:
    from scenarios.runs.comparison import Compare

Policies = Annotated[
    str | None,
    typer.Option(
        "--policies",
        metavar="A,B,...",
        help="The policies to compare (batchlab list policies, or path.py:Class), each with settings of its own where "
        "wanted: static,chunked_prefill,chunked_prefill:max_num_batched_tokens=512:max_num_seqs=64 "
        "(default: static,continuous,preemptive,chunked_prefill).",
    ),
]


def run(
    scenario: flags.Scenario,
    given: flags.Given,
    report: flags.Report = False,
    log_decisions: flags.LogDecisions = False,
    no_fast_forward: Annotated[
        bool, typer.Option("--no-fast-forward", help="One event per engine step: slower, the same bytes.")
    ] = False,
    sensitivity: Annotated[
        bool | None,
        typer.Option(
            "--sensitivity/--no-sensitivity",
            help="Run it again with step times 5 % shorter and longer; by default if TTFT depends on them and the run"
            " is small.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            metavar="N",
            help="Processes that share the replicas of a fleet; same bytes. Default: 1; on Ray, one per core.",
        ),
    ] = None,
    executor: flags.Executor = "local",
    address: flags.Address = None,
    bound: flags.Bound = False,
) -> None:
    """Simulate one scenario.

    A table goes to stdout. Rows and summary go to a run folder: --out, else runs/NAME-POLICY with what --set and --seed
    changed. You may repeat the same run into its folder: its rows are the same, a report or decisions may be added, and
    nothing is removed. If the folder holds other results, that is an error, unless --overwrite is given.
    """
    from scenarios.assembly.engines import resolved_yaml
    from scenarios.runs.runner import run as simulate
    from scenarios.runs.runner import sensitivity_words
    from scenarios.runs.storage.output import default_folder, output, policy_name, same_scenario
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.schema.loader import load
    from scenarios.show import write_pictures

    console, changed = given.console, given.changed
    chosen = load(scenario, changed)
    target = given.out or default_folder(chosen.name, policy_name(chosen.engine.policy), changed=changed)
    expected = same_scenario(lambda: resolved_yaml(chosen))
    with console.timed() as timed, output(target, overwrite=given.overwrite, expected=expected) as folder:
        result = simulate(
            chosen,
            log_decisions=log_decisions,
            fast_forward=not no_fast_forward,
            workers=workers,
            executor=executor,
            address=address,
            progress=timed.progress,
        )
        if bound:
            from scenarios.bound.bound import bound as bound_of

            assert result.workload is not None
            cuts = chosen.measure.window(result.records)
            result = result.bounded(bound_of(chosen, result.workload, **cuts))
        said = sensitivity_words(result, sensitivity)
        if said is not None:
            result = replace(result, notes=(*result.notes, said))
        timed.simulated()
        console.notes(result.notes)
        result.write(folder)
        shown = diagnosed([replace(result.shown(), folder=target)]) if report or not given.json else []
        if report:
            console.note("drawing the report")
            write_pictures(folder, shown, result.notes)
    console.out(to_json(result.summary) if given.json else tables(shown, console.terminal) + "\n")
    console.written(f"run folder: {target}", target if report else None, json=given.json)


def compare(
    scenario: flags.Scenario,
    policies: Policies = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, metavar="K", help="Number of seeds, counted from the scenario's seed.")
    ] = 1,
    *,
    given: flags.Given,
    no_report: flags.NoReport = False,
    bound: flags.Bound = False,
) -> None:
    """Simulate the same requests under several policies.

    A verdict table goes to stdout; plots, report.html and a run folder for each policy and seed go to --out, else
    to runs/NAME-compare-POLICIES with what --set and --seed changed. One policy may be given several times, with other
    settings. A --set of an engine key applies to the policies that take it. You may repeat the same comparison into its
    folder. If the folder holds other results, that is an error, unless --overwrite is given.
    """
    from scenarios.runs.comparison import Compare
    from scenarios.runs.storage.output import default_folder, output, same_scenario
    from scenarios.runs.storage.run_folder import run_path, to_json, write_means
    from scenarios.runs.variants import split_variants
    from scenarios.schema.loader import dump
    from scenarios.show import write_pictures
    from simulator.policies import COMPARED

    console, changed = given.console, given.changed
    comparing = Compare(scenario, split_variants(policies or ",".join(COMPARED)), seeds, overrides=changed, bound=bound)
    several = f"seeds={seeds}" if seeds > 1 else ""
    name = default_folder(comparing.base.name, "compare", "+".join(comparing.labels), several, changed=changed)
    target = given.out or name
    runs = [run_path(label, seed) for label in comparing.labels for seed in comparing.seeds]
    expected = same_scenario(lambda: dump(comparing.base))
    with console.timed() as timed, output(target, overwrite=given.overwrite, expected=expected, runs=runs) as folder:
        comparing.progress = timed.progress
        places = _write_runs(folder, comparing)
        timed.simulated()
        found = comparing.comparison()
        console.notes(found.notes)
        means = {label: {**entry, "runs": places[label]} for label, entry in found.means().items()}
        write_means(folder, comparing.base, means)
        lines = [replace(each, folder=target / places[each.label][0]) for each in found.shown()]
        shown = diagnosed(lines) if not (given.json and no_report) else []
        if not no_report:
            console.note("drawing the report")
            write_pictures(folder, shown, found.notes)
    console.out(to_json(means) if given.json else tables(shown, console.terminal) + "\n")
    console.written(f"run folders: {target}", None if no_report else target, json=given.json)


def _write_runs(folder: Path, comparing: Compare) -> dict[str, list[str]]:
    """Run a comparison, a folder for each run. Returns the folders of each label, in the order of the seeds."""
    from scenarios.runs.storage.run_folder import run_path

    places: dict[str, list[str]] = {label: [] for label in comparing.labels}
    for label, seed, result in comparing:
        place = run_path(label, seed)
        (folder / place).mkdir(parents=True)
        result.write(folder / place)
        places[label].append(place.as_posix())
    return places


# `batchlab bound`: what no scheduler can do better, and how far from it policies are.


def bound(
    scenario: flags.Scenario,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            metavar="A,B,...",
            help="The policies to hold against the bounds, as in `compare` (default: the scenario's own).",
        ),
    ] = None,
    set_: flags.Set = None,
    seed: flags.Seed = None,
    json: flags.Json = False,
    quiet: flags.Quiet = False,
) -> None:
    """Prove what no scheduler can beat on a scenario.

    It counts with the scenario's requests, limits and step costs. A table goes to stdout: each bound, the relaxation
    that proves it, and how close the policies come. Nothing is written.
    """
    from reports.tables.details import bound_table
    from scenarios.runs.comparison import Compare
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.runs.variants import split_variants
    from scenarios.schema.loader import load

    console, changed = Console(quiet=quiet), overrides(set_, seed)
    chosen = load(scenario, changed)
    if chosen.measure.warmup_s == "auto":
        console.note("note: the warm-up is found in each run, and bounds need one for all: it is 0 here")
        changed = [*changed, "measure.warmup_s=0"]
    asked = split_variants(policies) if policies else [chosen.engine.policy]
    comparing = Compare(scenario, asked, overrides=changed, bound=True)
    with console.timed() as timed:
        comparing.progress = timed.progress
        results = {label: result for label, _, result in comparing}
        timed.simulated()
    console.notes(comparing.comparison().notes)
    assert comparing.bounds is not None
    found = comparing.bounds[0]
    reached = {
        label: {key: result.summary[key] for key in found.metrics if result.summary.get(key) is not None}
        for label, result in results.items()
    }
    if json:
        entry = {"bounds": {key: one.entry() for key, one in found.metrics.items()}, "reached": reached}
        console.out(to_json({**entry, "largest_rate": found.rate and found.rate.entry(), "why_not": found.why_not}))
        return
    held = {label: result.summary["bound"] for label, result in results.items()}
    console.out(
        bound_table({key: (one.value, one.by) for key, one in found.metrics.items()}, reached, held, console.terminal)
    )
    if found.rate is not None:
        console.out(f"\nLargest rate: {found.rate.value:,.2f} requests/s, by the {found.rate.by} bound.\n")
    for by, assumes in dict.fromkeys((one.by, one.assumes) for one in found.metrics.values()):
        console.out(f"{by}: {assumes}.\n")
    for why in found.why_not:
        console.out(f"Not bounded: {why}.\n")
