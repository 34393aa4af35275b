"""Law 9: more replicas of one = one; and N replicas with the work dealt in turn are N servers apart."""

from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from simulator.fleet.routers import built_in_routers
from simulator.results.records import Records
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.examples import examples
from tests.laws.scenarios import POLICIES, Memory, Scenario, make_policy, make_workload, scenarios


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(30)
def test_one_replica_under_any_router(name: str, data: st.DataObject) -> None:
    scenario = replace(data.draw(scenarios(name)), replicas=1)
    runs = [replace(scenario, router=router).run(log_decisions=True) for router in built_in_routers()]
    for other in runs[1:]:
        assert differences(runs[0].records, other.records) == []
        assert runs[0].decisions == other.decisions


def part(workload: Workload, rows: slice) -> Workload:
    names = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority", "class_index")
    columns: dict[str, Any] = {name: getattr(workload, name)[rows] for name in names}
    return replace(workload, **columns, request_ids=[str(row) for row in range(len(workload))[rows]])


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(50)
def test_dealt_in_turn_is_apart(name: str, data: st.DataObject) -> None:
    replicas = data.draw(st.integers(2, 4))
    scenario = replace(data.draw(scenarios(name)), replicas=replicas, router="round_robin")
    together = scenario.run(log_decisions=True)
    assert together.decisions is not None
    gaps: list[tuple[float, ...]] = []
    for index in range(replicas):
        alone = replace(scenario, workload=part(scenario.workload, slice(index, None, replicas)), replicas=1)
        run = alone.run(log_decisions=True)
        gaps += zip(*astuple(run.records.gaps), strict=True)
        # Gaps are not kept by replica, only one replica's after the other's.
        mine_alone = replace(of_replica(together.records, index), gaps=run.records.gaps)
        assert differences(mine_alone, run.records) == []
        mine = [{**step, "replica": 0} for step in together.decisions if step["replica"] == index]
        assert mine == run.decisions
    assert gaps == list(zip(*astuple(together.records.gaps), strict=True))


def of_replica(records: Records, index: int) -> Records:
    """One replica's share of the records, as if it had been alone."""
    requests, rows, replicas = records.requests, records.rows, records.replicas
    mine = requests.replica == index
    ours = rows.replica == index
    steps = np.repeat(ours, rows.repeat)
    first = int(rows.first_step[ours][0]) if ours.any() else 0

    def chosen(columns: Any, which: Any, **changed: Any) -> Any:
        picked = {field.name: getattr(columns, field.name)[which] for field in fields(columns)}
        return replace(columns, **(picked | {name: change(picked[name]) for name, change in changed.items()}))

    alone = {row: place for place, row in enumerate(requests.row[mine].tolist())}
    again = np.isin(records.requeues.row, requests.row[mine])
    return replace(
        records,
        requests=chosen(requests, mine, row=lambda rows: (rows - index) // replicas, replica=np.zeros_like),
        rows=chosen(rows, ours, replica=np.zeros_like, first_step=lambda steps: steps - first),
        requeues=chosen(records.requeues, again, row=lambda rows: (rows - index) // replicas),
        step_end_s=records.step_end_s[steps],
        step_used_blocks=records.step_used_blocks[steps],
        reject_reasons={alone[row]: why for row, why in records.reject_reasons.items() if row in alone},
    )


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(60)
def test_least_loaded_is_so(name: str, data: st.DataObject) -> None:
    """From the log: each goes where the fewest are unfinished, the first of equals.

    Who arrives at the very end of a step comes before what finishes then.
    """
    scenario = data.draw(scenarios(name, max_requests=25))
    scenario = replace(scenario, replicas=data.draw(st.integers(2, 4)), router="least_loaded")
    run = scenario.run(log_decisions=True)
    requests = run.records.requests
    done_s = {int(row): step["t_end_s"] for step in run.decisions or [] for row in step["finished"]}
    for row, (arrival_s, replica) in enumerate(zip(requests.arrival_s, requests.replica, strict=True)):
        before = [(r, requests.replica[r]) for r in range(row) if r in done_s and done_s[r] >= arrival_s]
        loads = [sum(of == index for _, of in before) for index in range(scenario.replicas)]
        assert replica == loads.index(min(loads))


def test_least_loaded_goes_where_the_fewest_are() -> None:
    """A long request keeps the first replica busy: the short ones go to the second, one after the other."""
    arrivals = [0.0, 0.5, 10.5, 20.5, 20.75, 200.5]
    lengths = [(4, 100), (4, 5), (4, 5), (4, 5), (4, 5), (4, 5)]
    scenario = Scenario(
        make_workload(arrivals, lengths), make_policy("continuous", 8, 64), Memory(100, 4), Linear(1.0),
        replicas=2, router="least_loaded",
    )  # fmt: skip
    # At 20.75 s both serve one, and the first of equals is taken.
    assert scenario.run().records.requests.replica.tolist() == [0, 1, 1, 1, 0, 0]


def test_rejected_requests_are_dealt_too() -> None:
    workload = make_workload([0.0] * 4, [(4, 5), (4, 5000), (4, 5), (4, 5)])
    scenario = Scenario(workload, make_policy("continuous", 8, 64), Memory(100, 4), Linear(1.0), replicas=2)
    records = scenario.run().records
    assert records.requests.replica.tolist() == [0, 1, 0, 1]
    assert list(records.reject_reasons) == [1]


@pytest.mark.parametrize("name", POLICIES)
def test_twins(name: str) -> None:
    """Every request twice at the same time, dealt to two replicas: each of a pair sees the same."""
    scenario = Scenario(
        make_workload([0.0, 0.3, 0.31, 0.5, 2.0], [(9, 20), (4, 3), (30, 8), (2, 40), (5, 5)]),
        make_policy(name, 2, 16), Memory(20, 4), Linear(0.01, 1e-4, 1e-6),
    )  # fmt: skip
    workload = scenario.workload
    names = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority", "class_index")
    columns: dict[str, Any] = {name: np.repeat(getattr(workload, name), 2) for name in names}
    pairs = replace(scenario, workload=replace(workload, **columns), replicas=2).run().records.requests
    alone = scenario.run().records.requests
    for times in ("scheduled_s", "first_token_s", "last_token_s", "released_s"):
        assert (getattr(pairs, times)[::2] == getattr(alone, times)).all()
        assert (getattr(pairs, times)[1::2] == getattr(alone, times)).all()
