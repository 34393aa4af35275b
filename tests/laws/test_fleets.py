"""Laws of fleets: both ways of time, arrivals dealt ahead, indexes, one replica, conservation, stale signals."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.engine.admission import ReplicaLoad
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.router import Cost, Replicas, Router, RouterFeatures
from simulator.fleet.routers import built_in_routers, load_router
from simulator.metrics.summary import summarize
from simulator.metrics.usage import by_group, by_replica
from simulator.results.records import Status
from simulator.simulate import Run, simulate, simulate_fleet
from simulator.timing.formula_cost import Linear
from tests.examples import examples, number
from tests.laws.fleets import Fleet, fleets, total
from tests.laws.scenarios import POLICIES, Memory, make_policy, make_workload, scenarios

FEATURES = {name: RouterFeatures.of(load_router(name)) for name in built_in_routers()}
BLIND = [name for name, has in FEATURES.items() if not has.reads_loads and not has.reads_caches]


def same(one: Run, two: Run) -> None:
    assert differences(one.records, two.records) == []
    assert one.decisions == two.decisions


def ahead_of_time(fleet: Fleet) -> None:
    """Fast-forward against one event a step."""
    same(fleet.run(fast_forward=False), fleet.run())


@pytest.mark.parametrize("router", built_in_routers())
@given(data=st.data())
@examples(25)
def test_fast_forward_equals_stepwise(router: str, data: st.DataObject) -> None:
    ahead_of_time(data.draw(fleets(router=router)))


@pytest.mark.slow
@given(fleet=fleets(max_requests=30))
@settings(max_examples=1000)
def test_fast_forward_equals_stepwise_very_often(fleet: Fleet) -> None:
    ahead_of_time(fleet)


@given(fleet=fleets())
@examples(60)
def test_equal_fleets_run_equally(fleet: Fleet) -> None:
    same(fleet.run(), fleet.run())


class Seeing:
    """The same choices by a router of which nothing is known: each is made when the request arrives."""

    reads_loads: ClassVar = True

    def __init__(self, inner: Router) -> None:
        self.inner = inner

    def choose(self, request: Any, replicas: Any) -> ReplicaLoad:
        return self.inner.choose(request, replicas)


@pytest.mark.parametrize("router", BLIND)
@given(data=st.data())
@examples(60)
def test_requests_dealt_ahead_arrive_as_by_events(router: str, data: st.DataObject) -> None:
    fleet = data.draw(fleets(router=router, max_requests=25))
    same(fleet.run(), fleet.run(router=Seeing(fleet.new_router())))


@pytest.mark.parametrize("router", BLIND)
def test_requests_are_dealt_piece_by_piece(router: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces of two requests, so that replicas run dry of known arrivals."""
    monkeypatch.setattr("simulator.fleet.windows._FEWEST", 2)
    monkeypatch.setattr("simulator.fleet.windows._PER_REPLICA", 0)
    dealt_in_pairs(router)


@given(data=st.data())
@examples(60)
def dealt_in_pairs(router: str, data: st.DataObject) -> None:
    fleet = data.draw(fleets(router=router, max_requests=25))
    same(fleet.run(), fleet.run(router=Seeing(fleet.new_router())))


class Scanning(Replicas):
    """Holds the index against a look at every replica."""

    asked = 0

    def least(self, cost: Cost) -> ReplicaLoad:
        Scanning.asked += 1
        found = super().least(cost)
        assert found is min(self, key=cost)
        return found


def test_an_index_finds_what_a_scan_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.fleet.signals.Replicas", Scanning)
    index_against_scan()
    assert Scanning.asked > 5 * number(200)


@given(fleet=st.sampled_from(["least_loaded", "least_kv", "prefix_affinity", "weighted"]).flatmap(
    lambda router: fleets(router=router, max_requests=30)))  # fmt: skip
