"""Metrics against a naive reading of the same run, and against vLLM's rules where they are easy to get wrong."""

import json
import math
from collections.abc import Iterable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.metrics.latency import Slo, e2el_s, meets_slo, queue_s, request_latencies, tpot_s, ttft_s
from simulator.metrics.summary import METRICS, cost_per_million_output_tokens, summarize, summarize_by_class
from simulator.results.records import GapColumns, Records, RequestColumns, RequeueColumns, RowColumns, Status
from tests.naive_metrics import itl_s, naive_summary, same
from tests.records_maker import single_server, tell
from tests.story import Story

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "queue_time_ms")
STATISTICS = ("mean", "median", "std", "p50", "p90", "p95", "p99")

# As users' scripts find them in summary.json: none is lost, and their order stays. Others may stand between them.
KEYS = [
    *("completed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("output_throughput", "total_token_throughput", "request_goodput"),
    *(f"{statistic}_{latency}" for latency in LATENCIES for statistic in STATISTICS),
    *("num_steps", "mean_batch_size", "batch_occupancy", "busy_fraction", "wasted_slot_fraction", "padding_fraction"),
    *("kv_utilization_mean", "kv_utilization_peak", "queue_depth_mean", "queue_depth_max", "preemptions"),
    *("recomputed_tokens", "swapped_out_blocks", "swapped_in_blocks", "prefix_cache_hit_rate", "rejected"),
    *("unfinished", "aborted", "aborted_output_tokens", "aborted_computed_tokens", "slo_attainment", "balance_cv"),
    *("balance_max_over_mean", "balance_jain", "fairness_jain", "fairness_min_over_max", "served", "given_up"),
    *("attempts_per_request", "served_throughput", "sessions", "mean_session_turns", "mean_session_s"),
    "sessions_jain",
    *("replica_seconds", "mean_replicas", "peak_replicas", "scale_outs", "scale_ins", "mean_time_to_scale_s"),
    *(
        "mean_drain_s",
        "kv_transfers",
        "kv_transfer_gib",
        "mean_kv_wait_s",
        "mean_kv_transfer_s",
        "saturated",
        "schema_version",
    ),
]

stories = st.builds(
    tell,
    st.integers(0, 10**6),
    requests=st.integers(1, 25),
    streams=st.sampled_from([True, True, False]),
    cut_short=st.sampled_from([False, False, True]),
)
limits_ms = st.none() | st.sampled_from([0.0, 125.0, 500.0, 1000.0, 4000.0])
plain_slos = st.builds(Slo, limits_ms, limits_ms, limits_ms, st.none(), limits_ms)
class_slos = st.dictionaries(st.sampled_from(["class 0", "class 1"]), plain_slos)
slos = st.none() | st.builds(lambda slo, classes: replace(slo, classes=classes), plain_slos, class_slos)


def assert_same(found: dict[str, float | int | bool | None], expected: dict[str, float | int | bool | None]) -> None:
    wrong = {k: (found[k], v) for k, v in expected.items() if not same(found[k], v)}
    assert not wrong


def in_order(found: Iterable[str]) -> bool:
    """Whether a summary has the keys of the table in its order, and those of users' scripts in theirs."""
    keys = list(found)
    worked_out = [key for key, metric in METRICS.items() if metric.by_run and metric.of and not metric.is_rare]
    return keys == worked_out and [key for key in keys if key in KEYS] == KEYS


@given(stories, slos)
def test_summary_agrees_with_a_naive_reading(story: Story, slo: Slo | None) -> None:
    found = summarize(story.records(), slo=slo)
    assert_same(found, naive_summary(story, slo, 0.0, 0.0))
    assert in_order(found)


@given(stories, slos, st.floats(0, 0.49), st.floats(0, 0.49))
def test_a_cut_agrees_with_a_naive_reading(story: Story, slo: Slo | None, warmup: float, cooldown: float) -> None:
    arrivals = [r.arrival_s for r in story.requests]
    span = max(arrivals) - min(arrivals)
    warmup_s, cooldown_s = warmup * span, cooldown * span
    try:
        found = summarize(story.records(), slo=slo, warmup_s=warmup_s, cooldown_s=cooldown_s)
    except InputError:
        inside = [a for a in arrivals if min(arrivals) + warmup_s <= a <= max(arrivals) - cooldown_s]
        assert not inside
        return
    assert_same(found, naive_summary(story, slo, warmup_s, cooldown_s))


def test_the_stories_have_everything_in_them() -> None:
    """The two tests above are worth what their stories hold."""
    told = [tell(seed, requests=20, streams=seed % 3 > 0, cut_short=seed % 4 == 0) for seed in range(200)]
    everything = [story.records() for story in told]
    assert sum(int(np.sum(r.rows.repeat > 2)) for r in everything) > 100
    assert sum(int(np.sum(r.rows.held > 0)) for r in everything) > 100
    assert sum(int(np.sum(r.gaps.count > 1)) for r in everything) > 100
    assert sum(int(np.sum(r.requeues.swapped)) for r in everything) > 20
    assert sum(int(np.isnan(r.requeues.to_s).sum()) for r in everything) > 3
    assert {status for r in everything for status in r.requests.status.tolist()} == set(Status)
    assert {r.replicas for r in everything} == {1, 2, 3}


@given(stories, slos)
def test_classes_add_up(story: Story, slo: Slo | None) -> None:
    records = story.records()
    whole, parts = summarize(records, slo=slo), summarize_by_class(records, slo=slo).values()
    summed = ("completed", "total_output_tokens", "rejected", "unfinished", "preemptions", "recomputed_tokens")
    for name in (*summed, "output_throughput", "request_goodput", "queue_depth_mean"):
        values = [part[name] for part in parts]
        if whole[name] is None:
            assert set(values) == {None}
        else:
            assert math.isclose(sum(v for v in values if v is not None), float(whole[name] or 0), abs_tol=1e-9)


def test_one_class_is_the_whole() -> None:
    story = tell(5, requests=20)
    story.classes = 1
    for request in story.requests:
        request.class_index = 0
    records = story.records()
    whole, (part,) = (
        summarize(records, slo=Slo(ttft_ms=900)),
        summarize_by_class(records, slo=Slo(ttft_ms=900)).values(),
    )
    shared = [name for name in part if name in whole]
    assert "mean_itl_ms" in shared
    assert "p99_itl_ms" not in part
    assert_same(part, {name: whole[name] for name in shared})


def test_a_class_without_requests_is_left_out() -> None:
    records = replace(single_server(np.zeros(2), np.ones(2)), class_names=("default", "none"))
    assert list(summarize_by_class(records)) == ["default"]


@given(stories)
def test_itl_adds_up_to_last_minus_first_token(story: Story) -> None:
    summary = summarize(story.records())
    count = len(itl_s(story, -math.inf, math.inf))
    if count == 0:
        assert summary["mean_itl_ms"] is None
    else:
        spans = sum(r.token_s[-1] - r.token_s[0] for r in story.requests if r.token_s)
        assert math.isclose(float(summary["mean_itl_ms"] or 0) * count, spans * 1e3, rel_tol=1e-9, abs_tol=1e-9)


def test_an_empty_run_has_every_key_and_is_json() -> None:
    nothing, none = np.zeros(0), np.zeros(0, dtype=np.int64)

    def empty(columns: type) -> list[object]:
        return [nothing if f.type == "Floats" else none for f in fields(columns)]

    records = Records(
        RequestColumns(*empty(RequestColumns)),  # type: ignore[arg-type] # arrays by name
        RowColumns(*empty(RowColumns)),  # type: ignore[arg-type] # arrays by name
        GapColumns(nothing, none, nothing),
        RequeueColumns(none, nothing, nothing, none),
        nothing, none, 10, 16, 4, 1, {}, ("default",), None,
    )  # fmt: skip
    summary = summarize(records, slo=Slo(ttft_ms=1))
    assert in_order(summary)
    assert summary["completed"] == 0
    assert summary["p99_ttft_ms"] is None
    assert summary["saturated"] is False
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summarize_by_class(records) == {}


def test_values_are_plain_python() -> None:
    summary = summarize(tell(1, requests=20).records(), slo=Slo(ttft_ms=1000))
    assert {type(value) for value in summary.values()} <= {int, float, bool, type(None)}
    assert type(summary["completed"]) is int
    assert type(summary["duration"]) is float


def test_one_token_has_no_tpot_but_meets_its_limit() -> None:
    records = single_server(np.zeros(1), np.ones(1))
    assert np.isnan(tpot_s(records)).all()
    summary = summarize(records, slo=Slo(tpot_ms=0))
    assert summary["p50_tpot_ms"] is None
    assert summary["slo_attainment"] == 1.0
    assert summary["request_goodput"] == 1.0


def test_results_with_the_batch_have_neither_tpot_nor_gaps() -> None:
    story = next(s for s in (tell(seed, requests=8, streams=False) for seed in range(99)) if len(s.steps) > 20)
    records = story.records()
    assert np.sum(records.rows.decoding * (records.rows.repeat - 1)) > 0  # the columns do hold such differences
    summary = summarize(records, slo=Slo(tpot_ms=0))
    assert summary["mean_itl_ms"] is None
    assert summary["mean_tpot_ms"] is None
    assert float(summary["mean_ttft_ms"] or 0) == float(summary["mean_e2el_ms"] or 1)
    assert summary["slo_attainment"] == float(np.mean(records.requests.status == Status.FINISHED))


def test_a_limit_is_met_by_what_equals_it() -> None:
    records = single_server(np.zeros(3), np.ones(3))  # done after 1, 2 and 3 seconds
    assert meets_slo(records, Slo(ttft_ms=2000)).tolist() == [True, True, False]
    assert meets_slo(records, Slo(e2el_ms=2999.9)).tolist() == [True, True, False]
    assert meets_slo(records, Slo()).all()
    assert summarize(records)["slo_attainment"] is None
    assert summarize(records, slo=Slo())["request_goodput"] is None


def test_rejected_and_unfinished_requests_miss_the_slo() -> None:
    records = single_server(np.zeros(4), np.ones(4))
    status = np.array([Status.FINISHED, Status.FINISHED, Status.REJECTED, Status.UNFINISHED], dtype=np.int64)
    summary = summarize(replace(records, requests=replace(records.requests, status=status)), slo=Slo(ttft_ms=1e9))
    assert summary["slo_attainment"] == 0.5
    assert summary["rejected"] == summary["unfinished"] == 1
    assert summary["request_goodput"] == 0.5  # over the four seconds until the run ended


def test_latencies_of_each_request() -> None:
    records = single_server(np.array([0.0, 0.5]), np.array([1.0, 1.0]))
    assert ttft_s(records).tolist() == e2el_s(records).tolist() == [1.0, 1.5]
    assert queue_s(records).tolist() == [0.0, 0.5]
    found = request_latencies(records)
    assert found.e2el_ms.tolist() == [1000.0, 1500.0]
    assert np.isnan(found.tpot_ms).all()


def test_littles_law_of_a_run() -> None:
    """Mean queue depth = throughput x mean queue time, exactly, where everybody finishes."""
    rng = np.random.default_rng(1)
    summary = summarize(single_server(np.cumsum(rng.exponential(1.0, 5000)), rng.exponential(0.9, 5000)))
    depth = float(summary["request_throughput"] or 0) * float(summary["mean_queue_time_ms"] or 0) / 1e3
    assert math.isclose(depth, float(summary["queue_depth_mean"] or 0), rel_tol=1e-9)


def test_held_slots_are_waste() -> None:
    """Outputs of 1000, 200 and 400 in one static batch: 1400 of 3000 slot-steps serve nobody."""
    records = single_server(np.zeros(3), np.array([200.0, 200.0, 600.0]))
    rows = replace(
        records.rows,
        first_step=np.array([0, 200, 400]),
        repeat=np.array([200, 200, 600]),
        running=np.array([3, 3, 3]),
        held=np.array([0, 1, 2]),
    )
    ends = np.arange(1.0, 1001.0)
    records = replace(records, rows=rows, step_end_s=ends, step_used_blocks=np.ones(1000, dtype=np.int64))
    assert summarize(records)["wasted_slot_fraction"] == 1400 / 3000


def test_rows_that_do_not_cover_the_steps_are_refused() -> None:
    records = single_server(np.zeros(3), np.ones(3))
    for first_step in ([0, 2, 1], [1, 2, 3], [0, 1, 1]):
        broken = replace(records, rows=replace(records.rows, first_step=np.array(first_step)))
        with pytest.raises(ValueError, match="rows must cover the steps"):
            summarize(broken)


@pytest.mark.parametrize("cut", [-1.0, math.nan, math.inf])
def test_a_cut_is_a_number_of_seconds(cut: float) -> None:
    with pytest.raises(InputError, match="warmup_s must be a number of seconds"):
        summarize(single_server(np.zeros(1), np.ones(1)), warmup_s=cut)


def test_a_cut_that_leaves_nobody_is_refused() -> None:
    records = single_server(np.arange(10.0), np.ones(10))
    with pytest.raises(InputError, match="leave no request to measure"):
        summarize(records, warmup_s=5, cooldown_s=5)
    assert summarize(records, warmup_s=5, cooldown_s=4)["completed"] == 1


def test_cost_per_million_output_tokens() -> None:
    found = cost_per_million_output_tokens(1000.0, gpus=2, usd_per_gpu_hour=3.6)
    assert found is not None
    assert math.isclose(found, 2.0)
    assert cost_per_million_output_tokens(None, gpus=2, usd_per_gpu_hour=3.6) is None
    assert cost_per_million_output_tokens(0.0, gpus=2, usd_per_gpu_hour=3.6) is None
