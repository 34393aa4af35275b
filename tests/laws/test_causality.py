"""Law 3: nothing happens before its cause, and the clock never goes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.results.records import Status
from tests.laws.scenarios import OVERLAPPING, POLICIES, scenarios

FEW = settings(max_examples=30)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_a_request_goes_forward(name: str, data: st.DataObject) -> None:
    """Arrival <= scheduled < first token <= last token <= released, and every wait again lies between."""
    records = data.draw(scenarios(name)).run().records
    requests, requeues = records.requests, records.requeues
    done = requests.status == Status.FINISHED
    times = [requests.arrival_s, requests.scheduled_s, requests.first_token_s, requests.last_token_s]
    for earlier, later in zip([*times, times[-1]], [*times[1:], times[-1], requests.released_s], strict=False):
        assert (earlier[done] <= later[done]).all()
    assert (requests.scheduled_s[done] < requests.first_token_s[done]).all()
    several = done & (requests.output_tokens > 1)
    if records.streams:
        assert (requests.first_token_s[several] < requests.last_token_s[several]).all()
        assert (requests.first_token_s == requests.last_token_s)[done & (requests.output_tokens == 1)].all()
    else:
        assert (requests.first_token_s[done] == requests.last_token_s[done]).all()
    assert (requeues.from_s >= requests.scheduled_s[requeues.row]).all()
    assert (requeues.to_s >= requeues.from_s).all()
    if name in OVERLAPPING:  # a victim's last token may come while it waits
        assert (requeues.to_s <= requests.last_token_s[requeues.row]).all()
    else:
        assert (requeues.to_s < requests.last_token_s[requeues.row]).all()


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_the_clock_of_a_replica_goes_forward(name: str, data: st.DataObject) -> None:
    """Steps of a replica follow each other and do not overlap; inside a row each begins when the last ended."""
    records = data.draw(scenarios(name)).run().records
    rows = records.rows
    for replica in range(records.replicas):
        mine = np.flatnonzero(rows.replica == replica)
        assert (rows.start_s[mine][1:] >= rows.end_s[mine][:-1]).all()
        steps = [records.step_end_s[rows.first_step[i] : rows.first_step[i] + rows.repeat[i]] for i in mine]
        ends = np.concatenate([[0.0], *steps])
        idle = (rows.tokens[mine] == 0) & (name in OVERLAPPING)  # all who run wait for results: a step of no time
        assert (np.diff(ends) >= 0).all()
        assert (np.diff(ends)[np.repeat(~idle, rows.repeat[mine])] > 0).all()
        assert ((rows.start_s[mine] < rows.end_s[mine]) != idle).all()
    assert (np.diff(rows.replica) >= 0).all()


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_everything_happens_at_the_edge_of_a_step(name: str, data: st.DataObject) -> None:
    """Requests are scheduled when a step begins, and get their tokens when one ends.

    Where steps overlap, they are scheduled when the step before theirs begins, which a row may have in its middle.
    """
    records = data.draw(scenarios(name)).run().records
    requests, rows = records.requests, records.rows
    done = requests.status == Status.FINISHED
    for replica in range(records.replicas):
        mine = rows.replica == replica
        first = records.step_end_s[np.repeat(mine, rows.repeat)]
        here = done & (requests.replica == replica)
        begun = [*rows.start_s[mine], *(first if name in OVERLAPPING else ())]
        assert np.isin(requests.scheduled_s[here], begun).all()
        for times in (requests.first_token_s, requests.last_token_s, requests.released_s):
            assert np.isin(times[here], first).all()


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_nobody_sees_the_future(name: str, data: st.DataObject) -> None:
    """What happens until a request arrives is the same without it and all that come later."""
    scenario = data.draw(scenarios(name))
    workload = scenario.workload
    cut = data.draw(st.integers(0, len(workload)))
    names = ("arrival_s", "input_tokens", "output_tokens", "max_tokens", "priority", "class_index")
    shorter = replace(workload, **{column: getattr(workload, column)[:cut] for column in names})
    whole = scenario.run(log_decisions=True).decisions
    part = replace(scenario, workload=shorter).run(log_decisions=True).decisions
    assert whole is not None
    assert part is not None
    until_s = workload.arrival_s[cut] if cut < len(workload) else np.inf

    def before(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [step for step in steps if step["t_start_s"] < until_s]

    assert before(whole) == before(part)
