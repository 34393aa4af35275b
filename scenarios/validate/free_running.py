"""Free-running: a scenario is simulated, and a device serves it on its own clock. Are the conclusions the same?

Lockstep compares step by step. Here each side goes its own way: during a longer step more requests arrive, so errors
may grow or cancel out. The results that a user reads are compared: latencies, and which policy is better.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import mean
from typing import Any

from scenarios.assembly.engine_policy import policy_label, with_policy
from scenarios.assembly.replica_parts import build
from scenarios.assembly.workloads import build_workload
from scenarios.schema.scenario import Scenario
from scenarios.validate.lockstep_case import case_of
from simulator.goes_with import DEVICE
from simulator.lockstep.lockstep_run import MakeDevice
from simulator.metrics.summary import summarize
from simulator.results.records import Records

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
