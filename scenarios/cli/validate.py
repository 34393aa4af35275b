"""`batchlab validate`: how far a simulation is from a real server's own log, or from a scrape of its `/metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from scenarios.cli.flags import Given, NoReport, Scenario

if TYPE_CHECKING:
    from reports.pages.validation_report import Facing
    from reports.tables.details import TableRows
    from reports.tables.terminal import Terminal
    from scenarios.cli.flags import Console
    from scenarios.measured import MeasuredRun, Timeline
    from scenarios.runs.result import Result
    from scenarios.schema.scenario import Scenario as Loaded
    from scenarios.validate.compare import Figure, FrontEndUse, Scraped, Side, Validation
    from scenarios.validate.error_parts import Diagnosis
    from simulator.metrics.series import StepFunction


def validate(
    scenario: Scenario,
    measured: Annotated[
        Path, typer.Option("--measured", metavar="FILE", help="The server's per-request log, or a scrape of /metrics.")
    ],
    format_: Annotated[
        str, typer.Option("--format", metavar="F", help="The log's format, if it is not recognised.")
    ] = "auto",
    benchmark: Annotated[
        int | None, typer.Option("--benchmark", metavar="N", help="The number of the run, in a log of several.")
    ] = None,
    timeseries: Annotated[
        Path | None, typer.Option("--timeseries", metavar="FILE", help="A CSV of t, running, waiting beside the log.")
    ] = None,
    since: Annotated[
        Path | None, typer.Option("--since", metavar="FILE", help="An earlier scrape: only what came after it counts.")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Take arrivals and lengths from the log, not from the scenario.")
    ] = False,
    front_end: Annotated[
        str,
        typer.Option(
            "--front-end",
            metavar="USE",
            help="What lies between client and engine, estimated from the log: auto (added where the log's times are"
            " the client's), log (added always), off.",
        ),
    ] = "auto",
    *,
    given: Given,
    no_report: NoReport = False,
) -> None:
    """Compare a simulation with a server's own log.

    Reads logs of `vllm bench serve --save-detailed`, AIPerf, GuideLLM and LLMServingSim, and plain CSV. Of a scrape of
    vLLM's /metrics it compares what that counts. Errors and a verdict go to stdout. Rows, plots and report.html go to
    --out, else to runs/NAME-validate-FILE with what --set and --seed changed. If the folder holds other results, that
    is an error, unless --overwrite is given.
    """
    from scenarios.measured import read_measured
    from scenarios.measured.read_log import is_scrape
    from scenarios.runs.storage.output import default_folder
    from scenarios.schema.loader import load
    from simulator.errors import InputError

    changed = given.changed
    if format_ == "auto" and is_scrape(measured):
        if replay or timeseries is not None or benchmark is not None:
            what = "--replay, --timeseries and --benchmark are for a log with an entry for each request"
            raise InputError(f"{measured} is a scrape of /metrics", hint=what)
        chosen = load(scenario, changed)
        where = default_folder(chosen.name, "validate", measured.name.split(".")[0], changed=changed)
        how = {"overwrite": given.overwrite, "json": given.json, "report": not no_report}
        validate_scrape(chosen, measured, since, given.out or where, given.console, **how)
        return
    if since is not None:
        raise InputError("--since is for scrapes of /metrics", file=str(measured), hint="leave it out")
    log = read_measured(measured, format_=format_, benchmark=benchmark)
    # A replay needs no workload; where the scenario has none, the run folder names the log in its place.
    from_log = {"workload": {"trace": {"path": str(measured.absolute())}}} if replay else None
    chosen = load(scenario, changed, defaults=from_log)
    ticks = _ticks(measured, timeseries)
    use = _use(front_end)
    options = {"benchmark": benchmark, "front_end": None if use == "auto" else use}
    flags = [*(f"{key}={value}" for key, value in options.items() if value is not None), "replay" if replay else ""]
    target = given.out or default_folder(chosen.name, "validate", measured.name.split(".")[0], *flags, changed=changed)
    _validate_log(chosen, log, ticks, use, target, given, is_replay=replay, reports=not no_report)


def _validate_log(
    chosen: Loaded,
    log: MeasuredRun,
    ticks: Timeline | None,
    use: FrontEndUse,
    target: Path,
    given: Given,
    *,
    is_replay: bool,
    reports: bool,
) -> None:
    """Run the scenario, or the log's own requests, write what differs into `target`, and print it."""
    from scenarios.assembly.engines import policy_label, resolved_yaml
    from scenarios.measured.measured_run import workload_of
    from scenarios.runs.runner import run, run_on
    from scenarios.runs.storage.output import output, same_scenario
    from scenarios.runs.storage.run_folder import to_json
    from scenarios.validate.compare import to_data, write_validation
    from scenarios.validate.compare import validate as compare
    from scenarios.validate.error_parts import diagnose, diagnosis_data

    console = given.console
    expected = same_scenario(lambda: resolved_yaml(chosen))
    with console.timed() as timed, output(target, overwrite=given.overwrite, expected=expected) as folder:
        if is_replay:
            result = run_on(chosen, workload_of(log), progress=timed.progress)
        else:
            result = run(chosen, progress=timed.progress)
        timed.simulated()
        found = compare(log, result.records, use)
        verdict = diagnose(found, at_client=log.at_client)
        console.notes((*result.notes, *log.notes, *found.notes))
        result.write(folder)
        data = {**to_data(found), **diagnosis_data(verdict)}
        write_validation(folder, data, found)
        facing = _facing(chosen.name, policy_label(chosen.engine.policy), log, ticks, result, found, verdict)
        if reports:
            from reports.pages.validation_report import write_validation as write_pictures

            console.note("drawing the report")
            write_pictures(folder, facing)
    console.out(to_json(data) if given.json else _text(facing, console.terminal))
    console.written(f"run folder: {target}", target if reports else None, json=given.json)


