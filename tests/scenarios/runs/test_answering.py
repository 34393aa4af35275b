"""Runs of traffic that answers back, from YAML to the tables and back."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.check.law_trial import differences
from scenarios.runs.comparison import compare
from scenarios.runs.result import Result
from scenarios.runs.storage.run_folder import read_run
from simulator.errors import InputError
from simulator.results.records import Status

TRACES = Path(__file__).resolve().parents[2] / "data" / "traces"
COST = {"kind": "linear", "base_s": 0.01, "per_token_s": 1e-4, "per_context_token_s": 1e-7}
LENGTHS = {"input": {"dist": "uniform", "min": 5, "max": 90}, "output": {"dist": "uniform", "min": 2, "max": 60}}
SESSION = {"turns": {"dist": "uniform", "min": 1, "max": 5}, "think_time_s": {"dist": "exponential", "mean_s": 0.5}}
LOOP = {"process": "closed_loop", "concurrency": 4, "think_time_s": 0.3}
CLIENT = {"timeout_s": 0.5, "max_attempts": 3, "backoff_s": 0.1, "jitter": 1.0}


def scenario(workload: dict[str, Any], **keys: Any) -> scenarios.Scenario:
    engine = {"policy": "chunked_prefill", "max_num_seqs": 4, **keys.pop("engine", {})}
    return scenarios.load({"name": "x", "cost": COST, "workload": workload, "engine": engine, **keys})


def sessions(**keys: Any) -> dict[str, Any]:
    chat = {"name": "chat", **LENGTHS, "arrival": {"process": "poisson", "rate": 3}, "session": SESSION, **keys}
    return {"duration_s": 10, "classes": [chat]}


EVERYTHING: dict[str, Any] = {
    "duration_s": 8,
    "client": CLIENT,
    "classes": [
        *sessions()["classes"],
        {"name": "loop", **LENGTHS, "arrival": LOOP},
        {"name": "patient", **LENGTHS, "arrival": {"process": "poisson", "rate": 3}, "client": {}},
    ],
}


@pytest.fixture(scope="module")
def everything() -> Result:
    return scenarios.run(scenario(EVERYTHING, engine={"max_queued_requests": 3}, replicas=2))


# Prefix caching


@pytest.mark.parametrize("prefix", [None, {"groups": 2, "tokens": 40}])
@pytest.mark.parametrize("policy", ["chunked_prefill", "sglang"])
def test_the_cache_finds_exactly_the_conversation_so_far(policy: str, prefix: dict[str, Any] | None) -> None:
    """Of each later turn: the full blocks of the last prompt and answer, but for the last token, which has no KV.

    Under SGLang's overlap schedule it may have: a decode after it was planned before its end was known.
    """
    engine = {"policy": policy, "block_size": 8, "enable_prefix_caching": True, "max_num_seqs": 32}
    if policy == "sglang":
        engine |= {"max_num_batched_tokens": 4096}
    requests = scenarios.run(scenario(sessions(prefix=prefix), engine=engine)).requests
    assert (requests["status"] == "finished").all()
    seen = 0
    for _, turns in requests.groupby("session_id"):
        rows = turns.sort_values("turn").to_dict("records")
        for before, after in itertools.pairwise(rows):
            known = before["input_tokens"] + before["output_tokens"]
            assert after["input_tokens"] > known
            with_kv = (known - 1, known) if policy == "sglang" else (known - 1,)
            assert after["cached_tokens"] in [tokens // 8 * 8 for tokens in with_kv]
            seen += 1
    assert seen > 20


def test_turns_of_independent_prompts_share_nothing() -> None:
    workload = sessions(session={**SESSION, "context": "independent"})
    requests = scenarios.run(scenario(workload, engine={"enable_prefix_caching": True})).requests
    assert (requests["cached_tokens"] == 0).all()


# Time


def test_a_turn_never_precedes_its_answer(everything: Result) -> None:
    requests = everything.requests
    for _, turns in requests[requests["session_id"] != ""].groupby("session_id"):
        served = turns[turns["status"] == "finished"].set_index("turn")["last_token_s"]
        for row in turns[turns["turn"] > 1].to_dict("records"):
            assert row["arrival_s"] >= served[row["turn"] - 1]


def test_nothing_is_issued_after_the_duration_but_another_attempt(everything: Result) -> None:
    requests = everything.requests
    late = requests[requests["arrival_s"] >= 8]
    assert (late["attempt"] > 1).all()
    assert len(late)


def test_a_front_end_delays_what_follows() -> None:
    """The next turn comes after the answer that the client has, not the engine."""
    front_end = {"fixed_s": 0.25, "per_running_s": 0.01}
    rows = scenarios.run(scenario(sessions(session={"turns": 3}), front_end=front_end)).requests
    for _, turns in rows.groupby("session_id"):
        found = turns.sort_values("turn")
        assert np.allclose(found["arrival_s"].to_numpy()[1:], found["last_token_s"].to_numpy()[:-1], atol=1e-12)


def test_timeouts_must_leave_time_for_the_front_end() -> None:
    with pytest.raises(InputError, match=r"timeout_s of 0.5 s.*front_end"):
        scenarios.run(scenario(EVERYTHING, front_end={"fixed_s": 0.6, "per_running_s": 0}))


# Counts


def test_every_request_is_served_given_up_or_unfinished(everything: Result) -> None:
    summary, requests = everything.summary, everything.requests
    assert requests["attempt"].max() == 3
    firsts = requests[requests["attempt"] == 1]
    assert summary["served"] + summary["given_up"] == len(firsts)
    assert summary["served"] == summary["completed"] == (requests["status"] == "finished").sum()
    assert summary["attempts_per_request"] == pytest.approx(len(requests) / len(firsts))
    assert set(requests["status"]) == {"finished", "aborted", "rejected"}
    patient = requests[requests["class"] == "patient"]
    assert (patient["attempt"] == 1).all()
    names = dict(zip(requests["request_id"], requests["attempt"], strict=True))
    for row in requests[requests["attempt"] > 1].to_dict("records"):
        assert row["request_id"] == f"{row['retry_of']}#{row['attempt']}"
        assert names[row["retry_of"]] == 1
    assert any("queue was full" in note for note in everything.notes)


def test_work_for_clients_that_have_left_is_counted_whether_or_not_the_server_stops() -> None:
    slow = {"timeout_s": 0.3}
    stopped, went_on = (
        scenarios.run(
            scenario(sessions(client={**slow, "cancel": cancel}), engine={"max_num_seqs": 2})
        ).records.requests
        for cancel in (True, False)
    )
    for requests in (stopped, went_on):
        aborted = requests.status == Status.ABORTED
        assert aborted.any()
        assert np.all(requests.aborted_tokens[~aborted] == 0)
    whole = (went_on.status == Status.ABORTED) & ~np.isnan(went_on.last_token_s)
    computed = went_on.input_tokens + went_on.output_tokens - 1
    assert np.array_equal(went_on.aborted_tokens[whole], computed[whole])
    assert went_on.aborted_tokens.sum() > stopped.aborted_tokens.sum()


def test_sessions_in_the_summary() -> None:
    result = scenarios.run(scenario(sessions()))
    rows = result.requests
    assert result.summary["sessions"] == rows["session_id"].nunique()
    assert result.summary["mean_session_turns"] == pytest.approx(len(rows) / rows["session_id"].nunique())
    lasting = rows.groupby("session_id")["last_token_s"].max() - rows.groupby("session_id")["arrival_s"].min()
    assert result.summary["mean_session_s"] == pytest.approx(lasting.mean())
    waits = rows.groupby("session_id")["e2el_ms"].mean()
    assert result.summary["sessions_jain"] == pytest.approx(waits.sum() ** 2 / (len(waits) * (waits**2).sum()))
    assert result.summary["served"] is None
    assert "attempt" not in rows


def test_an_open_replay_keeps_its_sessions(tmp_path: Path) -> None:
    """As recorded: arrivals wait for no answer, and the figures of sessions are there all the same."""
    trace = tmp_path / "trace.csv"
    rows = ["0,10,5,a", "1,10,5,b", "2,10,5,", "3,20,5,a"]
    trace.write_text("arrival_time_s,input_tokens,output_tokens,session_id\n" + "\n".join(rows) + "\n")
    result = scenarios.run(scenario({"trace": {"path": str(trace)}}))
    assert result.requests["session_id"].tolist() == ["a", "b", "", "a"]
    assert result.requests["turn"].tolist() == [1, 1, 1, 2]
    assert result.summary["sessions"] == 2
    assert result.summary["mean_session_turns"] == 1.5


def test_a_run_of_open_traffic_has_none_of_the_columns() -> None:
    workload = {"requests": 5, "classes": [{"name": "a", **LENGTHS, "arrival": {"process": "poisson", "rate": 1}}]}
    result = scenarios.run(scenario(workload))
    assert not {"session_id", "turn", "attempt", "retry_of", "left_s"} & set(result.requests)
    assert result.records.calls is None


# Files


def test_a_saved_run_reads_back(everything: Result, tmp_path: Path) -> None:
    saved = read_run(everything.save(tmp_path / "run"))
    assert differences(saved.records, everything.records) == []
    assert saved.records.session_ids == everything.records.session_ids
    assert saved.records.turns is not None
    assert np.array_equal(saved.records.turns, everything.requests["turn"])


def test_equal_runs_make_equal_files(everything: Result, tmp_path: Path) -> None:
    again = scenarios.run(everything.scenario, fast_forward=False)
    first, second = everything.save(tmp_path / "a"), again.save(tmp_path / "b")
    for path in sorted(first.iterdir()):
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


# Comparisons


def test_a_closed_loop_asks_every_policy_the_same() -> None:
    workload = {"requests": 40, "arrival": LOOP, "classes": [{"name": "a", **LENGTHS}]}
    found = compare(scenario(workload), ["static", "continuous"], seeds=2)
    assert len(found.seeds) == 2
    assert any("arrivals depend on the answers" in note for note in found.notes)
    ours, theirs = (
        result.requests.set_index("request_id").sort_index()[["input_tokens", "output_tokens"]]
        for result in found.first.values()
    )
    assert ours.equals(theirs)
    first, second = (result.requests["arrival_s"].max() for result in found.first.values())
    assert first != second


@pytest.mark.parametrize("kind", ["oracle", "class_mean", "none"])
def test_predictions_reach_the_pool_of_a_closed_loop(kind: str) -> None:
    workload = {"duration_s": 5, "arrival": LOOP, "classes": [{"name": "a", **LENGTHS}], "predictor": {"kind": kind}}
    chosen = scenario(workload, engine={"order": "sjf"})
    from scenarios.assembly.workloads import build_workload

    (loop,) = build_workload(chosen).loops
    few, many = loop.draw(10), loop.draw(500)
    if kind == "none":
        assert few.predicted_output_tokens is None
        return
    assert few.predicted_output_tokens is not None
    assert many.predicted_output_tokens is not None
    assert np.array_equal(few.predicted_output_tokens, many.predicted_output_tokens[: len(few)])
    assert scenarios.run(chosen).summary["completed"] > 10


# Traces

ROWS = """arrival_time_s,input_tokens,output_tokens,request_id
0,10,20,a
1,20,5,b
"""


def test_sessions_of_a_trace_need_one_that_has_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(ROWS)
    trace = {"path": str(path), "sessions": "closed_loop"}
    with pytest.raises(InputError, match="which request follows which"):
        scenarios.run(scenario({"trace": trace}))
    result = scenarios.run(scenario({"trace": {"path": str(path)}, "client": {"timeout_s": 0.2}}))
    assert result.requests["request_id"].tolist() == ["a", "b"]
    assert result.requests["status"].tolist() == ["aborted", "finished"]


@pytest.mark.parametrize(
    "fixture",
    ["bailian_seconds_sessions.jsonl", "weka_flat_seconds.jsonl", "llmservingsim_flat_and_agentic.jsonl"],
)
def test_a_traces_sessions_are_played_back(fixture: str) -> None:
    """Each row arrives at its own time, or exactly its delay after the answer that it waits for."""
    from scenarios.assembly.workloads import build_workload

    trace = {"path": str(TRACES / fixture), "sessions": "closed_loop"}
    chosen = scenario({"trace": trace}, engine={"max_num_seqs": 64})
    workload = build_workload(chosen)
    assert workload.after_row is not None
    assert workload.delay_s is not None
    assert (workload.after_row >= 0).any()
    done = scenarios.run(chosen).records
    rows = {name: row for row, name in enumerate(done.request_ids or ())}
    assert len(rows) == len(workload)
    for row, before in enumerate(workload.after_row.tolist()):
        due_s = float(workload.arrival_s[row])
        if before >= 0:
            answered_s = float(done.requests.last_token_s[rows[workload.request_id(before)]])
            due_s = answered_s + float(workload.delay_s[row])
        assert float(done.requests.arrival_s[rows[workload.request_id(row)]]) == due_s


def test_recorded_sessions_keep_their_times() -> None:
    chosen = scenario({"trace": {"path": str(TRACES / "bailian_seconds_sessions.jsonl")}})
    assert scenarios.run(chosen).records.calls is None


def test_drawn_arrivals_and_played_back_sessions_exclude_one_another() -> None:
    path = str(TRACES / "bailian_seconds_sessions.jsonl")
    trace = {"path": path, "sessions": "closed_loop", "arrival": {"process": "poisson", "rate": 1}}
    with pytest.raises(InputError, match="leave arrival out"):
        scenario({"trace": trace})
