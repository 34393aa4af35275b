"""The most hits of a cache that knows the future: against all that could be kept, and against what runs find."""

import random
from itertools import combinations
from math import isnan

import pytest

import scenarios
from docs.writers.studies.foresight import Stretch, foreseen_rate, most_hits
from tests.scenarios.runs.test_runner import small


def fits(stretches: list[Stretch], capacity: int) -> bool:
    """No moment, each just after a start, lies in more of them than there are blocks."""
    return all(sum(start <= at < stop for start, stop, _ in stretches) <= capacity for at, _, _ in stretches)


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_most_of_all_choices(seed: int) -> None:
    rng = random.Random(seed)
    drawn = [sorted((rng.randint(0, 9), rng.randint(0, 9))) for _ in range(8)]
    stretches: list[Stretch] = [(float(start), float(stop), 1) for start, stop in drawn]
    capacity = rng.randint(0, 3)
    choices = (list(some) for many in range(9) for some in combinations(stretches, many))
    most = max(len(some) for some in choices if fits(some, capacity))
    assert most_hits(stretches, capacity) == most
    together: dict[tuple[float, float], int] = {}
    for start, stop, _ in stretches:
        together[start, stop] = together.get((start, stop), 0) + 1
    assert most_hits([(*ends, many) for ends, many in together.items()], capacity) == most


def conversations(**changes: object) -> dict[str, object]:
    chat = {
        "name": "chat", "arrival": {"process": "poisson", "rate": 4}, "prefix": {"tokens": 100},
        "input": {"dist": "uniform", "min": 50, "max": 300}, "output": {"dist": "uniform", "min": 20, "max": 100},
        "session": {"turns": {"dist": "uniform", "min": 1, "max": 5}},
    }  # fmt: skip
    workload = {"requests": 80, "classes": [chat]}
    return small(replicas=2, workload=workload, engine__enable_prefix_caching=True, **changes)


@pytest.mark.parametrize("num_blocks", [150, 300, 4000])
@pytest.mark.parametrize("router", ["round_robin", "prefix_affinity"])
def test_no_run_finds_more(num_blocks: int, router: str) -> None:
    result = scenarios.run(conversations(router=router, hardware__num_gpu_blocks=num_blocks))
    found = result.summary["prefix_cache_hit_rate"]
    if result.records.requests.preemptions.any():
        assert isnan(foreseen_rate(result, pooled=False))
        return
    own, pooled = foreseen_rate(result, pooled=False), foreseen_rate(result, pooled=True)
    assert 0 < found <= own <= pooled
    if num_blocks == 4000:
        assert own < found + 0.01  # nothing need be forgotten: what is lost is what came before an answer was there