@examples(200)
def index_against_scan(fleet: Fleet) -> None:
    fleet.run()


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=8)
def test_a_fleet_of_one_is_no_fleet(name: str, data: st.DataObject) -> None:
    """One group of one replica, and two halves of a group: the records have the same columns, bit by bit."""
    scenario = replace(data.draw(scenarios(name)), router=data.draw(st.sampled_from(built_in_routers())))
    plain = scenario.run(log_decisions=True)
    made = {
        "kv": scenario.memory,
        "cost": scenario.cost,
        "swap_s_per_block": scenario.swap_s_per_block,
        "swap_overlap": scenario.swap_overlap,
    }
    group = _group_of(scenario, made, scenario.replicas, "all")
    fleet = simulate_fleet(scenario.workload, [group], router=scenario.router, log_decisions=True)
    same(plain, fleet)
    assert summarize(plain.records) == summarize(fleet.records)
    if scenario.replicas > 1:
        halves = [_group_of(scenario, made, 1, "one"), _group_of(scenario, made, scenario.replicas - 1, "rest")]
        apart = simulate_fleet(scenario.workload, halves, router=scenario.router, log_decisions=True)
        assert apart.decisions == plain.decisions
        assert differences(replace(apart.records, groups=()), plain.records) == []
        assert summarize(apart.records) == summarize(plain.records)


def _group_of(scenario: Any, made: dict[str, Any], replicas: int, name: str) -> Any:
    return ReplicaGroup(lambda: scenario.policy, **made, replicas=replicas, name=name)


@given(fleet=fleets())
@examples(80)
def test_replicas_and_groups_sum_to_the_whole(fleet: Fleet) -> None:
    records = fleet.run().records
    summary = summarize(records)
    requests = records.requests
    assert ((requests.replica >= 0) & (requests.replica < records.replicas)).all()
    each = by_replica(records)
    groups = by_group(records)
    for column, key in {
        "completed": "completed", "input_tokens": "total_input_tokens", "output_tokens": "total_output_tokens",
        "num_steps": "num_steps", "preemptions": "preemptions", "rejected": "rejected",
    }.items():  # fmt: skip
        assert total(getattr(each, column)) == summary[key]
        assert sum(total(getattr(group, column)) for group in groups.values()) == summary[key]
    assert total(each.requests) == len(requests.row)
    assert [group.replicas[0] for group in groups.values()] == [group.replicas for group in fleet.groups]
    peaks = [group.kv_utilization_peak[0] for group in groups.values()]
    if records.num_steps:
        assert np.nanmax(peaks) == summary["kv_utilization_peak"] == np.nanmax(each.kv_utilization_peak)
        assert np.nanmean(each.busy_fraction) == pytest.approx(summary["busy_fraction"])
        shares = np.repeat([g.num_blocks for g in records.sizes], [g.replicas for g in records.sizes])
        mean = np.average(each.kv_utilization_mean, weights=shares)
        assert mean == pytest.approx(summary["kv_utilization_mean"])
    done = requests.status == Status.FINISHED
    for replica in range(records.replicas):
        assert each.completed[replica] == (done & (requests.replica == replica)).sum()


