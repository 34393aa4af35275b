"""The early stop: it never changes a verdict, and it comes early where a run is hopeless."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import HopelessError, parse_goal, watcher
from scenarios.plan.trial import Laboratory, Traffic
from scenarios.runs.runner import records_of
from simulator.results.records import Status
from tests.examples import examples
from tests.scenarios.plan.cases import chat, laboratory

GOALS = (
    "p99_ttft_ms<={}", "p50_ttft_ms<={}", "mean_ttft_ms<={}", "p95_e2el_ms<={}", "p90_queue_time_ms<={}",
    "p99_tpot_ms<={}", "chat:p99_ttft_ms<={}",
)  # fmt: skip


@examples(25)
@given(
    goal=st.sampled_from(GOALS),
    limit=st.sampled_from([5, 8, 10, 20, 60, 150, 400, 1000, 3000]),
    rate=st.floats(2, 25),
    policy=st.sampled_from(["chunked_prefill", "continuous", "static"]),
    measure=st.sampled_from([{}, {"warmup_s": 3, "cooldown_s": 2}]),
    front_end=st.sampled_from([None, {"fixed_s": 0.02, "per_running_s": 0.001}]),
)
def test_gives_the_verdict_of_the_whole_run(
    goal: str, limit: float, rate: float, policy: str, measure: dict[str, float], front_end: dict[str, float] | None
) -> None:
    workload = {**chat().workload.model_dump(exclude_unset=True), "requests": 150}
    engine = {"policy": policy, "max_num_seqs": 8}
    scenario = chat(engine=engine, measure=measure, front_end=front_end, workload=workload)
    lab = laboratory(scenario, goal.format(limit))
    candidate = Candidate({}, scenario)
    rate = float(f"{rate:.4g}")
    stopped = lab.run(candidate, rate)
    whole = lab.run(candidate, rate, early_stop=False)
    assert stopped.holds == whole.holds
    if stopped.stopped:
        assert not whole.holds
    else:
        assert stopped.values == whole.values


@pytest.mark.parametrize("attainment", [0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("rate", [8.0, 25.0, 60.0])
def test_an_attainment_is_given_up_when_it_is_lost(attainment: float, rate: float) -> None:
    scenario = chat()
    lab = laboratory(scenario, f"slo_attainment>={attainment}")
    candidate = Candidate({}, scenario)
    assert lab.run(candidate, rate).holds == lab.run(candidate, rate, early_stop=False).holds


def test_ends_a_growing_queue_after_a_small_part_of_the_run() -> None:
    scenario = chat()
    workload = Traffic(scenario).workload(80.0, 0)
    watch = watcher([parse_goal("p99_ttft_ms<=300", scenario)], scenario, workload)
    assert watch is not None
    ended: list[Status] = []

    def count(live: object, replica: int, status: Status) -> None:
        ended.append(status)
        watch(live, replica, status)  # type: ignore[arg-type] # the state of a request, whatever it is

    with pytest.raises(HopelessError):
        records_of(scenario, workload, watch=count)
    assert len(ended) < 100


def test_stays_away_from_what_it_cannot_know() -> None:
    scenario = chat()
    workload = Traffic(scenario).workload(10.0, 0)
    for text in ("p99_itl_ms<=1", "request_throughput>=100", "preemptions<=0"):
        assert watcher([parse_goal(text, scenario)], scenario, workload) is None


def test_a_run_without_a_watch_is_the_same() -> None:
    scenario = chat()
    workload = Traffic(scenario).workload(10.0, 0)
    seen: list[int] = []
    watched = records_of(scenario, workload, watch=lambda live, replica, status: seen.append(live.row))
    plain = records_of(scenario, workload)
    assert sorted(seen) == list(range(len(workload)))
    assert (watched.requests.last_token_s == plain.requests.last_token_s).all()
    assert (watched.step_end_s == plain.step_end_s).all()


def test_a_laboratory_counts_its_runs() -> None:
    lab: Laboratory = laboratory(chat(), "p99_ttft_ms<=300")
    lab.run(Candidate({}, chat()), 10.0)
    lab.run(Candidate({}, chat()), 80.0)
    assert lab.runs == 2
