"""Run a scenario: build its parts, simulate, sum up."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scenarios.build.parts import (
    Parts,
    build,
    build_workload,
    check_content,
    cost_per_million,
    policy_label,
    resolved_yaml,
)
from scenarios.runs.provenance import PROVENANCE, provenance
from scenarios.runs.result import Result
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError, PolicyError, RouterError
from simulator.hardware.kv import KVCache
from simulator.metrics.outcomes import entries, outcomes
from simulator.metrics.summary import summarize
from simulator.results.records import Records
from simulator.simulate import Run, simulate
from simulator.workload import Workload

Source = str | os.PathLike[str] | Mapping[str, Any] | Scenario
ProgressMaker = Callable[[str, int], Callable[[int], None]]
"""Called as a simulation starts, with its label and number of requests; returns what takes the number finished."""

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
    parts = build(scenario)
    label = policy_label(scenario.engine.policy)
    told = None if progress is None else progress(label, len(workload))
    done = _simulate(scenario, workload, parts, log_decisions, fast_forward, told)
    records = _at_the_client(done.records, scenario.measure.front_end_s)
    rejected = _rejected(records, parts.kv)
    remarks = parts.cost.remarks(records.rows)
    slo, cuts = scenario.resolve_slo(), scenario.measure.window()
    summary = summarize(records, slo=slo, **cuts)
    found = outcomes(records, slo, summary, **cuts)
    throughput = summary["output_throughput"]
    price = cost_per_million(scenario, None if throughput is None else float(throughput))
    return Result(
        scenario=scenario,
        scenario_yaml=resolved_yaml(scenario),
        records=records,
        summary={
            **summary,
            "usd_per_million_output_tokens": price,
            **entries(found),
            PROVENANCE: provenance(scenario, parts.cost),
        },
        decisions=done.decisions,
        notes=(*workload.notes, *rejected, *remarks),
    )


def _simulate(
    scenario: Scenario,
    workload: Workload,
    parts: Parts,
    log_decisions: bool,
    fast_forward: bool,
    progress: Callable[[int], None] | None,
) -> Run:
    try:
        return simulate(
            workload,
            make_policy=parts.make_policy,
            kv=parts.kv,
            cost=parts.cost,
            swap_s_per_block=parts.swap_s_per_block,
            swap_overlap=parts.swap_overlap,
            group_cost=parts.group_cost,
            max_queued_requests=parts.max_queued_requests,
            make_blocks=parts.make_blocks,
            replicas=scenario.replicas,
            router=scenario.router,
            fast_forward=fast_forward,
            log_decisions=log_decisions,
            progress=progress,
        )
    except Exception as error:
        for file, broken, hint in _users_code(scenario):
            if (blamed := _blame(error, file, broken, hint)) is not None:
                raise blamed from error
        raise


def _users_code(scenario: Scenario) -> Iterator[tuple[Path, type[Exception], str]]:
    """The files of a policy and a router of the user's own, the error that says they broke their rules, and a hint."""
    if (policy := scenario.engine.policy_file) is not None:
        yield policy, PolicyError, "what a plan may say is written in simulator/plan.py"
    if ".py:" in scenario.router:
        file = Path(scenario.router.rpartition(":")[0])
        yield file, RouterError, "choose returns one of the replicas (see simulator/fleet/router.py)"


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
        if isinstance(cause, broken):
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
    row, reason = next(iter(reasons.items()))
    count = len(records.requests.row)
    held = f"the KV cache holds {kv.tokens:,} tokens ({kv.usable:,} blocks of {kv.block_size})"
    first = f"request {records.request_id(row)}: {reason}"
    if len(reasons) == count:
        raise InputError(f"none of the {count:,} requests can be served; {held}", hint=first)
    return (f"{WARNING}{len(reasons):,} of {count:,} requests can never be served and were rejected; {held}; {first}",)