class Noting:
    """Least loaded, and what it saw of every replica."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[tuple[int, int, int, int]]]] = []

    def choose(self, request: Any, replicas: Sequence[ReplicaLoad]) -> ReplicaLoad:
        seen = [(r.num_waiting, r.num_running, r.used_blocks, r.num_unfinished) for r in replicas]
        self.seen.append((request.arrival_s, seen))
        return min(replicas, key=lambda replica: replica.num_unfinished)


@given(fleet=fleets(max_requests=25), interval_s=st.sampled_from([0.003, 0.02, 0.5]))
@examples(80)
def test_signals_are_those_of_the_last_look_and_what_was_sent_since(fleet: Fleet, interval_s: float) -> None:
    if sum(group.replicas for group in fleet.groups) == 1:
        return  # no router is asked
    stale = Noting()
    run = replace(fleet, signal_interval_s=interval_s).run(router=stale)
    given_to = run.records.requests.replica
    replicas = len(stale.seen[0][1])
    ticks = np.floor(run.records.requests.arrival_s / interval_s)
    at_look: dict[tuple[float, int], tuple[int, ...]] = {}
    for row, (arrival_s, seen) in enumerate(stale.seen):
        assert arrival_s == run.records.requests.arrival_s[row]
        for index in range(replicas):
            waiting, running, used, unfinished = seen[index]
            since = [r for r in range(row) if ticks[r] == ticks[row] and given_to[r] == index]
            # A look at the very time of an arrival comes before it; rounding may put that on either side of the tick.
            if abs(arrival_s / interval_s - round(arrival_s / interval_s)) < 1e-9 or ticks[row] != ticks[row]:
                continue
            first = at_look.setdefault((ticks[row], index), (waiting, running, used, unfinished - len(since)))
            assert first == (waiting, running, used, unfinished - len(since))
            assert first[3] == waiting + running, "a look sees all that is unfinished"


@given(fleet=fleets(max_requests=25))
@examples(60)
def test_live_signals_do_not_depend_on_the_way_of_time(fleet: Fleet) -> None:
    """What a router sees, KV blocks in the middle of a run of steps included."""
    ways = [Noting(), Noting()]
    for router, fast_forward in zip(ways, (True, False), strict=True):
        replace(fleet, signal_interval_s=0.0).run(router=router, fast_forward=fast_forward)
    if sum(group.replicas for group in fleet.groups) > 1:
        assert ways[0].seen == ways[1].seen
        assert ways[0].seen


def test_a_mixed_fleet_streams_everywhere_or_nowhere() -> None:
    from simulator.errors import InputError

    def group(name: str) -> ReplicaGroup:
        return ReplicaGroup(lambda: make_policy(name, 2, 16), Memory(20, 4), Linear(1.0), name=name)

    if getattr(make_policy("static", 2, 16), "traits").streams:  # noqa: B009 - an optional member
        pytest.skip("static batching streams by default")
    with pytest.raises(InputError, match="differ in whether answers stream"):
        simulate_fleet(make_workload([0.0], [(4, 2)]), [group("static"), group("continuous")])


def test_columns_of_a_part_are_what_they_say() -> None:
    """By hand: two replicas, one request each, of 4 and of 8 output tokens, a step a second."""
    from simulator.timing.formula_cost import Linear
    from tests.laws.scenarios import Memory, make_policy, make_workload

    workload = make_workload([0.0, 0.0], [(4, 4), (4, 8)])
    run = simulate(
        workload, make_policy=lambda: make_policy("continuous", 4, 64), kv=Memory(11, 4), cost=Linear(1.0), replicas=2
    )
    each = by_replica(run.records)
    assert each.output_tokens.tolist() == [4, 8]
    assert each.input_tokens.tolist() == [4, 4]
    assert each.num_steps.tolist() == [4, 8]
    assert each.busy_fraction.tolist() == [0.5, 1.0]
    assert each.kv_utilization_peak.tolist() == [0.2, 0.3]
    assert each.kv_utilization_mean.tolist() == [(1 + 2 + 2 + 2) / 80, (1 + 4 * 2 + 3 * 3) / 80]
    summary = summarize(run.records)
    assert summary["balance_max_over_mean"] == 12 / 10
    assert summary["balance_cv"] == pytest.approx(0.2)
    assert summary["balance_jain"] == pytest.approx(400 / (2 * (64 + 144)))
    assert each.entry(0)["prefix_cache_hit_rate"] == 0.0
    assert {field.name for field in fields(each)} == set(each.entry(1))


def test_a_look_sees_what_arrived_during_a_step() -> None:
    """Two replicas with one slot each; the steps of the first requests last for a second."""
    group = ReplicaGroup(lambda: make_policy("chunked_prefill", 1, 16), Memory(50, 4), Linear(1.0), replicas=2)
    workload = make_workload([0.0, 0.0, 0.1, 0.2, 0.3, 0.7], [(4, 2)] * 6)
    for fast_forward in (True, False):
        stale = Noting()
        simulate_fleet(workload, [group], router=stale, signal_interval_s=0.5, fast_forward=fast_forward)
        assert [unfinished for *_, unfinished in stale.seen[-1][1]] == [3, 2]
        assert [waiting for waiting, *_ in stale.seen[-1][1]] == [2, 1]
