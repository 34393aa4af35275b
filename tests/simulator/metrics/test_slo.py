"""SLOs: limits by class, targets on the distribution, and what became of each."""

import json
from dataclasses import replace

import numpy as np
import pytest

from simulator.metrics.latency import Slo, limited_requests, meets_slo
from simulator.metrics.outcomes import Outcome, entries, mean_outcomes, outcomes, outcomes_of
from simulator.metrics.summary import Summary, summarize, summarize_by_class
from simulator.results.records import Records, Status
from tests.columns import as_floats
from tests.records_maker import single_server


def five() -> Records:
    """Five requests that take 1, 2, 3, 4 and 5 seconds and one token; the last two are of class batch."""
    records = single_server(as_floats(np.arange(5) * 10.0), as_floats(np.arange(1.0, 6.0)))
    requests = replace(records.requests, class_index=np.array([0, 0, 0, 1, 1]))
    return replace(records, requests=requests, class_names=("chat", "batch"))


def judged(records: Records, slo: Slo) -> tuple[Outcome, ...]:
    return outcomes(records, slo, summarize(records, slo=slo))


def test_a_class_has_its_own_limits_in_place_of_the_others() -> None:
    own = Slo(ttft_ms=2000, classes={"batch": Slo(e2el_ms=4000)})
    assert meets_slo(five(), own).tolist() == [True, True, False, True, False]
    assert own.per_request("batch") == {"e2el": 4000}
    assert own.per_request("chat") == own.per_request() == {"ttft": 2000}
    attained = {name: found["slo_attainment"] for name, found in summarize_by_class(five(), slo=own).items()}
    assert attained == {"chat": pytest.approx(2 / 3), "batch": 0.5}
    assert summarize(five(), slo=own)["slo_attainment"] == 0.6


def test_a_class_without_limits_keeps_the_others() -> None:
    slo = Slo(ttft_ms=2000, classes={"batch": Slo(targets={"p99_e2el_ms": 9000.0}, attainment=0.5)})
    assert meets_slo(five(), slo).tolist() == [True, True, False, False, False]
    assert slo.limits
    assert not Slo(classes={"batch": Slo(attainment=0.5)}).limits
    assert Slo(classes={"batch": Slo(ttft_ms=1)}).limits


def test_every_latency_can_be_limited() -> None:
    records = five()
    for name in ("ttft_ms", "e2el_ms", "queue_time_ms"):
        assert meets_slo(records, replace(Slo(), **{name: 1e9})).all()  # type: ignore[arg-type] # a field by name
        assert not meets_slo(records, replace(Slo(), **{name: -1.0})).any()  # type: ignore[arg-type] # a field by name
    assert meets_slo(records, Slo(itl_ms=1e-9, tpot_ms=1e-9)).all(), "one token has no gap"


def test_targets_are_met_at_their_limit_and_missed_above() -> None:
    missed, met, batch = judged(
        five(),
        Slo(
            targets={"mean_ttft_ms": 2400.0, "p50_e2el_ms": 3000.0},
            classes={"batch": Slo(targets={"mean_ttft_ms": 5000.0})},
        ),
    )
    assert missed == Outcome("mean_ttft_ms", None, 2400.0, 3000.0, False, 600.0, 0.25)
    assert (met.met, met.excess, met.relative_excess) == (True, 0.0, 0.0)
    assert (batch.class_name, batch.value, batch.met) == ("batch", 4500.0, True)
    assert batch.excess == pytest.approx(-500)
    assert batch.relative_excess == pytest.approx(-0.1)


def test_attainment_is_missed_below() -> None:
    slo = Slo(ttft_ms=4000, attainment=0.9, classes={"batch": Slo(attainment=0.5)})
    whole, batch = judged(five(), slo)
    assert (whole.metric, whole.value, whole.met) == ("slo_attainment", 0.8, False)
    assert whole.excess == pytest.approx(0.1)
    assert (batch.class_name, batch.value, batch.met) == ("batch", 0.5, True)


def test_no_targets_no_outcomes() -> None:
    assert judged(five(), Slo(ttft_ms=1)) == ()
    assert outcomes(five(), None, {}) == ()
    assert entries(()) == {}
    assert outcomes_of({"completed": 3}) == ()
    assert mean_outcomes([{}, {}]) == ()


def test_where_no_request_finishes_targets_are_missed() -> None:
    records = five()
    unfinished = np.full(5, Status.UNFINISHED)
    slo = Slo(targets={"p99_ttft_ms": 1e9, "p99_itl_ms": 1.0})
    found = judged(replace(records, requests=replace(records.requests, status=unfinished)), slo)
    assert [(each.value, each.met) for each in found] == [(None, False)] * 2
    assert [(each.metric, each.value, each.met) for each in judged(records, slo)][1] == ("p99_itl_ms", None, True)


def test_a_class_that_is_not_measured_meets_its_targets() -> None:
    records = replace(five(), class_names=("chat", "batch", "rare"))
    (found,) = judged(records, Slo(classes={"rare": Slo(targets={"p99_ttft_ms": 1.0})}))
    assert (found.class_name, found.value, found.met) == ("rare", None, True)


def test_outcomes_travel_through_json() -> None:
    found = judged(five(), Slo(ttft_ms=1, attainment=0.9, classes={"batch": Slo(targets={"p50_ttft_ms": 1.0})}))
    summary = entries(found)
    assert list(summary) == ["slo_met", "slo_targets"]
    assert summary["slo_met"] is False
    assert list(summary["slo_targets"][1]) == [
        "metric", "class", "limit", "value", "met", "excess", "relative_excess",
    ]  # fmt: skip
    assert outcomes_of(json.loads(json.dumps(summary))) == found


def test_over_seeds_the_mean_is_held_against_the_limit() -> None:
    def seed(value: float | None, met: bool) -> Summary:
        return entries([Outcome("p99_ttft_ms", None, 100.0, value, met, None, None)])

    (found,) = mean_outcomes([seed(90.0, True), seed(130.0, False)])
    assert (found.value, found.met, found.excess) == (110.0, False, 10.0)
    assert mean_outcomes([seed(80.0, True), seed(110.0, False)])[0].met
    assert not mean_outcomes([seed(80.0, True), seed(None, False)])[0].met, "one seed served none"


def test_each_request_has_the_limits_of_its_class_or_the_default_ones() -> None:
    slo = Slo(ttft_ms=2000, queue_time_ms=1, classes={"batch": Slo(e2el_ms=4000), "rare": Slo(e2el_ms=1)})
    records = replace(five(), class_names=("chat", "batch", "rare"))
    groups = limited_requests(records, slo)
    assert [(name, int(requests.sum()), limits) for name, requests, limits in groups] == [
        (None, 3, {"ttft": 2000, "queue_time": 1}),
        ("batch", 2, {"e2el": 4000}),
        ("rare", 0, {"e2el": 1}),
    ]
