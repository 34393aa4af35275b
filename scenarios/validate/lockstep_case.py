"""A scenario on a device, in lockstep or free-running on its own clock, and the outcome in words and numbers."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

from scenarios.assembly.engines import policy_label, with_policy
from scenarios.assembly.replica_parts import ReplicaParts, build
from scenarios.assembly.workloads import build_workload, check_content
from scenarios.schema.cost import ProfileCostConfig
from scenarios.schema.engine import UNSAID
from scenarios.schema.scenario import Scenario
from simulator.goes_with import DEVICE
from simulator.lockstep.lockstep_run import Canary, LockstepCase, MakeDevice
from simulator.lockstep.step_errors import LockstepErrors, LockstepVerdict, StepErrors
from simulator.memory.blocks import BlockLedger
from simulator.metrics.summary import summarize
from simulator.results.records import Records
from simulator.timing.executor import Predicted
from simulator.workload import Workload


def lockstep_case(scenario: Scenario, swap_s_per_block: float | None = None) -> LockstepCase:
    """Return the scenario as a lockstep runs it. Raises InputError for what one device cannot be.

    `swap_s_per_block` is the time that the device takes to move a block, where that was measured.
    """
    if scenario.num_replicas != 1:
        raise scenario.error("replicas", "a lockstep has one replica", "--set replicas=1")
    for key in ("tensor_parallel", "pipeline_parallel"):
        if getattr(scenario.hardware, key) != 1:
            raise scenario.error(f"hardware.{key}", "a lockstep has one GPU", f"--set hardware.{key}=1")
    for key in ("max_queued_requests", *UNSAID):
        if getattr(scenario.engine, key) is not None:
            raise scenario.error(f"engine.{key}", "a lockstep serves every request", f"--set engine.{key}=null")
    workload = build_workload(scenario)
    check_content(scenario, workload)
    return case_of(workload, build(scenario, [DEVICE]), swap_s_per_block)


def case_of(workload: Workload, parts: ReplicaParts, swap_s_per_block: float | None = None) -> LockstepCase:
    """Return the parts of a scenario as a lockstep runs them: blocks have ids, also where counts would do."""
    swap_s = parts.swap_s_per_block if swap_s_per_block is None else swap_s_per_block
    return LockstepCase(
        workload=workload,
        make_policy=parts.make_policy,
        kv=parts.kv,
        make_predicted=lambda: Predicted(parts.cost, swap_s),
        make_blocks=parts.make_blocks_by_id,
        caches_prefixes=parts.make_blocks is not BlockLedger,
    )


def measured_swap_s(profile: Path | None) -> float | None:
    """Return the seconds to move a block, from measured.json beside a profile; None where it does not say."""
    if profile is None:
        return None
    try:
        seen = json.loads((profile.parent / "measured.json").read_text(encoding="utf-8"))
        return float(seen["swap_s_per_block"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def profile_canary(profile: Path | None) -> Canary | None:
    """Return the canary that a profile was measured beside; None where it does not say."""
    if profile is None:
        return None
    try:
        document = json.loads(profile.read_text(encoding="utf-8"))
        return Canary.of_json(next(source["canary"] for source in document["sources"] if "canary" in source))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def lockstep_json(found: LockstepErrors, verdict: LockstepVerdict, device: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of `--json`; errors are fractions, 0.04 is 4 %."""
    return {
        "verdict": verdict.outcome,
        "reasons": list(verdict.reasons),
        "steps": found.all.steps,
        "flagged": found.flagged,
        "stalled": found.stalled,
        "plans_equal": found.plans_equal,
        **_prefixed(found.all),
        "noise_floor_mape": found.floor,
        "noise_floor_drift": found.drift_floor,
        "drift": found.drift,
        "canary": found.canary,
        "in_ratio": None
        if found.in_ratio is None
        else {**_prefixed(found.in_ratio.all), "drift": found.in_ratio.drift},
        "regimes": {
            name: {
                "steps": each.steps,
                **_prefixed(each),
                "noise_floor_mape": each.floor,
                "drift": each.drift,
                "control": each.control,
            }
            for name, each in found.regimes.items()
        },
        "device": dict(device),
    }


def _prefixed(errors: StepErrors) -> dict[str, float]:
    return {"step_mape": errors.mape, "step_median": errors.median, "step_p95": errors.p95, "step_bias": errors.bias}


