"""Run a scenario: build its parts, simulate, sum up; and how much its TTFT changes with step time."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from scenarios.assembly.engines import cost_of, cost_per_million, energy_of, gpu_hours, policies_label, resolved_yaml
from scenarios.assembly.fleet_parts import (
    BuiltGroup,
    build_fleet,
    build_flow_control,
    build_link,
    build_router,
    foreseen,
)
from scenarios.assembly.workloads import build_workload, check_content
from scenarios.prediction.prediction import has_loops, prediction_entry
from scenarios.runs.result import PROVENANCE, Result, provenance
from scenarios.runs.workers import PoolMaker, blamed, pool_maker
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.hardware.kv import KVCache
from simulator.metrics.outcomes import entries, outcomes
from simulator.metrics.part_metrics import acceptance_by_position
from simulator.metrics.summary import own_entries, summarize
from simulator.metrics.usage import by_group, group_seconds
from simulator.metrics.warmup_cut import WARMUP
from simulator.results.recorder import Watch
from simulator.results.records import Cause, Records
from simulator.simulate import Run, simulate_fleet
from simulator.workload import Workload

Source = str | os.PathLike[str] | Mapping[str, Any] | Scenario
ProgressMaker = Callable[[str, int], Callable[[int], None]]
"""Called as a simulation starts, with its label and number of requests (0: not known). Returns a function to call with
the number finished."""

WARNING = "warning: "  # begins a note on something that alters what the numbers mean


def run(
    scenario: Source,
    *,
    log_decisions: bool = False,
    fast_forward: bool = True,
    workers: int | None = None,
    executor: str = "local",
    address: str | None = None,
    progress: ProgressMaker | None = None,
) -> Result:
    """Simulate a scenario, or what `load` makes one of: a name, a path, a mapping.

    `workers` processes share the replicas of a fleet: on this machine or, with `executor="ray"`, on the Ray cluster at
    `address`. They and `fast_forward` change no bit of the result. Raises InputError for bad input, for several workers
    on replicas that are coupled too closely, if no request fits into the KV cache, and if the user's own policy or
    router breaks.
    """
    chosen = scenario if isinstance(scenario, Scenario) else load(scenario)
    workload = build_workload(chosen)
    return run_on(
        chosen,
        workload,
        log_decisions=log_decisions,
        fast_forward=fast_forward,
        make_pool=pool_maker(executor, workers, address),
        progress=progress,
    )


def run_on(
    scenario: Scenario,
    workload: Workload,
    *,
    log_decisions: bool = False,
    fast_forward: bool = True,
    make_pool: PoolMaker | None = None,
    progress: ProgressMaker | None = None,
    step_time: float = 1.0,
) -> Result:
    """Simulate a scenario on a given workload: common random numbers for several policies.

    Every step takes `step_time` times what it costs. Raises InputError as `run` does.
    """
    check_content(scenario, workload)
    fleet = _at_step_time(build_fleet(scenario), step_time)
    total = 0 if workload.answers_back else len(workload)
    told = None if progress is None else progress(policies_label(scenario), total)
    done = _simulate(
        scenario,
        workload,
        fleet,
        log_decisions=log_decisions,
        fast_forward=fast_forward,
        make_pool=make_pool,
        progress=told,
    )
    _refuse_unserved(done.records, fleet[0].parts.kv)
    return sum_up(scenario, workload, fleet, done)


def sum_up(
    scenario: Scenario, workload: Workload, fleet: Sequence[BuiltGroup], done: Run, notes: Sequence[str] = ()
) -> Result:
    """Return the result of a finished simulation of this scenario. `notes` come before its own."""
    records = done.at_clients()
    rejected = _rejected(records, fleet[0].parts.kv)
    remarks = _remarks(records, fleet)
    slo, cuts, warmup = scenario.resolve_slo(), scenario.measure.window(records), scenario.measure.warmup(records)
    summary = summarize(records, slo=slo, **cuts)
    found = outcomes(records, slo, summary, **cuts)
    throughput = summary["output_throughput"]
    spent = gpu_hours(scenario, group_seconds(records, **cuts))
    price = cost_per_million(scenario, None if throughput is None else float(throughput))
    if records.lives is not None:
        price = cost_of(spent, scenario, int(summary["total_output_tokens"] or 0))
    summary |= {"gpu_hours": sum(spent.values()), "usd_per_million_output_tokens": price}
    return Result(
        scenario=scenario,
        scenario_yaml=resolved_yaml(scenario),
        records=records,
        summary={
            **summary,
            **foreseen(scenario, fleet, records, workload, **cuts),
            **energy_of(scenario, records, int(summary["total_output_tokens"] or 0), **cuts),
            **own_entries(scenario.measure.metrics, records, slo, **cuts),
            **_groups(records, cuts),
            **acceptance_by_position(records, **cuts),
            **entries(found),
            **({} if warmup is None else {WARMUP: warmup.entry()}),
            **prediction_entry(scenario, fleet, records, summary),
            PROVENANCE: provenance(scenario, [built.parts.cost for built in fleet]),
        },
        decisions=done.decisions,
        notes=(*notes, *workload.notes, *rejected, *remarks, *(() if warmup is None else (warmup.words(),))),
        workload=workload,
    )


def records_of(
    scenario: Scenario, workload: Workload, *, watch: Watch | None = None, step_time: float = 1.0
) -> Records:
    """Return the records of a run, without its summary. `watch` may end the run by an exception of its own.

    Every step takes `step_time` times what it costs. Raises InputError as `run` does, but for requests that never fit.
    """
    check_content(scenario, workload)
    return _simulate(scenario, workload, _at_step_time(build_fleet(scenario), step_time), watch=watch).at_clients()


def _at_step_time(fleet: tuple[BuiltGroup, ...], step_time: float) -> tuple[BuiltGroup, ...]:
    return fleet if step_time == 1.0 else tuple(built.at_step_time(step_time) for built in fleet)


def _simulate(
    scenario: Scenario,
    workload: Workload,
    fleet: Sequence[BuiltGroup],
    *,
    log_decisions: bool = False,
    fast_forward: bool = True,
    make_pool: PoolMaker | None = None,
    progress: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> Run:
    router = build_router(scenario)
    made = nullcontext() if make_pool is None else make_pool(scenario, workload, log_decisions=log_decisions)
    try:
        with made as pool:
            return simulate_fleet(
                workload,
                [built.replicas for built in fleet],
                router=router,
                signal_interval_s=scenario.routing.interval_s,
                slo=scenario.resolve_slo(),
                link=build_link(scenario),
                flow_control=build_flow_control(scenario),
                fast_forward=fast_forward,
                log_decisions=log_decisions,
                progress=progress,
                front_end=scenario.resolve_front_end(),
                workers=pool,
                watch=watch,
            )
    except Exception as error:
        if (placed := blamed(error, scenario, fleet)) is not None:
            raise placed from error
        raise


def _groups(records: Records, cuts: Mapping[str, float]) -> dict[str, Any]:
    """Return the entries of summary.json for the groups of a fleet, by name; none for a single replica."""
    if records.replicas == 1:
        return {}
    return {"groups": {name: group.entry(0) for name, group in by_group(records, **cuts).items()}}


def _remarks(records: Records, fleet: Sequence[BuiltGroup]) -> tuple[str, ...]:
    """Return the remarks of the groups' cost models on the steps that they priced, each remark once."""
    if len(fleet) == 1:
        return tuple(fleet[0].parts.cost.remarks(records.rows))
    found: dict[str, None] = {}
    first = 0
    for built in fleet:
        rows = records.rows.of_replicas(first, first + built.group.replicas)
        found |= dict.fromkeys(f"{built.group.name}: {remark}" for remark in built.parts.cost.remarks(rows))
        first += built.group.replicas
    return tuple(found)


