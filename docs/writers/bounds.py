"""The table of docs/bound.md: how close the best of the shipped policies comes to each bound, on library scenarios."""

from collections.abc import Iterator

from docs.writers.tables import texts
from scenarios.assembly.engines import with_policy
from scenarios.assembly.replica_parts import build
from scenarios.assembly.workloads import build_workload
from scenarios.bound.bound import bound, of_run
from scenarios.runs.runner import run_on
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.metrics.summary import METRICS
from simulator.policies import built_in_policies

SCENARIOS = ("azure-conv", "chunk-size", "long-tail", "memory-pressure", "priorities")
METRICS_SHOWN = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "request_throughput", "slo_attainment")


def markdown() -> str:
    """The share of the bound that the best policy reaches, and which policy it is: a row a scenario."""
    head = ["scenario", *(METRICS[key].title for key in METRICS_SHOWN)]
    return "\n".join(texts(head, ([f"`{name}`", *_cells(name)] for name in SCENARIOS))) + "\n"


def _cells(name: str) -> Iterator[str]:
    base = load(name)
    workload = build_workload(base)
    best: dict[str, tuple[float, str]] = {}
    for policy in built_in_policies():
        scenario, _ = with_policy(base, policy)
        try:
            build(scenario)
        except InputError:
            continue  # it cannot serve the scenario
        run = run_on(scenario, workload)
        held = of_run(bound(scenario, workload), run.records, workload)
        for key, at_best in held.metrics.items():
            value = run.summary.get(key)
            if key in METRICS_SHOWN and isinstance(value, int | float):
                low, high = sorted((at_best.value, float(value)))
                best[key] = max(best.get(key, (0.0, "")), (low / high if high else 1.0, policy), key=lambda one: one[0])
    for key in METRICS_SHOWN:
        share, policy = best.get(key, (0.0, ""))
        yield f"{share:.0%} `{policy}`" if policy else "no bound"
