"""The engine, and a second one that walks every token of every request, tell the same story to the last bit."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.plan import Holds
from simulator.policies.static import Static
from simulator.results.records import Records, Status
from simulator.simulate import Run
from simulator.timing.formula_cost import Linear
from tests.examples import examples
from tests.laws.naive_engine import NaiveReplica, serve
from tests.laws.naive_request import NaiveRequest
from tests.laws.random_policy import RandomPolicy
from tests.laws.scenarios import POLICIES, Scenario, scenarios

DECIDED = (
    "replica", "step", "t_start_s", "t_end_s", "scheduled", "admitted", "preempted", "swapped_out", "swapped_in",
    "running", "waiting", "finished", "num_free_blocks", "num_free_blocks_end",
)  # fmt: skip


def same_story(scenario: Scenario, *, fast_forward: bool = True) -> None:
    run = scenario.run(log_decisions=True, fast_forward=fast_forward)
    replicas = serve(scenario)
    same_decisions(run, replicas)
    same_requests(run.records, replicas)
    same_rows(run.records, replicas)
    same_gaps(run.records, replicas)


def same_decisions(run: Run, replicas: list[NaiveReplica]) -> None:
    assert run.decisions is not None
    steps = [step for replica in replicas for step in replica.steps]
    steps.sort(key=lambda step: (step["t_start_s"], step["replica"], step["step"]))
    assert len(run.decisions) == len(steps)
    for ours, theirs in zip(run.decisions, steps, strict=True):
        ours.pop("held", None)
        assert ours == {key: theirs[key] for key in (*DECIDED, "t_schedule_s", "preempted_before") if key in theirs}


def same_requests(records: Records, replicas: list[NaiveReplica]) -> None:
    told = sorted(((r.row, i, r) for i, replica in enumerate(replicas) for r in replica.requests), key=lambda t: t[0])
    columns = records.requests
    streams = records.streams
    expected: dict[str, list[Any]] = {
        "row": [row for row, _, _ in told],
        "replica": [index for _, index, _ in told],
        "status": [status(r) for _, _, r in told],
        "arrival_s": [r.arrival_s for _, _, r in told],
        "scheduled_s": [r.scheduled_s for _, _, r in told],
        "released_s": [r.released_s for _, _, r in told],
        "input_tokens": [r.input_tokens for _, _, r in told],
        "output_tokens": [len(r.token_s) for _, _, r in told],
        "max_tokens": [r.max_tokens for _, _, r in told],
        "priority": [r.priority for _, _, r in told],
        "preemptions": [r.num_preemptions for _, _, r in told],
        "recomputed_tokens": [r.recomputed_tokens for _, _, r in told],
        "swapped_out_blocks": [r.swapped_out_blocks for _, _, r in told],
        "swapped_in_blocks": [r.swapped_in_blocks for _, _, r in told],
        "cached_tokens": [0 for _ in told],
    }
    if all(r.state in ("finished", "rejected") for _, _, r in told):
        shown = [r.token_s if streams else [r.released_s] for _, _, r in told]
        expected["first_token_s"] = [s[0] if s else np.nan for s in shown]
        expected["last_token_s"] = [s[-1] if s else np.nan for s in shown]
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(columns, name), values, err_msg=name)
    waited = [sum(to - since for since, to, _ in r.waits) for _, _, r in told]
    np.testing.assert_allclose(columns.requeued_s, waited, rtol=1e-12)
    requeues = records.requeues
    ours = sorted(zip(requeues.row, requeues.from_s, requeues.to_s, requeues.swapped, strict=True))
    ended = [(row, since, to, swapped) for row, since, to, swapped in ours if to == to]
    assert ended == sorted((r.row, *wait) for _, _, r in told for wait in r.waits)
    assert len(ours) - len(ended) == sum(r.state == "swapped" or still_out(r) for _, _, r in told)
    assert set(records.reject_reasons) == {r.row for _, _, r in told if r.state == "rejected"}


def status(request: NaiveRequest) -> Status:
    ends = {"finished": Status.FINISHED, "rejected": Status.REJECTED}
    return ends.get(request.state, Status.UNFINISHED)


def still_out(request: NaiveRequest) -> bool:
    return request.state == "waiting" and request.num_preemptions > 0


def same_rows(records: Records, replicas: list[NaiveReplica]) -> None:
    """Rows unfold into the steps, and fold where they may, and only there."""
    rows = records.rows
    steps = [step for replica in replicas for step in replica.steps]
    assert records.num_steps == len(steps)
    np.testing.assert_array_equal(records.step_end_s, [step["t_end_s"] for step in steps])
    np.testing.assert_array_equal(records.step_used_blocks, [records.num_blocks - s["num_free_blocks"] for s in steps])
    starts = [i for i, step in enumerate(steps) if not continues(steps, i)]
    np.testing.assert_array_equal(rows.first_step, starts)
    np.testing.assert_array_equal(rows.repeat, np.diff([*starts, len(steps)]))
    first = [steps[i] for i in starts]
    last = [steps[i - 1] for i in [*starts[1:], len(steps)]] if starts else []
    np.testing.assert_array_equal(rows.end_s, [step["t_end_s"] for step in last])
    expected: dict[str, list[Any]] = {
        "replica": [s["replica"] for s in first],
        "start_s": [s["t_start_s"] for s in first],
        "running": [s["slots"] for s in first],
        "held": [s["num_held"] for s in first],
        "waiting": [len(s["waiting"]) for s in first],
        "swapped": [s["swapped"] for s in first],
        "decoding": [len(s["decoders"]) for s in first],
        "prefilling": [s["prefilling"] for s in first],
        "tokens": [s["tokens"] for s in first],
        "padded_tokens": [s["padded_tokens"] for s in first],
        "prefill_tokens": [s["tokens"] - s["padded_tokens"] - len(s["decoders"]) for s in first],
        "context_tokens": [s["context"] for s in first],
        "preempted": [len(s["preempted"]) + len(s.get("preempted_before", ())) for s in first],
        "swapped_out_blocks": [s["swapped_out_blocks"] for s in first],
        "swapped_in_blocks": [s["swapped_in_blocks"] for s in first],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(rows, name), values, err_msg=name)
    for i, step in enumerate(steps):
        if continues(steps, i):
            assert step["tokens"] == steps[i - 1]["tokens"]
            assert step["context"] == steps[i - 1]["context"] + step["tokens"]


def continues(steps: list[dict[str, Any]], i: int) -> bool:
    """Whether step i belongs to the row of the one before."""
    step, before = steps[i], steps[i - 1] if i else None
    return (
        before is not None
        and before["replica"] == step["replica"]
        and before["only_decodes"]
        and step["only_decodes"]
        and bool(step["decoders"])
        and before["decoders"] == step["decoders"]
        and before["running"] == step["running"]
        and not (step["preempted"] or step.get("changed_before") or step["swapped_in"] or before["finished"])
        and before["t_end_s"] == step["t_start_s"]
    )


def same_gaps(records: Records, replicas: list[NaiveReplica]) -> None:
    """The gaps between tokens, each with its end, as a multiset."""
    expected: list[tuple[float, float]] = []
    if records.streams:
        for request in (request for replica in replicas for request in replica.requests):
            expected += zip(np.diff(request.token_s).tolist(), request.token_s[1:], strict=True)
    gaps, rows = records.gaps, records.rows
    found: Counter[tuple[float, float]] = Counter()
    for gap_s, end_s, count in zip(gaps.gap_s.tolist(), gaps.end_s.tolist(), gaps.count.tolist(), strict=True):
        found[gap_s, end_s] += count  # taken back, where a token was thrown away
    if records.streams:
        for first, repeat, decoding in zip(rows.first_step, rows.repeat, rows.decoding, strict=True):
            ends = records.step_end_s[first : first + repeat]
            for gap in zip(np.diff(ends).tolist(), ends[1:].tolist(), strict=True):
                found[gap] += int(decoding)
    else:
        assert not len(gaps.gap_s)
    assert {gap: count for gap, count in found.items() if count} == Counter(expected)


def dealt_in_turn(scenario: Scenario) -> Scenario:
    return replace(scenario, router="round_robin")


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(80)
def test_built_in_policies(name: str, data: st.DataObject) -> None:
    same_story(dealt_in_turn(data.draw(scenarios(name))))


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=500)
def test_built_in_policies_very_often(name: str, data: st.DataObject) -> None:
    same_story(dealt_in_turn(data.draw(scenarios(name, max_requests=25))))


@st.composite
def in_step(draw: st.DrawFn, scenario: Scenario) -> Scenario:
    """The scenario with arrivals at the very ends of steps: all times are multiples of the step's, or of nothing."""
    step_s = draw(st.sampled_from([0.125, 0.125, 0.0]))
    arrival_s = np.floor(scenario.workload.arrival_s * 64) / 8
    policy = scenario.policy
    if isinstance(policy, Static):
        policy = replace(policy, batch_timeout_s=draw(st.sampled_from([0.0, 0.125, 0.5])))
    return replace(
        scenario,
        workload=replace(scenario.workload, arrival_s=arrival_s),
        policy=policy,
        cost=Linear(step_s),
        swap_s_per_block=draw(st.sampled_from([0.0, 0.125])),
    )


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(40)
def test_arrivals_at_the_ends_of_steps(name: str, data: st.DataObject) -> None:
    scenario = data.draw(in_step(dealt_in_turn(data.draw(scenarios(name)))))
    same_story(scenario)
    same_story(scenario, fast_forward=False)


