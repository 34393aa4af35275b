"""`batchlab bench-plan`: the experiment on a real server that tests a plan's answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import Console, Given
from scenarios.cli.plan import Slo
from simulator.errors import InputError

if TYPE_CHECKING:
    from scenarios.plan.experiment import Edge, Run


def bench_plan(
    source: Annotated[
        str, typer.Argument(metavar="PLAN", help="A folder of `plan --out`, or a scenario, whose rate is searched.")
    ],
    slo: Slo = None,
    within: Annotated[
        float,
        typer.Option(
            "--within",
            metavar="SHARE",
            help="How well the metric that decides is to be known: half of its 95 % interval, as a share of it.",
        ),
    ] = 0.1,
    *,
    given: Given,
) -> None:
    """Design the experiment that tests a plan on a real server.

    One replica is run twice, at both ends of the interval of its largest rate, with as few requests as will do. Writes
    the requests, the commands of `vllm bench serve` and GuideLLM, and the scenarios by which `validate` reads the
    results, into --out, else into runs/NAME-bench-plan.
    """
    from scenarios.plan.experiment import edge_of_plan, edge_of_scenario, experiment, write_experiment
    from scenarios.runs.storage.output import default_folder, output
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.schema.loader import load

    if not (math.isfinite(within) and within > 0):
        raise InputError(f"a share is above 0, not {within:g}", file="--within")
    console, changed = given.console, given.changed
    if Path(source).is_dir():
        if slo:
            raise InputError("the plan has its own SLO", file="--slo", hint="leave it out, or name a scenario")
        edge = edge_of_plan(Path(source), changed)
    else:
        edge = edge_of_scenario(load(source, changed), slo or [])
    runs = experiment(edge.scenario, edge.goals, edge.low, edge.high, within=within)
    design = _design(edge, runs)
    target = given.out or default_folder(edge.scenario.name, "bench-plan", changed=changed)
    with output(target, overwrite=given.overwrite, expected=None) as folder:
        write_experiment(folder, edge.scenario, runs, design)
    if edge.replicas > 1:
        console.note(f"one of {edge.replicas:,} replicas is tested, at its share of the load: the router is not")
    for run in runs:
        if run.within > within * 1.05:
            console.note(f"warning: {run.name}: the traffic has too few requests for {within:.0%}: {run.within:.0%}")
    if runs[0].trial.holds == runs[1].trial.holds:
        console.note(f"warning: both runs are expected to be alike ({runs[0].expected}): they do not bracket the edge")
    console.out(to_json(design) if given.json else _text(runs, console))
    console.written(f"experiment: {target}", None, json=given.json)


def _design(edge: Edge, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the experiment as `--json` prints it."""
    from scenarios.plan.experiment import guidellm_command, validate_command, vllm_command

    return {
        "scenario": edge.scenario.name,
        "slo": [goal.text for goal in edge.goals],
        "gpu_minutes": round(sum(run.gpu_minutes for run in runs), 2),
        "runs": [
            {
                "name": run.name,
                "rate": float(f"{run.rate:.5g}"),
                "stretch_rate": float(f"{run.stretch_rate:.5g}"),
                "prompts": len(run.workload),
                "seconds": round(run.seconds, 1),
                "gpu_minutes": round(run.gpu_minutes, 2),
                "decides": run.decides.text,
                "within": None if math.isnan(run.within) else round(run.within, 4),
                "expected": run.expected,
                "values": {goal.text: run.trial.value_of(goal) for goal in edge.goals},
                "vllm": vllm_command(edge.scenario, run),
                "guidellm": guidellm_command(edge.scenario, run),
                "validate": validate_command(run),
            }
            for run in runs
        ],
    }


def _text(runs: Sequence[Run], console: Console) -> str:
    from reports.tables.terminal import aligned
    from scenarios.plan.text import rate_text, valued

    head = ("run", "rate (req/s)", "prompts", "minutes", "GPU minutes", "expected", "of the metric that decides")
    rows = [
        (
            run.name,
            rate_text(run.stretch_rate),
            f"{len(run.workload):,}",
            f"{run.seconds / 60:.1f}",
            f"{run.gpu_minutes:.1f}",
            run.expected,
            valued(run.decides, run.trial)
            + ("" if math.isnan(run.within) else f", to be known within {run.within:.0%}"),
        )
        for run in runs
    ]
    total = sum(run.gpu_minutes for run in runs)
    said = (
        f"Two runs of one replica, {total:.1f} GPU minutes without the start of the server. The plan is right if the "
        "first keeps all limits and the second misses one."
    )
    return "\n".join([console.terminal.folded(said, 0), "", aligned([head, *rows], 1, console.terminal.width)]) + "\n"