def priced_elsewhere(scenario: Scenario, source: str, device: str) -> str | None:
    """Say that the scenario's step times were not measured on this machine, and what measures them here.

    None where the scenario names a profile by its path: whoever does that has measured it. `source` is the scenario as
    the command line names it.
    """
    cost = scenario.cost
    if isinstance(cost, ProfileCostConfig) and cost.path is not None:
        return None
    by_hand = (
        f"`batchlab calibrate measure --scenario {source} --device {device} --steps-only --out runs/measured`, then"
        " `batchlab calibrate fit --from-steps runs/measured/rows.jsonl.gz --out runs/measured/profile.json`, then"
        f" `batchlab lockstep {source} --device {device} --profile runs/measured/profile.json`"
    )
    at_once = (
        "In a clone, `make lockstep` measures this CPU, fits a profile, and runs this command with it. "
        if source == "lockstep-cpu"
        else ""
    )
    return (
        f"The step times are those of the scenario's cost (kind: {cost.kind}), which is another machine's: no profile"
        f" of this one was given. {at_once}By hand: {by_hand}."
    )


def verdict_words(found: LockstepErrors, verdict: LockstepVerdict, elsewhere: str | None = None) -> str:
    """Return the verdict in a few sentences. `elsewhere` is said of step times that are another machine's."""
    floor = "" if found.floor is None else f", two executions of the same steps differ by {found.floor:.1%}"
    plans = "plans equal" if found.plans_equal else "plans differ"
    said = [f"{plans}; step MAPE {found.all.mape:.1%}{floor}; busy time drifts by {found.drift:+.1%}."]
    if found.in_ratio is not None:
        said.append(
            f"The canary's time has changed by {found.canary:+.1%} since the profile was measured. Relative to fixed "
            f"steps of each regime, timed then and now, the MAPE is {found.in_ratio.all.mape:.1%} and the drift "
            f"{found.in_ratio.drift:+.1%}."
        )
    if found.flagged:
        said.append(
            f"{found.flagged} of {found.of} steps do not count, {found.stalled} of them because they are stalls."
        )
    outcome = {"within": "Within the limits", "not within": "Not within the limits", "cannot tell": "Cannot tell"}
    reasons = f": {'; '.join(verdict.reasons)}" if verdict.reasons else ""
    said.append(f"{outcome[verdict.outcome]}{reasons}.")
    said += [f"{remark[0].upper()}{remark[1:]}." for remark in verdict.remarks]
    said += [elsewhere] if elsewhere is not None else []
    return " ".join(said)


# Free-running: a scenario is simulated, and a device serves it on its own clock. Are the conclusions the same?
#
# Lockstep compares step by step. Here each side goes its own way: during a longer step more requests arrive, so
# errors may grow or cancel out. The results that a user reads are compared: latencies, and which policy is better.

METRICS = (
    "mean_ttft_ms", "p50_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms", "mean_e2el_ms", "p50_e2el_ms",
    "p99_e2el_ms",
)  # fmt: skip
COUNTS = ("num_steps", "preemptions")
ORDER_BY = "mean_e2el_ms"

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """A run of both sides under a policy, a factor on the arrival rate, and a seed."""

    policy: str
    rate_scale: float
    seed: int
    simulated: Summary
    executed: Summary
    answers: Mapping[int, Sequence[int]]  # tokens by row, as the device sampled them

    def error(self, metric: str) -> float | None:
        """(simulated - executed) / executed; None where there is nothing to compare."""
        one, other = self.simulated.get(metric), self.executed.get(metric)
        return (one - other) / other if one is not None and other else None


def free_running(
    scenario: Scenario,
    policies: Sequence[str],
    rate_scales: Sequence[float],
    seeds: int,
    make_device: Callable[[Scenario], MakeDevice],
    told: Callable[[str], None] = lambda text: None,
) -> Iterator[Point]:
    """Run both sides for every policy, rate and seed, one after the other."""
    for policy in policies:
        chosen = with_policy(scenario, policy)[0] if policy != scenario.engine.policy else scenario
        parts = build(chosen, [DEVICE])
        for seed in range(scenario.seed, scenario.seed + seeds):
            workload = build_workload(chosen.model_copy(update={"seed": seed}))
            for scale in rate_scales:
                told(f"{policy_label(policy)}, rate x {scale:g}, seed {seed}")
                case = case_of(replace(workload, arrival_s=workload.arrival_s / scale), parts)
                simulated = _summary(case.run(case.make_predicted(), with_ids=False).records, chosen)
                device = make_device(chosen)()
                executed = _summary(case.run(device).records, chosen)
                yield Point(policy_label(policy), scale, seed, simulated, executed, device.answers)


