"""Samples, loops and sessions of a replay, and arrivals drawn in place of the recorded ones."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scenarios
from scenarios.assembly.workloads import build_workload, is_random
from scenarios.traces import TraceOptions, read_trace
from simulator.errors import InputError
from tests.scenarios.traces.test_fixtures import followed
from tests.scenarios.traces.test_read import FIXTURES, NATIVE, jsonl, mooncake, notes, write

SESSIONS = "arrival_time_s,input_tokens,output_tokens,request_id,session_id,after_request_id,delay_s\n"
THREE = SESSIONS + "0,1,1,a,s,,\n4,2,1,b,s,a,1.5\n6,3,1,c,,,\n"


def test_a_sample_is_seeded_and_has_its_share(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "".join(f"{t},1,1\n" for t in range(20_000)))
    first, again = (read_trace(path, TraceOptions(sample=0.3, seed=5)) for _ in range(2))
    other = read_trace(path, TraceOptions(sample=0.3, seed=6))
    assert first.request_ids == again.request_ids != other.request_ids
    assert abs(len(first) - 6000) < 4 * np.sqrt(20_000 * 0.3 * 0.7)
    assert f"left out {20_000 - len(first):,} rows that the sample left out" in notes(first)
    more = read_trace(path, TraceOptions(sample=0.6, seed=5))
    assert set(first.request_ids or ()) <= set(more.request_ids or ())


def test_a_session_is_sampled_as_a_whole(tmp_path: Path) -> None:
    rows = "".join(f"{t},1,1,r{t},s{t % 400},,\n" for t in range(2000))
    workload = read_trace(write(tmp_path, SESSIONS + rows), TraceOptions(sample=0.5, seed=1))
    assert workload.session_ids is not None
    counts = {name: workload.session_ids.count(name) for name in set(workload.session_ids)}
    assert set(counts.values()) == {5}
    assert abs(len(counts) - 200) < 4 * np.sqrt(100)


def test_a_loop_goes_on_at_the_mean_rate(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "0,1,1\n1,2,1\n4,3,1\n")
    workload = read_trace(path, TraceOptions(loop=3))
    assert workload.arrival_s.tolist() == [0, 1, 4, 6, 7, 10, 12, 13, 16]  # a copy every 3 requests x 2 s
    assert workload.input_tokens.tolist() == [1, 2, 3] * 3
    assert workload.request_ids is None
    assert "replayed 3 times" in notes(workload)
    windowed = read_trace(path, TraceOptions(loop=2, duration_s=2, rate_scale=2))
    assert windowed.arrival_s.tolist() == [0, 0.5, 1, 1.5]


def test_passes_of_a_loop_never_overlap(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:07,1,1\n2024-01-01 00:00:01,2,1\n"
    workload = read_trace(write(tmp_path, text), TraceOptions(loop=2, duration_s=5))
    assert workload.arrival_s.tolist() == [0, 6, 6, 12]


def test_copies_have_names_and_sessions_of_their_own(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path, THREE), TraceOptions(loop=2))
    assert workload.request_ids == ["a", "b", "c", "a#2", "b#2", "c#2"]
    assert workload.session_ids == ["s", "s", None, "s#2", "s#2", None]
    assert followed(workload) == [(-1, 0), (0, 1.5), (-1, 0), (-1, 0), (3, 1.5), (-1, 0)]


def test_a_loop_of_a_batch_is_a_larger_batch() -> None:
    workload = read_trace(FIXTURES / "vidur_lengths_only.csv", TraceOptions(loop=3))
    assert workload.arrival_s.tolist() == [0.0] * 6


def test_jitter_moves_a_session_as_a_whole(tmp_path: Path) -> None:
    path = write(tmp_path, THREE)
    workload = read_trace(path, TraceOptions(jitter_s=50, loop=20, seed=2))
    assert workload.after_row is not None
    assert np.all(workload.after_row < np.arange(60))
    rows = np.flatnonzero(workload.after_row >= 0)
    assert len(rows) == 20
    apart = workload.arrival_s[rows] - workload.arrival_s[workload.after_row[rows]]
    assert apart.tolist() == pytest.approx([4.0] * 20)
    assert np.all(np.diff(workload.arrival_s) >= 0)


def test_the_rate_scales_delays_too(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path, THREE), TraceOptions(rate_scale=2))
    assert followed(workload) == [(-1, 0), (0, 0.75), (-1, 0)]


@pytest.mark.parametrize("after", ["zzz", "c", "b"])
def test_a_request_that_follows_nothing_earlier_arrives_at_its_own_time(after: str, tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path, THREE.replace("s,a,1.5", f"s,{after},1.5")))
    assert followed(workload) == []
    assert "1 request that follow an unknown or later request: replayed at the recorded time" in notes(workload)


def test_a_window_may_cut_a_session(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path, THREE), TraceOptions(start_s=1))
    assert followed(workload) == []


def test_time_that_goes_back_begins_a_session_anew(tmp_path: Path) -> None:
    text = jsonl(*({"id": "c", "t": t, "in": 5, "out": 1} for t in (0, 5, 2)))
    workload = read_trace(write(tmp_path, text))
    assert workload.request_ids == ["c/0", "c/2", "c/1"]
    assert followed(workload) == [(-1, 0), (-1, 0), (0, 5)]
    assert "1 turn recorded before the turn that it follows: a new session starts there" in notes(workload)


@given(
    turns=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.none() | st.integers(0, 9)), max_size=30),
    options=st.builds(
        TraceOptions, jitter_s=st.sampled_from([0, 5]), loop=st.integers(1, 3), rate_scale=st.sampled_from([1, 3])
    ),
)
def test_what_a_request_follows_is_earlier_and_of_its_session(
    turns: list[tuple[str, int, int | None]], options: TraceOptions, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [
        {"session_id": name, "input_length": 5, "output_length": 1}
        | ({"timestamp": stamp} if delay is None else {"delay": delay})
        for name, stamp, delay in [("a", 0, None), *turns]
    ]
    workload = read_trace(write(tmp_path_factory.mktemp("turns"), jsonl(*rows)), options)
    assert len(workload) == len(rows) * options.loop
    assert np.all(np.diff(workload.arrival_s) >= 0)
    assert workload.session_ids is not None
    for row, (after, delay) in enumerate(followed(workload)):
        assert after < row
        assert delay >= 0
        assert after < 0 or workload.session_ids[after] == workload.session_ids[row]


def arriving(path: Path, **trace: object) -> scenarios.Scenario:
    arrival = {"process": "poisson", "rate": 4}
    return scenarios.load({"workload": {"trace": {"path": str(path), "arrival": arrival, **trace}}, "seed": 3})


def test_a_batch_gets_arrivals(tmp_path: Path) -> None:
    text = "num_prefill_tokens,num_decode_tokens\n" + "".join(f"{n},5\n" for n in range(1, 3001))
    scenario = arriving(write(tmp_path, text))
    workload, again = build_workload(scenario), build_workload(scenario)
    assert np.array_equal(workload.arrival_s, again.arrival_s)
    assert workload.input_tokens.tolist() == list(range(1, 3001))
    gaps = np.diff(workload.arrival_s)
    assert abs(gaps.mean() - 0.25) < 4 * 0.25 / np.sqrt(3000)
    assert "3,000 arrivals drawn (poisson)" in notes(workload)
    assert is_random(scenario)


def test_drawn_arrivals_depend_on_nothing_but_the_seed(tmp_path: Path) -> None:
    path = write(tmp_path, mooncake(*range(0, 100_000, 1000)), "t")
    whole, part = build_workload(arriving(path)), build_workload(arriving(path, limit=40))
    assert whole.arrival_s[:40].tolist() == part.arrival_s.tolist()
    assert whole.content is not None
    assert "requests/s" not in whole.notes[0]


def test_sessions_keep_their_pace_at_drawn_arrivals(tmp_path: Path) -> None:
    text = jsonl(*({"id": f"c{n}", "t": t, "in": 5 + n, "out": 1} for n in range(50) for t in (0, 3, 7)))
    workload = build_workload(arriving(write(tmp_path, text)))
    assert np.all(np.diff(workload.arrival_s) >= 0)
    assert workload.session_ids is not None
    turns: dict[str | None, list[float]] = {}
    for session, arrival_s in zip(workload.session_ids, workload.arrival_s.tolist(), strict=True):
        turns.setdefault(session, []).append(arrival_s)
    assert len(turns) == 50
    assert all(np.round(np.diff(times), 6).tolist() == [3, 4] for times in turns.values())
    assert len({times[0] for times in turns.values()}) == 50


def test_a_process_that_ends_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, NATIVE + "0,1,1\n")
    ends = {"process": "poisson", "rate": 1, "profile": [[0, 1], [5, 0]]}
    with pytest.raises(InputError, match="profile ends at 0"):
        build_workload(scenarios.load({"workload": {"trace": {"path": str(path), "arrival": ends}}}))


def test_a_run_at_drawn_arrivals(tmp_path: Path) -> None:
    scenario = arriving(FIXTURES / "sharegpt.json", loop=20)
    result = scenarios.run(scenario)
    assert result.summary["completed"] == 20
    folder = result.save(tmp_path / "run")
    assert scenarios.load(folder / "scenario.yaml") == scenario


@pytest.mark.parametrize(("capped", "steps"), [(False, 1), (True, 0)])
def test_an_answer_that_ends_below_its_cap_takes_a_step_more_with_asynchronous_scheduling(
    tmp_path: Path, capped: bool, steps: int
) -> None:
    """As docs/traces.md says: no plan knows in time that the token under way is the last one."""
    rows = "".join(f"{n},20,{5 + n}{f',{5 + n}' if capped else ''}\n" for n in range(8))
    text = f"arrival_time_s,input_tokens,output_tokens{',max_tokens' if capped else ''}\n{rows}"
    trace = {"trace": {"path": str(write(tmp_path, text))}, "max_tokens": None if capped else 50}

    def computed(async_scheduling: bool) -> int:
        engine = {"policy": "chunked_prefill", "async_scheduling": async_scheduling}
        found = scenarios.run(scenarios.load({"workload": trace, "engine": engine}), log_decisions=True)
        return sum(sum(step["scheduled"].values()) for step in found.decisions or [])

    assert computed(True) - computed(False) == 8 * steps
