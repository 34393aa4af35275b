"""Copies of a trace laid over each other: when they arrive, who they are, and what their prompts share."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.assembly.workloads import is_random
from scenarios.schema.loader import load
from scenarios.traces import TraceOptions, read_trace
from scenarios.traces.arrange import followers_of, laid_over, units_of
from simulator.errors import InputError
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.workload import Workload
from tests.scenarios.traces.test_read import NATIVE, jsonl, notes, write
from tests.scenarios.traces.test_replay import SESSIONS

ROWS = NATIVE + "".join(f"{at + (at % 7) / 9:.4f},{1 + at},1\n" for at in range(200))


def keys(workload: Workload, row: int, size: int = 4) -> list[object]:
    request = workload.request(row)
    return [BlockKeys(request, size, CHAINS)[block] for block in range(request.input_tokens // size)]


CHAINS = Chains()


@given(copies=st.floats(1.0, 9.0), shift_s=st.none() | st.floats(0.0, 500.0), seed=st.integers(0, 9))
def test_copies_keep_the_load_of_the_part(copies: float, shift_s: float | None, seed: int) -> None:
    arrival = np.sort(np.random.default_rng(1).uniform(0, 100, 300))
    units = np.arange(300)
    over = laid_over(arrival, units, 100.0, copies, shift_s, seed)
    assert over.arrival.min() >= arrival[0]
    assert over.arrival.max() <= arrival[0] + 100.0
    whole = int(copies)
    counts = np.bincount(over.layer, minlength=whole)
    assert (counts[:whole] == 300).all()
    assert abs(len(over.row) - 300 * copies) <= 60
    for layer in range(whole):
        rows, times = over.row[over.layer == layer], over.arrival[over.layer == layer]
        apart = np.unique(np.round((times - arrival[rows]) % 100.0, 6) % 100.0)
        assert len(apart) == 1, "a copy has one offset"
        assert shift_s is None or apart[0] <= shift_s + 1e-6
    more = laid_over(arrival, units, 100.0, copies + 0.7, shift_s, seed)
    assert {*zip(over.layer.tolist(), over.row.tolist(), over.arrival.tolist(), strict=True)} <= {
        *zip(more.layer.tolist(), more.row.tolist(), more.arrival.tolist(), strict=True)
    }, "more copies never change the first ones"


def test_one_copy_is_the_trace_and_three_are_three(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    one, three = read_trace(path), read_trace(path, TraceOptions(copies=3, seed=4))
    assert read_trace(path, TraceOptions(copies=1)).arrival_s.tolist() == one.arrival_s.tolist()
    assert len(three) == 600
    assert sorted(three.input_tokens.tolist()) == sorted(one.input_tokens.tolist() * 3)
    assert np.all(np.diff(three.arrival_s) >= 0)
    names = set(three.request_ids or ())
    assert len(names) == 600
    assert {"0", "0@2", "199@3"} < names
    assert "3 copies of the trace laid over each other, each after the first shifted anywhere in it" in notes(three)
    fast = read_trace(path, TraceOptions(copies=3, seed=4, rate_scale=2))
    assert fast.arrival_s.tolist() == (three.arrival_s / 2).tolist()
    near = read_trace(path, TraceOptions(copies=3, seed=4, shift_s=2))
    starts = [near.arrival_s[list(near.request_ids or ()).index(name)] for name in ("0", "0@2", "0@3")]
    assert starts[0] == 0
    assert 0 < starts[1] < 2
    assert 0 < starts[2] < 2
    assert is_random(load({"name": "x", "model": "llama-3.1-8b", "hardware": {"gpu": "h100"},
                           "workload": {"trace": {"path": str(path), "copies": 2}}}))  # fmt: skip


def test_a_session_moves_as_a_whole_and_keeps_its_order(tmp_path: Path) -> None:
    rows = "".join(f"{t},{1 + t},1,r{t},s{t % 10},{f'r{t - 10},1' if t >= 10 else ','}\n" for t in range(100))
    workload = read_trace(write(tmp_path, SESSIONS + rows), TraceOptions(copies=2.5, seed=3))
    assert workload.after_row is not None
    assert workload.session_ids is not None
    by_session: dict[str, list[int]] = {}
    for row, name in enumerate(workload.session_ids):
        by_session.setdefault(name or "", []).append(row)
    assert {len(of) for of in by_session.values()} == {10}, "a session is kept or left out as a whole"
    assert 20 < len(by_session) < 30
    for of in by_session.values():
        assert np.diff(workload.arrival_s[of]).tolist() == pytest.approx([10.0] * 9)
        assert workload.after_row[of].tolist() == [-1, *of[:-1]]


def test_units_are_sessions_chains_and_passes() -> None:
    units = units_of(["a", None, "a", "a", None], np.array([0, 0, 0, 1, 0]), np.array([-1, -1, -1, -1, 1]), 5)
    assert units.tolist() == [0, 1, 0, 3, 1]
    over = laid_over(np.arange(5.0), units, 5.0, 2, 0.0, 0)
    followers = followers_of(np.array([-1, -1, -1, -1, 1]), over, 5)
    assert followers is not None
    assert followers.tolist() == [-1, -1, -1, -1, 1, -1, -1, -1, -1, 6]


def test_a_copy_shares_what_two_sessions_share_and_nothing_else(tmp_path: Path) -> None:
    """Blocks 1 and 2 are a system prompt of two sessions; 7 and 8 are one session's own, in two of its turns."""
    rows = [
        {"arrival_time_s": 0, "input_tokens": 16, "session_id": "a", "block_hashes": [1, 2, 7, 5]},
        {"arrival_time_s": 1, "input_tokens": 20, "session_id": "a", "block_hashes": [1, 2, 7, 8, 6]},
        {"arrival_time_s": 2, "input_tokens": 12, "session_id": "b", "block_hashes": [1, 2, 9]},
        {"arrival_time_s": 3, "input_tokens": 12, "block_hashes": [1, 2, 11]},
    ]
    path = write(tmp_path, jsonl(*[{**row, "output_tokens": 1, "hash_block_size": 4} for row in rows]), "t.jsonl")
    workload = read_trace(path, TraceOptions(copies=2, shift_s=0))
    at = {name: keys(workload, row) for row, name in enumerate(workload.request_ids or ())}
    assert at["0@2"][:2] == at["0"][:2]
    assert at["0@2"][2] == at["1@2"][2], "its own turns still share"
    assert at["0@2"][2] not in at["0"]
    assert not {*at["1@2"][2:]} & {key for name in "0123" for key in at[name]}
    assert at["2@2"][:2] == at["2"][:2]
    assert not {*at["3@2"]} & {*at["3"]}, "without a session nothing tells a system prompt from a conversation"


