"""Running a scenario: parts built, simulated, summed up."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
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
from scenarios.runs.result import Result
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError, PolicyError
from simulator.hardware.kv import KVCache
from simulator.metrics.summary import summarize
from simulator.results.records import Records
from simulator.simulate import Run, simulate
from simulator.workload import Workload

Source = str | os.PathLike[str] | Mapping[str, Any] | Scenario
ProgressMaker = Callable[[str, int], Callable[[int], None]]
"""Called at the start of a simulation with its label and its number of requests; the answer is told how many ended."""

WARNING = "warning: "  # begins a note on something that alters what the numbers mean


def run(
    scenario: Source,
    *,
    log_decisions: bool = False,
    fast_forward: bool = True,
    progress: ProgressMaker | None = None,
) -> Result:
    """Simulate a scenario, given as such or as whatever `load` takes.

    `fast_forward` changes how long it takes, and not a bit of the result. Raises InputError for bad input, also where
    not one of the requests fits into the KV cache, or where a policy of the user's own breaks.
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
    """Simulate a scenario on a workload that has been built already: common random numbers for several policies."""
    check_content(scenario, workload)
    parts = build(scenario)
    label = policy_label(scenario.engine.policy)
    told = None if progress is None else progress(label, len(workload))
    done = _simulate(scenario, workload, parts, log_decisions, fast_forward, told)
    records = _at_the_client(done.records, scenario.measure.front_end_s)
    rejected = _rejected(records, parts.kv)
    remarks = parts.cost.remarks(records.rows) if hasattr(parts.cost, "remarks") else ()
    summary = summarize(
        records,
        slo=scenario.resolve_slo(),
        warmup_s=scenario.measure.warmup_s,
        cooldown_s=scenario.measure.cooldown_s,
    )
    throughput = summary["output_throughput"]
    price = cost_per_million(scenario, None if throughput is None else float(throughput))
    return Result(
        scenario=scenario,
        scenario_yaml=resolved_yaml(scenario),
        records=records,
        summary={**summary, "usd_per_million_output_tokens": price},
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
            make_blocks=parts.make_blocks,
            replicas=scenario.replicas,
            router=scenario.router,
            fast_forward=fast_forward,
            log_decisions=log_decisions,
            progress=progress,
        )
    except Exception as error:
        file = scenario.engine.policy_file
        if file is not None and (blamed := _blame(error, file)) is not None:
            raise blamed from error
        raise


def _at_the_client(records: Records, front_end_s: float) -> Records:
    """The records with the tokens' times as the client sees them: so much later than they were sampled."""
    if front_end_s == 0:
        return records
    requests = records.requests
    seen = {name: getattr(requests, name) + front_end_s for name in ("first_token_s", "last_token_s")}
    return replace(records, requests=replace(requests, **seen))


def _blame(error: Exception, file: Path) -> InputError | None:
    """The error as one of the user's policy file: where it broke there, or the rule that its plan broke."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, PolicyError):
            return InputError(str(cause), file=str(file), hint="what a plan may say is written in simulator/plan.py")
    for cause in reversed(causes):
        frames = [f for f in traceback.extract_tb(cause.__traceback__) if Path(f.filename) == file]
        if frames:
            return InputError(f"{type(cause).__name__}: {cause}", file=str(file), line=frames[-1].lineno)
    return None


def _rejected(records: Records, kv: KVCache) -> tuple[str, ...]:
    """What to say about requests that can never be served. Raises InputError where that is all of them."""
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