def _ticks(log: Path, given: Path | None) -> Timeline | None:
    from scenarios.measured.read_log import beside, read_timeseries

    path = given or beside(log)
    return None if path is None else read_timeseries(path)


def _text(facing: Facing, terminal: Terminal) -> str:
    from reports.pages.validation_report import error_table
    from reports.tables.verdict_table import wrapped

    tables = [error_table(facing), *([facing.parts] if facing.parts is not None else [])]
    texts = [table.text(terminal.width) for table in tables]
    words = "\n".join(wrapped(text, terminal.prose_width) for text in facing.words)
    return "\n\n".join([*texts, words]) + "\n\n"


def _facing(
    name: str,
    policy: str,
    log: MeasuredRun,
    ticks: Timeline | None,
    result: Result,
    found: Validation,
    verdict: Diagnosis | None,
) -> Facing:
    from reports.pages.validation_report import Facing, parts_table
    from scenarios.validate.compare import METRICS

    sides = (found.measured, found.simulated)
    there, here = ({metric: 1e3 * side.seconds(metric) for metric in METRICS} for side in sides)
    parts = [] if verdict is None else verdict.parts
    count = len(found.measured.names)
    matched = f"matched by {found.matched}" if found.matched else "not matched"
    return Facing(
        title=f"{name}: simulated and measured",
        subtitle=f"{count:,} requests of {Path(log.file).name} ({log.format}), {matched}; policy {policy}",
        measured_ms={metric: there[metric] for metric in found.errors},
        simulated_ms={metric: here[metric] for metric in found.errors},
        errors=found.numbers(),
        makespan_s=(found.measured.makespan_s, found.simulated.makespan_s),
        throughput=found.throughput,
        paired_ms=(1e3 * found.measured.e2el_s, 1e3 * found.simulated.e2el_s) if found.matched else None,
        over_time=_over_time(ticks, result, found),
        parts=parts_table([(p.name, p.measured_ms, p.simulated_ms, p.error, p.carries_ms) for p in parts]),
        words=[_score_words(found), *_front_end_words(found), *(verdict.words if verdict is not None else ())],
        notes=(*result.notes, *log.notes, *found.notes),
        scenario_yaml=result.scenario_yaml,
    )


def _use(given: str) -> FrontEndUse:
    from scenarios.validate.compare import FrontEndUse
    from simulator.parameters import check_choice

    words: tuple[FrontEndUse, ...] = get_args(FrontEndUse)
    return words[words.index(check_choice(given, words, "--front-end"))]


def _front_end_words(found: Validation) -> list[str]:
    if found.front_end is not None:
        return [found.front_end.words(found.is_applied)]
    too_few = "Front end: too few requests of the log went into the batch at once to estimate it."
    return [too_few] if found.matched else []


def _score_words(found: Validation) -> str:
    name, worst = found.worst
    metric, _, statistic = name.partition(" ")
    what = f"{statistic} {metric.upper()}".strip() if statistic else name
    text = (
        f"Off by {100 * found.score:.1f} % on average over {len(found.numbers())} figures;"
        f" the worst is {what}, {100 * worst:+.1f} %."
    )
    if (e2e := found.per_request.get("e2e")) is not None:
        half, most = (100 * size for size in (e2e.median_size, e2e.p90_size))
        text += f" Half of the requests are within {half:.1f} % end to end, nine in ten within {most:.1f} %."
    return text


