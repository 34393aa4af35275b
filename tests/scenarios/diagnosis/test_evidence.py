"""What rules are made of: stretches of time, late requests, what was passed over, what was seen before."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.diagnosis.evidence import Evidence, Timeline, covered
from scenarios.diagnosis.late import Late, late_requests
from scenarios.diagnosis.rules.memory import gain_of
from scenarios.diagnosis.rules.prefix_cache import seen_before
from scenarios.diagnosis.rules.starvation import passed_over_s
from scenarios.runs.result import Result
from scenarios.runs.runner import run
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.metrics.window import measured_window
from simulator.request import PromptContent
from simulator.workload import Workload

TIMES = st.floats(0, 100)


def small(slo: dict[str, Any] | None, **changes: Any) -> Result:
    scenario: dict[str, Any] = {
        "name": "small",
        "hardware": {"gpu": "h100", "num_gpu_blocks": 400},
        "cost": {"kind": "linear", "base_s": 0.005, "per_token_s": 2e-5, "per_context_token_s": 5e-7},
        "workload": {
            "requests": 60,
            "classes": [
                {
                    "name": name,
                    "priority": place,
                    "arrival": {"process": "poisson", "rate": 10},
                    "input": {"dist": "uniform", "min": 10, "max": 900},
                    "output": {"dist": "uniform", "min": 1, "max": 60},
                }
                for place, name in enumerate(("chat", "batch"))
            ],
        },
        "engine": {"policy": "chunked_prefill", "max_num_seqs": 6, "max_num_batched_tokens": 256},
        **changes,
    }
    return run(scenario if slo is None else {**scenario, "slo": slo})


def late_of(result: Result) -> Late:
    window = measured_window(result.records)
    return late_requests(result.records, result.scenario.resolve_slo(), result.summary, window)


@given(
    st.lists(st.tuples(TIMES, TIMES), max_size=8),
    st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=4),
)
def test_covered_time_is_counted_once(intervals: list[tuple[float, float]], asked: list[tuple[float, float]]) -> None:
    starts, ends = (np.array([each[i] for each in intervals]) for i in range(2))
    from_s, to_s = (np.array([f(each) for each in asked]) for f in (min, max))
    edges = sorted({0.0, 100.0, *starts.tolist(), *ends.tolist(), *from_s.tolist(), *to_s.tolist()})
    for found, a, b in zip(covered(starts, ends, from_s, to_s), from_s, to_s, strict=True):
        expected = sum(
            high - low
            for low, high in pairwise(edges)
            if a <= low and high <= b and any(s <= low and high <= e for s, e in intervals)
        )
        assert found == pytest.approx(expected, abs=1e-9)


def test_a_timeline_counts_each_replicas_own_rows() -> None:
    result = small(None, replicas=3)
    rows = result.records.rows
    timeline = Timeline(result.records, 0.0, float(rows.end_s.max()))
    rng = np.random.default_rng(1)
    replica = rng.integers(0, 3, 40)
    begin = rng.uniform(0, rows.end_s.max(), 40)
    end = begin + rng.uniform(0, 3, 40)
    weight = rng.random(len(rows.repeat))
    for place, found in enumerate(timeline.seconds(weight, replica, begin, end)):
        inside = np.minimum(rows.end_s, end[place]) - np.maximum(rows.start_s, begin[place])
        own = (rows.replica == replica[place]) & (inside > 0)
        assert found == pytest.approx(float(np.dot(weight[own], inside[own])), abs=1e-9)


def test_late_is_who_misses_a_limit_by_the_largest_factor() -> None:
    late = late_of(small({"ttft_ms": 300, "tpot_ms": 12}))
    result = small({"ttft_ms": 300, "tpot_ms": 12})
    requests = result.requests
    missed = (requests["ttft_ms"] > 300) | (requests["tpot_ms"] > 12)
    assert late.row.tolist() == np.flatnonzero(missed).tolist()
    assert late.broken
    by_ttft = requests["ttft_ms"] / 300 >= (requests["tpot_ms"] / 12).fillna(0)
    assert late.waits.tolist() == by_ttft[missed].tolist()
    assert (late.waits != late.paces).all()
    excess = np.where(by_ttft, requests["ttft_ms"] - 300, (requests["tpot_ms"] - 12) * (requests["output_tokens"] - 1))
    assert late.excess_s == pytest.approx(excess[missed] / 1e3)


def test_a_target_on_a_percentile_is_a_limit_and_is_missed_as_a_target() -> None:
    p90 = small(None).summary["p90_ttft_ms"]
    kept, missed = late_of(small({"p90_ttft_ms": p90 + 1})), late_of(small({"p90_ttft_ms": p90 - 1}))
    assert not kept.broken
    assert missed.broken
    assert len(missed.row) >= 6


def test_a_class_is_late_by_its_own_limits_alone() -> None:
    result = small({"ttft_ms": 100_000, "classes": {"batch": {"ttft_ms": 1}}})
    assert set(result.records.requests.class_index[late_of(result).row].tolist()) == {1}


def test_without_an_slo_late_is_who_waits_longer_than_requests_are_served() -> None:
    late = late_of(small(None))
    assert not late.by_slo
    result = small(None)
    requests = result.records.requests
    waited = requests.scheduled_s - requests.arrival_s + requests.requeued_s
    served = (requests.last_token_s - requests.scheduled_s - requests.requeued_s).mean()
    assert late.row.tolist() == np.flatnonzero(waited > served).tolist()


def test_order_of_arrival_passes_over_nobody_and_priorities_do() -> None:
    def passed(order: str) -> np.ndarray[Any, Any]:
        engine = {"policy": "chunked_prefill", "max_num_seqs": 6, "max_num_batched_tokens": 256, "order": order}
        result = small({"ttft_ms": 300}, engine=engine)
        return passed_over_s(Evidence(result.scenario, result.records, result.summary))

    assert not passed("fcfs").any()
    assert passed("priority").any()


def test_what_a_larger_batch_serves_and_what_that_takes_from_a_queue() -> None:
    assert gain_of(0.5, 2.0) == pytest.approx(4 / 3)  # the limit from which on a batch is small
    assert gain_of(1.0, 8.0) == 8.0
    assert gain_of(0.0, 8.0) == 1.0
    result = small({"ttft_ms": 300})
    evidence = Evidence(result.scenario, result.records, result.summary)
    evidence.__dict__["pressure"] = 3.0
    assert [evidence.relieved(gain) for gain in (1.0, 2.0, 3.0, 5.0)] == [0.0, 0.5, 1.0, 1.0]


CONTENTS = [
    PromptContent(prefix_group="a", prefix_tokens=70),
    PromptContent(prefix_group="b", prefix_tokens=40),
    PromptContent(conversation="c"),
    PromptContent(prefix_group="a", prefix_tokens=70, conversation="d"),
    PromptContent(block_hashes=(1, 2, 3, 4), hash_block_size=32),
    PromptContent(block_hashes=(1, 2, 9, 4), hash_block_size=32),
    PromptContent(prompt_token_ids=tuple(range(120))),
    PromptContent(prompt_token_ids=(*range(60), *range(7, 67))),
    None,
]


@given(st.lists(st.tuples(st.integers(0, len(CONTENTS) - 1), st.integers(0, 1)), max_size=12))
def test_what_was_seen_before_is_what_block_keys_say(drawn: list[tuple[int, int]]) -> None:
    n = len(drawn)
    turns: dict[str, int] = {}
    inputs = []
    for kind, _ in drawn:  # a conversation grows from turn to turn
        content = CONTENTS[kind]
        name = None if content is None else content.conversation
        if name is not None:
            turns[name] = turns.get(name, 70) + 50
        inputs.append(turns[name] if name is not None else 120)
    count, zeros = np.full(n, 20), np.zeros(n, dtype=np.int64)
    workload = Workload(
        np.arange(n, dtype=np.float64), np.array(inputs, dtype=np.int64), count, count, zeros, zeros,
        content=[CONTENTS[kind] for kind, _ in drawn],
    )  # fmt: skip
    replica = np.array([place for _, place in drawn], dtype=np.int64)
    same, anywhere = seen_before(workload, replica, 16)
    for found, alike in ((same, True), (anywhere, False)):
        chains = Chains()
        known: dict[int, set[object]] = {}
        for row in range(n):
            request = workload.request(row)
            keys = BlockKeys(request, 16, chains)
            cache = known.setdefault(int(replica[row]) if alike else 0, set())
            blocks = (request.input_tokens - 1) // 16
            hits = next((block for block in range(blocks) if keys[block] not in cache), blocks)
            assert found[row] == 16 * hits
            cache.update(keys[block] for block in range((request.input_tokens + 20) // 16))