def test_token_ids_and_groups_of_a_copy(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"session_id": "a", "prompt_token_ids": [5, 6, 7, 8, 1, 1, 1, 1], "output_token_ids": [3]},
        {"session_id": "b", "prompt_token_ids": [5, 6, 7, 8, 2, 2, 2, 2], "output_token_ids": [3]},
        {"session_id": "a", "prefix_group": "mine", "prefix_tokens": 4},
        {"session_id": "a", "prefix_group": "ours", "prefix_tokens": 4},
        {"session_id": "b", "prefix_group": "ours", "prefix_tokens": 4},
        {"prefix_group": "system", "prefix_tokens": 4},
    ]
    text = jsonl(*[{"arrival_time_s": i, "input_tokens": 8, "output_tokens": 1, **row} for i, row in enumerate(rows)])
    workload = read_trace(write(tmp_path, text, "t.jsonl"), TraceOptions(copies=2, shift_s=0))
    at = {name: keys(workload, row) for row, name in enumerate(workload.request_ids or ())}
    assert at["0@2"][0] == at["0"][0] == at["1@2"][0]
    assert at["0@2"][1] != at["0"][1]
    assert at["2@2"][0] != at["2"][0]
    assert at["3@2"][0] == at["3"][0] == at["4@2"][0]
    assert at["5@2"][0] == at["5"][0]


@pytest.mark.parametrize(
    ("keys_", "what"),
    [
        ({"copies": 0.5}, "copies"),
        ({"shift_s": 20}, "there is one copy"),
        ({"copies": 2, "arrival": {"process": "poisson", "rate": 2}}, "keep the recorded arrivals"),
    ],
)
def test_refuses_what_cannot_be(keys_: dict[str, object], what: str, tmp_path: Path) -> None:
    trace = {"path": str(write(tmp_path, ROWS)), **keys_}
    with pytest.raises(InputError, match=what):
        load({"name": "x", "model": "llama-3.1-8b", "hardware": {"gpu": "h100"}, "workload": {"trace": trace}})
    if "arrival" not in keys_ and "copies" in keys_:
        with pytest.raises(InputError, match="sample"):
            TraceOptions(**keys_)  # type: ignore[arg-type] # the cases name one option or another
