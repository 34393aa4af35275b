"""`batchlab bound`: what no scheduler can do better, and how far from it policies are."""

from typing import Annotated

import typer

from scenarios.cli import flags
from scenarios.cli.flags import Console, overrides


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