def _never_fit(records: Records) -> dict[int, str]:
    """Return the reasons of the requests that were rejected because they never fit, by row."""
    full = Cause.QUEUE_FULL.value
    return {row: reason for row, reason in records.reject_reasons.items() if not reason.startswith(full)}


def _refuse_unserved(records: Records, kv: KVCache) -> None:
    """Raise InputError where no request fits."""
    reasons = _never_fit(records)
    if reasons and len(reasons) == len(records.requests.row):
        row, reason = next(iter(reasons.items()))
        what = f"none of the {len(reasons):,} requests can be served; {_held(kv)}"
        raise InputError(what, hint=f"request {records.request_id(row)}: {reason}")


def _held(kv: KVCache) -> str:
    return f"the KV cache holds {kv.tokens:,} tokens ({kv.usable:,} blocks of {kv.block_size})"


def _rejected(records: Records, kv: KVCache) -> tuple[str, ...]:
    """Return notes on the requests that were rejected."""
    reasons, count = _never_fit(records), len(records.requests.row)
    full = len(records.reject_reasons) - len(reasons)
    told = (f"{full:,} of {count:,} requests were rejected, as the queue was full",) if full else ()
    if not reasons:
        return told
    row, reason = next(iter(reasons.items()))
    lost = f"{len(reasons):,} of {count:,} requests can never be served and were rejected"
    return (f"{WARNING}{lost}; {_held(kv)}; request {records.request_id(row)}: {reason}", *told)