@st.composite
def wild_scenarios(draw: st.DrawFn, *, max_requests: int = 8) -> Scenario:
    """A scenario under a policy that does anything it may."""
    scenario = dealt_in_turn(draw(scenarios("continuous", max_requests=max_requests)))
    if draw(st.booleans()):
        scenario = draw(in_step(scenario))
    keeps = draw(st.sampled_from([False, False, True]))
    policy = RandomPolicy(
        seed=draw(st.integers(0, 2**32)),
        max_num_seqs=draw(st.sampled_from([1, 2, 4, 8])),
        order=draw(st.sampled_from(["fcfs", "priority"])),
        keeps_finished=keeps,
        streams=draw(st.booleans()) if keeps else True,
        reserves=draw(st.booleans()),
        holds=draw(st.sampled_from(list(Holds))),
        hold_steps=draw(st.sampled_from([None, None, 1, 3])),
    )
    return replace(scenario, policy=policy)


@given(scenario=wild_scenarios())
@examples(300)
def test_a_wild_policy(scenario: Scenario) -> None:
    same_story(scenario)


@given(scenario=wild_scenarios())
@examples(100)
def test_a_wild_policy_stepwise(scenario: Scenario) -> None:
    same_story(scenario, fast_forward=False)


@pytest.mark.slow
@given(scenario=wild_scenarios(max_requests=20))
@settings(max_examples=3_000)
def test_a_wild_policy_very_often(scenario: Scenario) -> None:
    same_story(scenario)
