"""`batchlab plan` and `batchlab bench-plan`: a plan, and its test on a real server."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.flags import Console, Given, NoReport, Scenario
from simulator.errors import InputError

if TYPE_CHECKING:
    from reports.pages.plan_report import OverKeys, PlanPage
    from scenarios.plan.answer import Answer, Plan
    from scenarios.plan.experiment import Edge, Run
    from scenarios.plan.plan import Find
    from scenarios.plan.trial import Tried
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
    from scenarios.studies.study import parse_vary

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
    from scenarios.plan.trial import Tried

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
    from scenarios.plan.answer import write_plan
    from scenarios.runs.storage.output import output

    with output(target, overwrite=overwrite, expected=None) as folder:
        write_plan(folder, found, base)
        if report:
            from reports.pages.plan_report import write_report

            write_report(folder, plan_page(found))


# A plan in the form that the report takes: plain rows and points.


def plan_page(plan: Plan) -> PlanPage:
    """Return the content of a plan's report."""
    from reports.pages.plan_report import PlanPage, Searched
    from reports.tables.details import TableRows
    from scenarios.plan.text import TEXT_COLUMNS, below, labels, sentence, table

    head, *body = table(plan)
    asked = None if plan.find == "rate" else plan.load
    searched = []
    for label, answer in zip(labels(plan), plan.answers, strict=True):
        of = answer.bounds
        bounds = None if of is None else (of.low, of.value, of.high)
        searched.append(Searched(label, _used(answer), bounds, asked, answer.rate_at_best))
    limits = ", ".join(goal.text for goal in plan.goals)
    remarks = [f"{answer.candidate.label}: {said}" for answer in plan.answers if (said := answer.entry()["advice"])]
    return PlanPage(
        f"{plan.name}: plan for {limits}",
        f"{_LOOKING[plan.find]}; {plan.traffic}; {plan.runs:,} runs",
        sentence(plan),
        below(plan),
        TableRows(head, tuple(body), TEXT_COLUMNS),
        [*plan.notes, *remarks],
        searched,
        _over_keys(plan),
    )


_LOOKING = {"rate": "the largest rate", "replicas": "the fewest replicas", "config": "the best settings"}


def _used(answer: Answer) -> Mapping[str, Sequence[list[tuple[float, float]]]]:
    """Return for each limit and seed the rates of the runs, scaled to these replicas, and the share that was used."""
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for trial in answer.trials:
        rate = trial.rate / trial.replicas * answer.replicas
        for goal, value in zip(trial.goals[:-1], trial.values, strict=False):
            of_seed = found.setdefault(goal.text, {}).setdefault(trial.seed, [])
            of_seed.append((rate, math.exp(goal.excess(value))))
    return {text: list(of_seeds.values()) for text, of_seeds in found.items()}


def _over_keys(plan: Plan) -> OverKeys | None:
    """Return the best answers over the two settings with the most values; None where fewer than two settings vary."""
    from reports.pages.plan_report import OverKeys

    found = [answer.candidate.named_settings() for answer in plan.answers]
    places: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for settings in found for key in settings):
        values = list({json.dumps(each[key], default=str): each[key] for each in found if key in each}.values())
        if len(values) > 1:
            places[key] = sorted(values) if all(isinstance(value, int | float) for value in values) else values
    if len(places) < 2:
        return None
    x, y = sorted(sorted(places), key=lambda key: -len(places[key]))[:2]
    title, better, value = _compared(plan)
    best: dict[tuple[int, int], float] = {}
    costs: dict[tuple[int, int], float] = {}
    for settings, answer in zip(found, plan.answers, strict=True):
        if x in settings and y in settings and answer.bounds is not None and answer.feasible:
            at = places[x].index(settings[x]), places[y].index(settings[y])
            best[at] = max(best.get(at, value(answer)), value(answer), key=lambda each: better * each)
            if answer.usd_per_million is not None:
                costs[at] = min(costs.get(at, math.inf), answer.usd_per_million)
    if not best:
        return None
    labels = {key: [str(value) for value in places[key]] for key in (x, y)}
    titles = {key: key.rpartition(".")[2] for key in (x, y)}
    return OverKeys(titles[x], labels[x], titles[y], labels[y], (title, better), best, costs, len(places) > 2)


def _compared(plan: Plan) -> tuple[str, int, Callable[[Answer], float]]:
    """Return what a map compares, so that fleets of unlike sizes do not stand side by side: title, direction, value."""
    answers = [answer for answer in plan.answers if answer.feasible and answer.bounds is not None]
    if plan.find == "replicas":
        if len({answer.gpus / answer.replicas for answer in answers}) > 1:
            return f"fewest GPUs for {plan.load:g} req/s", -1, lambda answer: answer.gpus
        return f"fewest replicas for {plan.load:g} req/s", -1, lambda answer: answer.replicas
    if len({answer.gpus for answer in answers}) > 1:
        return "largest rate of a GPU (req/s)", 1, lambda answer: _rate(answer) / answer.gpus
    return "largest rate (req/s)", 1, _rate


def _rate(answer: Answer) -> float:
    return 0.0 if answer.bounds is None else answer.bounds.value


# `batchlab bench-plan`: the experiment on a real server that tests a plan's answer.


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
    console.out(to_json(design) if given.json else _experiment_text(runs, console))
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


def _experiment_text(runs: Sequence[Run], console: Console) -> str:
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
