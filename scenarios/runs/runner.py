"""Run a scenario: build its parts, simulate, sum up."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scenarios.build.bill import cost_of, gpu_hours
from scenarios.build.fleet import BuiltGroup, build_fleet, build_link, build_router
from scenarios.build.parts import (
    build_workload,
    check_content,
    cost_per_million,
    policies_label,
    resolved_yaml,
)
from scenarios.runs.provenance import PROVENANCE, provenance
from scenarios.runs.result import Result
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError, PolicyError, RouterError
from simulator.hardware.kv import KVCache
from simulator.metrics.fleet import by_group
from simulator.metrics.outcomes import entries, outcomes
from simulator.metrics.summary import summarize
from simulator.results.recorder import Watch
from simulator.results.records import Cause, Records
from simulator.simulate import Run, simulate_fleet
from simulator.workload import Workload

Source = str | os.PathLike[str] | Mapping[str, Any] | Scenario
ProgressMaker = Callable[[str, int], Callable[[int], None]]
"""Called as a simulation starts, with its label and number of requests, 0 where that is not known beforehand; returns
what takes the number finished."""

WARNING = "warning: "  # begins a note on something that alters what the numbers mean


def run(
    scenario: Source,
    *,
    log_decisions: bool = False,
    fast_forward: bool = True,
    progress: ProgressMaker | None = None,
) -> Result:
    """Simulate a scenario, or what `load` makes one of: a name, a path, a mapping.

    `fast_forward` changes the time that it takes and no bit of the result. Raises InputError for bad input, where none
    of the requests fits into the KV cache, and where the user's own policy or router breaks.
    """
    chosen = scenario if isinstance(scenario, Scenario) else load(scenario)
    workload = build_workload(chosen)
    return run_on(chosen, workload, log_decisions=log_decisions, fast_forward=fast_forward, progress=progress)


def run_on(
    scenario: Scenario,
    workload: Workload,
    *,
    log_decisions: bool = False,
    fast_forward: bool = True,
    progress: ProgressMaker | None = None,
) -> Result:
    """Simulate a scenario on a given workload: common random numbers for several policies.

    Raises InputError as `run` does.
    """
    check_content(scenario, workload)
    fleet = build_fleet(scenario)
    told = (
        None if progress is None else progress(policies_label(scenario), 0 if workload.answers_back else len(workload))
    )
    done = _simulate(scenario, workload, fleet, log_decisions, fast_forward, told)
    records = _at_the_client(done.records, scenario.measure.front_end_s)
    rejected = _rejected(records, fleet[0].parts.kv)
    remarks = _remarks(records, fleet)
    slo, cuts = scenario.resolve_slo(), scenario.measure.window()
    summary = summarize(records, slo=slo, **cuts)
    found = outcomes(records, slo, summary, **cuts)
    throughput = summary["output_throughput"]
    groups = by_group(records, **cuts)
    spent = gpu_hours(scenario, groups)
    price = cost_per_million(scenario, None if throughput is None else float(throughput))
    if records.lives is not None:
        price = cost_of(spent, scenario, int(summary["total_output_tokens"] or 0))
    return Result(
        scenario=scenario,
        scenario_yaml=resolved_yaml(scenario),
        records=records,
        summary={
            **summary,
            "gpu_hours": sum(spent.values()),
            "usd_per_million_output_tokens": price,
            **_groups(records, cuts),
            **entries(found),
            PROVENANCE: provenance(scenario, [built.parts.cost for built in fleet]),
        },
        decisions=done.decisions,
        notes=(*workload.notes, *rejected, *remarks),
    )


def records_of(scenario: Scenario, workload: Workload, *, watch: Watch | None = None) -> Records:
    """What a run leaves behind, without its summary. `watch` may end it by an exception of its own.

    Raises InputError as `run` does, but for requests that never fit.
    """
    check_content(scenario, workload)
    done = _simulate(scenario, workload, build_fleet(scenario), False, True, None, watch)
    return _at_the_client(done.records, scenario.measure.front_end_s)


def _simulate(
    scenario: Scenario,
    workload: Workload,
    fleet: Sequence[BuiltGroup],
    log_decisions: bool,
    fast_forward: bool,
    progress: Callable[[int], None] | None,
    watch: Watch | None = None,
) -> Run:
    router = build_router(scenario)
    try:
        return simulate_fleet(
            workload,
            [built.replicas for built in fleet],
            router=router,
            signal_interval_s=scenario.routing.signal_interval_s,
            slo=scenario.resolve_slo(),
            link=build_link(scenario),
            fast_forward=fast_forward,
            log_decisions=log_decisions,
            progress=progress,
            front_end_s=scenario.measure.front_end_s,
            watch=watch,
        )
    except Exception as error:
        for file, broken, hint in _users_code(scenario, fleet):
            if (blamed := _blame(error, file, broken, hint)) is not None:
                raise blamed from error
        raise


def _users_code(scenario: Scenario, fleet: Sequence[BuiltGroup]) -> Iterator[tuple[Path, type[Exception], str]]:
    """The files of policies and a router of the user's own, the error that says they broke their rules, and a hint."""
    policies = dict.fromkeys(built.group.scenario.engine.policy_file for built in fleet)
    for policy in policies:
        if policy is not None:
            yield policy, PolicyError, "what a plan may say is written in simulator/plan.py"
    if (router := scenario.routing.file) is not None:
        yield router, RouterError, "choose returns one of the replicas (see simulator/fleet/router.py)"