def _summary(records: Records, scenario: Scenario) -> Summary:
    found = summarize(records, slo=scenario.resolve_slo(), **scenario.measure.window(records))
    return {**found, "num_steps": records.num_steps}


def mean_errors(points: Sequence[Point]) -> dict[str, float]:
    """Mean signed error of each metric over all runs."""
    found = {}
    for metric in (*METRICS, *COUNTS):
        errors = [error for point in points if (error := point.error(metric)) is not None]
        if errors:
            found[metric] = mean(errors)
    return found


def kendall_tau(points: Sequence[Point]) -> float | None:
    """Kendall's tau of the order of the policies on both sides: 1 the same, -1 reversed, None for one policy.

    For each rate, over the seeds' means of the mean end-to-end latency; tau-a, averaged over the rates.
    """
    taus = []
    for scale in sorted({point.rate_scale for point in points}):
        by_policy: dict[str, list[Point]] = {}
        for point in points:
            if point.rate_scale == scale and point.simulated.get(ORDER_BY) and point.executed.get(ORDER_BY):
                by_policy.setdefault(point.policy, []).append(point)
        sides = [
            (mean(p.simulated[ORDER_BY] for p in group), mean(p.executed[ORDER_BY] for p in group))
            for group in by_policy.values()
        ]
        pairs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(sides, 2)]
        if pairs:
            taus.append(mean((pair > 0) - (pair < 0) for pair in pairs))
    return mean(taus) if taus else None


def same_answers(points: Sequence[Point]) -> bool:
    """Return whether every policy gave every request of a seed the same tokens."""
    first: dict[int, Mapping[int, Sequence[int]]] = {}
    return all(point.answers == first.setdefault(point.seed, point.answers) for point in points)


def duration_rows(points: Sequence[Point]) -> list[list[str]]:
    """Return a table of the time for all requests, mean of the seeds, and its ratio to the first policy's."""
    rows = [["policy", "rate x", "executed (s)", "simulated (s)", "first / this", "simulated so"]]
    for scale in dict.fromkeys(point.rate_scale for point in points):
        first: tuple[float, float] | None = None
        for policy in dict.fromkeys(point.policy for point in points):
            group = [point for point in points if (point.policy, point.rate_scale) == (policy, scale)]
            took = mean(p.executed["duration"] for p in group), mean(p.simulated["duration"] for p in group)
            first = first or took
            ratios = [f"{one / other:.2f}" for one, other in zip(first, took, strict=True)]
            rows.append([policy, f"{scale:g}", f"{took[0]:.3f}", f"{took[1]:.3f}", *ratios])
    return rows


def free_running_rows(points: Sequence[Point]) -> list[list[str]]:
    """Return a table of the mean errors over the seeds, a row for each policy and rate; the head first."""
    rows = [["policy", "rate x", "TTFT mean", "ITL mean", "E2E mean", "E2E p99", "steps"]]
    shown = ("mean_ttft_ms", "mean_itl_ms", "mean_e2el_ms", "p99_e2el_ms", "num_steps")
    for policy, scale in dict.fromkeys((point.policy, point.rate_scale) for point in points):
        errors = mean_errors([point for point in points if (point.policy, point.rate_scale) == (policy, scale)])
        cells = [f"{errors[metric]:+.1%}" if metric in errors else "-" for metric in shown]
        rows.append([policy, f"{scale:g}", *cells])
    return rows


def free_running_json(points: Sequence[Point], device: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of `--json`; errors are fractions."""
    listed = [
        {
            "policy": point.policy,
            "rate_scale": point.rate_scale,
            "seed": point.seed,
            "duration_s": {"executed": point.executed["duration"], "simulated": point.simulated["duration"]},
            "errors": {metric: point.error(metric) for metric in (*METRICS, *COUNTS)},
        }
        for point in points
    ]
    return {
        "points": listed,
        "errors": mean_errors(points),
        "kendall_tau": kendall_tau(points),
        "same_answers": same_answers(points),
        "device": dict(device),
    }
