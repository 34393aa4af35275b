"""Law 1: nobody and nothing is lost, made up or counted twice, across preemptions and rejections."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.laws import ends_once, one_place, service, tokens
from simulator.metrics.latency import itl
from simulator.results.records import Records, Status
from tests.examples import examples
from tests.laws.scenarios import OVERLAPPING, POLICIES, Scenario, scenarios

FEW = examples(30)


def decisions_of(scenario: Scenario) -> tuple[Records, list[dict[str, Any]]]:
    run = scenario.run(log_decisions=True)
    assert run.decisions is not None
    return run.records, run.decisions


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_every_request_ends_once(name: str, data: st.DataObject) -> None:
    """Finished or rejected, each in one place; a built-in policy leaves nobody unfinished."""
    scenario = data.draw(scenarios(name))
    run = scenario.run(log_decisions=True)
    assert ends_once(scenario, run) is None
    assert service(scenario, run) is None


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_every_request_is_in_one_place(name: str, data: st.DataObject) -> None:
    """At every step each request that has arrived and not finished waits or runs, and not both."""
    scenario = data.draw(scenarios(name))
    assert one_place(scenario, scenario.run(log_decisions=True)) is None


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_tokens_add_up(name: str, data: st.DataObject) -> None:
    """What the steps computed of a request is its prompt, its output but for the last token, and what was lost."""
    scenario = data.draw(scenarios(name))
    run = scenario.run(log_decisions=True)
    assert tokens(scenario, run) is None
    records = run.records
    requests, rows = records.requests, records.rows
    finished = requests.status == Status.FINISHED
    assert (requests.output_tokens[~finished] == 0).all()
    assert (requests.input_tokens == scenario.workload.input_tokens).all()
    if name in OVERLAPPING:
        wasted = (rows.padded_tokens * rows.repeat).sum()
        assert wasted <= (finished & (requests.output_tokens < requests.max_tokens)).sum()
    lost = int(requests.preemptions.sum()) if name == "sglang" else 0  # tokens on their way to who was retracted
    sampled = int((rows.decoding * rows.repeat).sum())
    first_tokens = int(finished.sum())
    again = int((np.isfinite(records.requeues.to_s) & (records.requeues.swapped == 0)).sum())
    # Each admission that has to prefill gives one token, if it lives to complete its prompt.
    most = requests.output_tokens.sum() - first_tokens + lost
    assert requests.output_tokens.sum() - first_tokens - again <= sampled <= most


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_rows_cover_the_steps(name: str, data: st.DataObject) -> None:
    records, decisions = decisions_of(data.draw(scenarios(name)))
    rows = records.rows
    assert (rows.repeat >= 1).all()
    assert rows.first_step.tolist() == [0, *np.cumsum(rows.repeat)[:-1].tolist()][: len(rows.repeat)]
    assert records.num_steps == rows.repeat.sum() == len(decisions) == len(records.step_used_blocks)
    if name not in OVERLAPPING:
        idle = (rows.tokens == 0) & (rows.preempted == 0)
        assert not idle.any(), "a step of a built-in policy computes something, or makes room"
    assert ((rows.repeat == 1) | (rows.prefilling == 0)).all()
    assert (rows.running >= rows.decoding + rows.prefilling + rows.held).all()
    assert (rows.end_s == records.step_end_s[rows.first_step + rows.repeat - 1]).all()


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_every_gap_between_tokens_is_counted(name: str, data: st.DataObject) -> None:
    """n tokens have n - 1 gaps, and these add up to tn - t1."""
    records = data.draw(scenarios(name)).run().records
    requests = records.requests
    found = itl(records, [50])
    if not records.streams:
        assert found is None
        return
    gaps = int((requests.output_tokens - 1)[requests.status == Status.FINISHED].sum())
    spent = float(np.nansum(requests.last_token_s - requests.first_token_s))
    assert (0 if found is None else found.count) == gaps
    assert (0.0 if found is None else found.mean * found.count) == pytest.approx(spent, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@FEW
def test_setbacks_agree_with_the_decisions(name: str, data: st.DataObject) -> None:
    """Preemptions, and what was admitted, swapped and requeued, are the same in the columns and in the log."""
    records, decisions = decisions_of(data.draw(scenarios(name)))
    requests, requeues, rows = records.requests, records.requeues, records.rows
    preempted = Counter(
        request_id for step in decisions for request_id in step["preempted"] + step.get("preempted_before", [])
    )
    swapped_out = Counter(request_id for step in decisions for request_id in step["swapped_out"])
    swapped_in = Counter(request_id for step in decisions for request_id in step["swapped_in"])
    admitted = Counter(request_id for step in decisions for request_id in step["admitted"])
    rejected = requests.status == Status.REJECTED
    for row in range(len(requests.row)):
        me = str(row)
        assert preempted[me] == requests.preemptions[row] == (requeues.row == row).sum()
        assert swapped_in[me] == swapped_out[me] == requeues.swapped[requeues.row == row].sum()
        again = preempted[me] - swapped_out[me]
        if name in OVERLAPPING and (requeues.to_s == requests.last_token_s[row])[requeues.row == row].any():
            again -= 1  # its last token came while it waited
        assert admitted[me] == (0 if rejected[row] else 1 + again)
    assert rows.preempted.sum() == requests.preemptions.sum()
    assert rows.swapped_out_blocks.sum() == requests.swapped_out_blocks.sum()
    assert rows.swapped_in_blocks.sum() == requests.swapped_in_blocks.sum() == requests.swapped_out_blocks.sum()
    waited = np.bincount(requeues.row, requeues.to_s - requeues.from_s, minlength=len(requests.row))
    np.testing.assert_allclose(requests.requeued_s, waited, rtol=1e-12, atol=1e-15)