def _groups(records: Records, cuts: Mapping[str, float]) -> dict[str, Any]:
    """What summary.json says of the groups of a fleet, by name; nothing of a single replica."""
    if records.replicas == 1:
        return {}
    return {"groups": {name: group.entry(0) for name, group in by_group(records, **cuts).items()}}


def _remarks(records: Records, fleet: Sequence[BuiltGroup]) -> tuple[str, ...]:
    """What the groups' cost models remark on the steps that they priced, each remark once."""
    if len(fleet) == 1:
        return tuple(fleet[0].parts.cost.remarks(records.rows))
    found: dict[str, None] = {}
    first = 0
    for built in fleet:
        rows = records.rows.of_replicas(first, first + built.group.replicas)
        found |= dict.fromkeys(f"{built.group.name}: {remark}" for remark in built.parts.cost.remarks(rows))
        first += built.group.replicas
    return tuple(found)


def _at_the_client(records: Records, front_end_s: float) -> Records:
    """The records with token times as the client sees them, `front_end_s` after they were sampled."""
    if front_end_s == 0:
        return records
    requests = records.requests
    seen = {name: getattr(requests, name) + front_end_s for name in ("first_token_s", "last_token_s")}
    return replace(records, requests=replace(requests, **seen), front_end_s=front_end_s)


def _blame(error: Exception, file: Path, broken: type[Exception], hint: str) -> InputError | None:
    """The error placed in the user's file: the rule that was broken, or the line that raised."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, broken) and getattr(cause, "file", None) in (None, str(file)):
            message = cause.message if isinstance(cause, PolicyError) else str(cause)
            return InputError(message, file=str(file), hint=hint)
    for cause in reversed(causes):
        frames = [f for f in traceback.extract_tb(cause.__traceback__) if Path(f.filename) == file]
        if frames:
            return InputError(f"{type(cause).__name__}: {cause}", file=str(file), line=frames[-1].lineno)
    return None


def _rejected(records: Records, kv: KVCache) -> tuple[str, ...]:
    """A warning about requests that never fit the KV cache. Raises InputError where no request fits."""
    reasons = records.reject_reasons
    if not reasons:
        return ()
    full = [reason for reason in reasons.values() if reason.startswith(Cause.QUEUE_FULL.value)]
    told: tuple[str, ...] = ()
    count = len(records.requests.row)
    if full:
        told = (f"{len(full):,} of {count:,} requests were rejected, as the queue was full",)
        reasons = {row: reason for row, reason in reasons.items() if not reason.startswith(Cause.QUEUE_FULL.value)}
        if not reasons:
            return told
    row, reason = next(iter(reasons.items()))
    held = f"the KV cache holds {kv.tokens:,} tokens ({kv.usable:,} blocks of {kv.block_size})"
    first = f"request {records.request_id(row)}: {reason}"
    if len(reasons) == count:
        raise InputError(f"none of the {count:,} requests can be served; {held}", hint=first)
    never = (f"{WARNING}{len(reasons):,} of {count:,} requests can never be served and were rejected; {held}; {first}",)
    return (*never, *told)