# The sensitivity of a run's TTFT to a few per cent of step time: it is large where requests wait for a busy server.
#
# With a utilisation u the wait grows as 1 / (1 - u). So near saturation an error of the step times comes out many
# times larger in TTFT, and during an overload it adds up. Step costs are seldom better than 5 %.

STEP = 0.05
BUSY = 0.9
WAITING = 0.5
MAGNIFIED = 2.0
CHEAP_REQUESTS, CHEAP_STEPS = 2_000, 200_000
"""A run of at most as many requests and steps is run again without being asked."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean and p99 of TTFT (ms) as simulated, and with steps 5 % shorter and 5 % longer."""

    plain: tuple[float, float]
    shorter: tuple[float, float]
    longer: tuple[float, float]

    @property
    def is_magnified(self) -> bool:
        """Return whether mean TTFT moves by more than twice what the steps do, either way."""
        return max(abs(each[0] / self.plain[0] - 1.0) for each in (self.shorter, self.longer)) > MAGNIFIED * STEP


def may_hang(result: Result) -> bool:
    """Return whether the server is nearly always busy, and TTFT is mostly waiting, for requests of an open loop.

    In a closed loop the number of users bounds the queue.
    """
    summary = result.summary
    busy, ttft_ms, queue_ms = (summary[key] for key in ("busy_fraction", "mean_ttft_ms", "mean_queue_time_ms"))
    if not busy or not ttft_ms or queue_ms is None or has_loops(result.scenario):
        return False
    return bool(busy >= BUSY and queue_ms >= WAITING * ttft_ms)


def is_cheap(result: Result) -> bool:
    """Return whether running it twice more costs little."""
    return len(result.records.requests.row) <= CHEAP_REQUESTS and result.records.num_steps <= CHEAP_STEPS


def step_times(result: Result) -> StepTimes | None:
    """Run it again on the same requests with other step times. Returns None where one of the runs has no TTFT."""
    workload = build_workload(result.scenario)
    again = [run_on(result.scenario, workload, step_time=1.0 + off) for off in (-STEP, STEP)]
    found = []
    for each in (result, *again):
        mean, tail = each.summary["mean_ttft_ms"], each.summary["p99_ttft_ms"]
        if not mean or tail is None:
            return None
        found.append((float(mean), float(tail)))
    return StepTimes(*found)


def sensitivity_words(result: Result, asked: bool | None = None) -> str | None:
    """Return a note on how TTFT follows the step times, if any. `asked` True tries it in any case, False never."""
    if asked is False or not (asked or may_hang(result)):
        return None
    if not (asked or is_cheap(result)):
        busy = 100.0 * result.summary["busy_fraction"]
        share = 100.0 * result.summary["mean_queue_time_ms"] / result.summary["mean_ttft_ms"]
        return (
            f"warning: TTFT is sensitive to step times: the server is busy {busy:.0f} % of the time, and queue time is"
            f" {share:.0f} % of mean TTFT; --sensitivity tries steps 5 % shorter and longer"
        )
    found = step_times(result)
    if found is None or not (asked or found.is_magnified):
        return None
    moves = "; ".join(
        f"with steps 5 % {name}, mean TTFT {_figure(mean, found.plain[0])} and p99 {_figure(tail, found.plain[1])}"
        for name, (mean, tail) in (("shorter", found.shorter), ("longer", found.longer))
    )
    if not found.is_magnified:
        return f"TTFT follows the step times: {moves}"
    return f"warning: TTFT is sensitive to step times: {moves}"


def _figure(value: float, plain: float) -> str:
    return f"{value:,.0f} ms ({100.0 * (value / plain - 1.0):+.0f} %)"
