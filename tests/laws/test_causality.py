"""Law 3: nothing happens before its cause, and the clock never goes back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.laws import blind_to, blind_to_lengths, clock, goes_forward, oracle
from simulator.results.records import Status
from tests.examples import examples
from tests.laws.scenarios import OVERLAPPING, POLICIES, scenarios

FEW = examples(30)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_a_request_goes_forward(name: str, data: st.DataObject) -> None:
    """Arrival <= scheduled < first token <= last token <= released, and every wait again lies between."""
    scenario = data.draw(scenarios(name))
    assert goes_forward(scenario, scenario.run()) is None


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_the_clock_of_a_replica_goes_forward(name: str, data: st.DataObject) -> None:
    """Steps of a replica follow each other and do not overlap; inside a row each begins when the last ended."""
    scenario = data.draw(scenarios(name))
    run = scenario.run()
    assert clock(scenario, run) is None
    rows = run.records.rows
    idle = rows.tokens == 0  # asynchronous: all who run wait for results
    assert (rows.start_s[idle] == rows.end_s[idle]).all()
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
    cut = data.draw(st.integers(0, len(scenario.workload)))
    assert blind_to(scenario, scenario.run(log_decisions=True), cut) is None


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_nobody_knows_how_long_an_answer_will_be(name: str, data: st.DataObject) -> None:
    """With other true lengths below the same caps, decisions differ only after a request finished at another step."""
    scenario = data.draw(scenarios(name))
    workload = scenario.workload
    scenario = replace(
        scenario, workload=replace(workload, max_tokens=workload.max_tokens + data.draw(st.integers(0, 9)))
    )
    run = scenario.run(log_decisions=True)
    assert oracle(scenario, run) is None
    lengths = np.array([data.draw(st.integers(1, int(cap))) for cap in scenario.workload.max_tokens], dtype=np.int64)
    fits = scenario.workload.input_tokens + np.maximum(lengths, workload.output_tokens) - 1
    room = run.records.num_blocks * run.records.block_size
    assert blind_to_lengths(scenario, run, np.where(fits <= room, lengths, workload.output_tokens)) is None
