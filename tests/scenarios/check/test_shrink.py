"""Shrinking: what is left is what the breach needs."""

from dataclasses import replace

from scenarios.check.cases import Cost, RandomCase, RandomRequest, as_yaml, shrink
from scenarios.schema.source.yaml_source import parse_yaml

LARGE = RandomCase(
    requests=tuple(RandomRequest(0.0173 * i, 10 + i, 5 + i, 30, i % 3) for i in range(9)),
    num_gpu_blocks=57,
    block_size=4,
    parameters={"max_num_seqs": 3, "order": "priority", "chosen": 7},
    cost=Cost(0.005, 2e-5, 5e-7),
    num_host_blocks=3,
    swap_s_per_block=1e-4,
    replicas=2,
    router="least_loaded",
)


def test_what_breaks_always_becomes_nothing() -> None:
    small = shrink(LARGE, lambda case: True, fixed=["chosen"])
    assert small == RandomCase((RandomRequest(0.0, 1, 1, 1),), 1001, 4, {"chosen": 7})


def test_what_the_breach_needs_stays() -> None:
    def breaks(case: RandomCase) -> bool:
        long = [request for request in case.requests if request.input_tokens >= 13]
        late = any(request.arrival_s > 0 for request in case.requests)
        return len(long) >= 2 and late and case.parameters.get("order") == "priority" and case.num_gpu_blocks < 100

    assert breaks(LARGE)
    small = shrink(LARGE, breaks)
    assert small == RandomCase(
        (RandomRequest(0.0, 13, 1, 1), RandomRequest(1.0, 13, 1, 1)),
        57,
        4,
        {"order": "priority"},
        Cost(),
        router="round_robin",
    )


def test_so_many_tries_and_no_more() -> None:
    tried: list[RandomCase] = []

    def breaks(case: RandomCase) -> bool:
        tried.append(case)
        return False

    assert shrink(LARGE, breaks, most_tries=7) == LARGE
    assert len(tried) == 7
    assert len(set(map(repr, tried))) == 7


def test_yaml_is_read_back_as_it_was() -> None:
    case = replace(LARGE, parameters={"a": True, "b": None, "c": "true", "d": 1e-7, "e": "x: y", "f": [1, {"g": "h"}]})
    scenario = case.scenario("odd-name", "../my policies/p.py:Class", "x.csv")
    assert parse_yaml(as_yaml(scenario), "text").data == scenario
