"""Laws of autoscaled fleets: both ways of time, no choice is no autoscaler, and who takes requests when."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.fleet.group import Autoscaling, Targets
from simulator.metrics.latency import Slo
from simulator.metrics.window import measured_window, present_s
from simulator.results.records import Records, Status
from simulator.simulate import Run, simulate_fleet
from tests.examples import examples
from tests.laws.fleets import Fleet, fleets

TARGETS = [
    Targets(num_requests_waiting=0.4),
    Targets(kv_cache_usage=0.1),
    Targets(slo_attainment=0.9),
    Targets(num_requests_waiting=1.0, kv_cache_usage=0.3, slo_attainment=0.5),
]


@st.composite
def autoscaled(draw: st.DrawFn) -> Fleet:
    """A random fleet of which the first group, and perhaps the others, can have up to four replicas more."""
    fleet = draw(fleets(max_requests=25))
    groups = []
    for place, group in enumerate(fleet.groups):
        if place and draw(st.booleans()):
            groups.append(group)
            continue
        most = group.replicas + draw(st.integers(1, 4))
        unit_s = draw(st.sampled_from([0.01, 0.1, 1.0]))
        rule = Autoscaling(
            draw(st.integers(1, group.replicas)),
            most,
            draw(st.sampled_from(TARGETS)),
            interval_s=unit_s,
            tolerance=draw(st.sampled_from([0.0, 0.1])),
            startup_s=unit_s * draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])),
            scale_up_stabilization_s=unit_s * draw(st.sampled_from([0.0, 0.0, 1.0])),
            scale_down_stabilization_s=unit_s * draw(st.sampled_from([0.0, 1.0, 4.0])),
        )
        groups.append(replace(group, replicas=most, initial_replicas=group.replicas, autoscaling=rule))
    return replace(fleet, groups=groups)


def run(fleet: Fleet, *, fast_forward: bool = True) -> Run:
    return simulate_fleet(
        fleet.workload,
        fleet.groups,
        router=fleet.new_router(),
        signal_interval_s=fleet.signal_interval_s,
        fast_forward=fast_forward,
        log_decisions=True,
        slo=Slo(ttft_ms=40.0, tpot_ms=20.0),
    )


@given(fleet=autoscaled())
@examples(60)
def test_fast_forward_equals_stepwise(fleet: Fleet) -> None:
    one, two = run(fleet), run(fleet, fast_forward=False)
    assert differences(one.records, two.records) == []
    assert one.decisions == two.decisions


@given(fleet=autoscaled())
@examples(60)
def test_only_ready_replicas_take_requests_and_none_is_left_behind(fleet: Fleet) -> None:
    records = run(fleet).records
    requests, lives = records.requests, records.lives
    assert lives is not None
    assert np.all(np.isin(requests.status, (Status.FINISHED, Status.REJECTED)))
    for row in np.flatnonzero(requests.replica >= 0).tolist():
        own = lives.replica == requests.replica[row]
        at_s = requests.arrival_s[row]
        takes = own & (lives.ready_s <= at_s) & ~(lives.drain_s <= at_s)
        assert takes.sum() == 1, f"request {row} at {at_s}"
    _check_lives(fleet, records)


def _check_lives(fleet: Fleet, records: Records) -> None:
    lives = records.lives
    assert lives is not None
    rows = records.rows
    for place in range(len(lives.replica)):
        start_s, ready_s, drain_s, end_s = (
            getattr(lives, name)[place] for name in ("start_s", "ready_s", "drain_s", "end_s")
        )
        assert not ready_s < start_s
        assert not drain_s < start_s
        assert not end_s < drain_s
    for start_s, end_s, replica in zip(rows.start_s, rows.end_s, rows.replica, strict=True):
        own = lives.replica == replica
        assert np.any(own & (lives.ready_s <= start_s) & ~(lives.end_s < end_s))  # it works while it is there
    first = 0
    for group in fleet.groups:
        own = (lives.replica >= first) & (lives.replica < first + group.replicas)
        first += group.replicas
        if group.autoscaling is None:
            continue
        for at_s in lives.start_s[own]:
            staying = own & (lives.start_s <= at_s) & ~(lives.drain_s <= at_s)
            assert group.autoscaling.min_replicas <= staying.sum() <= group.autoscaling.max_replicas


@given(fleet=autoscaled())
@examples(30)
def test_replica_time_is_that_of_the_lives(fleet: Fleet) -> None:
    records = run(fleet).records
    window, lives = measured_window(records), records.lives
    assert lives is not None
    ends = np.where(np.isnan(lives.end_s), window.end_s, np.minimum(lives.end_s, window.end_s))
    whole = np.maximum(ends - np.maximum(lives.start_s, window.start_s), 0.0).sum()
    assert np.isclose(present_s(records, window).sum(), whole)
