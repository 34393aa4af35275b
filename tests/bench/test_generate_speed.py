"""How fast workloads are drawn, in CPU seconds: figures to read (a million requests: below one)."""

import time
from typing import Any

import pytest

from scenarios.generate import GeneratedWorkload, generate
from tests.bench.workloads import per_second

LENGTHS = {"dist": "lognormal", "median": 350, "p99": 4000, "max": 8192}
ARRIVALS: dict[str, dict[str, Any]] = {
    "poisson": {"process": "poisson", "rate": 6},
    "gamma": {"process": "gamma", "rate": 6, "cv": 3.0},
    "onoff with a profile": {"process": "onoff", "rate": 8.3, "on_s": 23, "off_s": 53, "profile": [[0, 1], [3600, 2]]},
}


@pytest.mark.benchmark(timer=time.process_time, warmup=False)
@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=ARRIVALS)
@pytest.mark.parametrize("classes", [1, 10])
def test_a_million_requests(benchmark: Any, arrival: dict[str, Any], classes: int) -> None:
    entries = [{"name": f"c{i}", "arrival": arrival, "input": LENGTHS, "output": LENGTHS} for i in range(classes)]
    config = GeneratedWorkload.model_validate({"requests": 1_000_000, "classes": entries})
    workload = benchmark.pedantic(generate, args=(config, 0), rounds=3, iterations=1)
    per_second(benchmark, len(workload))
    assert len(workload) == 1_000_000