def _over_time(
    ticks: Timeline | None, result: Result, found: Validation
) -> Mapping[str, tuple[StepFunction, StepFunction]]:
    """Return queue and batch of both sides: from the server's own samples, else from the stamps of its requests."""
    import numpy as np

    from simulator.metrics.series import StepFunction, queue_depth, running

    measured, simulated = found.measured, found.simulated
    if ticks is not None:
        end_s = float(ticks.time_s[-1])
        return {
            "waiting\n(requests)": (StepFunction(ticks.time_s, ticks.waiting, end_s), queue_depth(result.records)),
            "in the batch\n(requests)": (StepFunction(ticks.time_s, ticks.running, end_s), running(result.records)),
        }
    if np.isnan(measured.arrival_s).any():
        return {}

    def between(side: Side, begin: str, end: str) -> StepFunction:
        times = np.unique(np.concatenate((getattr(side, begin), getattr(side, end))))
        return StepFunction(times, side.between(begin, end, times), float(times[-1]))

    wanted = {"in flight\n(requests)": ("arrival_s", "last_s")}
    if not np.isnan(measured.scheduled_s).any():
        wanted = {
            "waiting\n(requests)": ("arrival_s", "scheduled_s"),
            "in the batch\n(requests)": ("scheduled_s", "last_s"),
        }
    return {title: (between(measured, *names), between(simulated, *names)) for title, names in wanted.items()}


# `batchlab validate` with a scrape of `/metrics` in place of a log.


def validate_scrape(
    chosen: Loaded,
    measured: Path,
    earlier: Path | None,
    target: Path,
    console: Console,
    *,
    overwrite: bool,
    json: bool,
    report: bool,
) -> None:
    """Run the scenario, compare it with the scrape, or with what came after an earlier one, and print the errors."""
    from reports.tables.verdict_table import wrapped
    from scenarios.assembly.engines import policy_label, resolved_yaml
    from scenarios.measured.read_log import read_scrape
    from scenarios.runs.runner import run
    from scenarios.runs.storage.output import output, same_scenario
    from scenarios.runs.storage.run_folder import VALIDATION, to_json
    from scenarios.validate.compare import compare_scrape

    scrape = read_scrape(measured)
    if earlier is not None:
        scrape = scrape.since(read_scrape(earlier))
    expected = same_scenario(lambda: resolved_yaml(chosen))
    with console.timed() as timed, output(target, overwrite=overwrite, expected=expected) as folder:
        result = run(chosen, progress=timed.progress)
        timed.simulated()
        found = compare_scrape(scrape, result.records)
        console.notes((*result.notes, *found.notes))
        result.write(folder)
        (folder / VALIDATION).write_text(to_json(found.data()), encoding="utf-8", newline="\n")
        rows, words = _rows(found), _words(found)
        if report:
            from reports.pages.validation_report import ScrapePage, write_scrape

            console.note("drawing the report")
            title, notes = f"{chosen.name}: simulated and measured", (*result.notes, *found.notes)
            subtitle = f"a scrape of /metrics, {measured.name}; policy {policy_label(chosen.engine.policy)}"
            write_scrape(folder, ScrapePage(title, subtitle, rows, found.scored, words, notes, result.scenario_yaml))
    prose = "\n".join(wrapped(text, console.terminal.prose_width) for text in words)
    console.out(to_json(found.data()) if json else f"{rows.text(console.terminal.width)}\n\n{prose}\n\n")
    console.written(f"run folder: {target}", target if report else None, json=json)


def _rows(found: Scraped) -> TableRows:
    from reports.tables.details import TableRows

    body = [_row(f"{_title(each.name)} {each.statistic}", "ms", each, 1e3) for each in found.latencies]
    body += [_row(f"{each.name} mean", "", each, 1.0) for each in found.lengths]
    body += [_row(each.name, "", each, 1.0) for each in found.counts]
    return TableRows(("", "", "measured", "simulated", "error"), tuple(body), 2)


def _words(found: Scraped) -> list[str]:
    from scenarios.validate.compare import NOT_COMPARED

    there, here = found.requests
    score = found.data()["score"]
    return [
        f"{there:,} requests in the scrape, {here:,} in the simulation."
        + (f" TTFT, TPOT and E2E are off by {100 * float(str(score)):.1f} % on average." if score is not None else "")
        + " Percentiles of both sides are read from the server's buckets.",
        f"Not compared: {'; '.join((*NOT_COMPARED, *found.missing))}. A log with an entry for each request tells them.",
    ]


def _title(name: str) -> str:
    return name.upper() if name in ("ttft", "tpot", "e2e") else name


def _row(title: str, unit: str, each: Figure, scale: float) -> tuple[str, str, str, str, str]:
    from reports.units import MISSING, short

    error = MISSING if each.error != each.error else f"{100 * each.error:+.1f} %"
    return title, unit, short(scale * each.measured), short(scale * each.simulated), error
