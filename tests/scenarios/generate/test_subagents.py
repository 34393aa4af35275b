"""Agents that start agents: trees as they are drawn, and a run of them."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.generate import GeneratedWorkload, generate
from simulator.workload import Workload

AGENTS = {"share": 0.5, "count": {"dist": "uniform", "min": 1, "max": 3}, "steps": 3, "depth": 2,
          "input": {"dist": "fixed", "value": 50}}  # fmt: skip
SESSION = {
    "turns": 2, "steps": {"dist": "uniform", "min": 2, "max": 5}, "think_time_s": 4.0, "tool_time_s": 1.5,
    "tool_tokens": {"dist": "fixed", "value": 7}, "subagents": AGENTS,
}  # fmt: skip
CLASS = {
    "name": "a", "input": {"dist": "fixed", "value": 20}, "output": {"dist": "uniform", "min": 2, "max": 9},
    "prefix": {"tokens": 100}, "session": SESSION,
}  # fmt: skip
OPEN = {"process": "poisson", "rate": 2.0}


def draw(requests: int = 400, seed: int = 3, arrival: dict[str, Any] = OPEN, **keys: Any) -> Workload:
    classes = [{**CLASS, "arrival": arrival, **keys}]
    return generate(GeneratedWorkload.model_validate({"requests": requests, "classes": classes}), seed)


def waits(workload: Workload, row: int) -> set[int]:
    assert workload.after_row is not None
    assert workload.also_after is not None
    return {each for each in (workload.after_row.item(row), *workload.also_after[row]) if each >= 0}


def check_trees(work: Workload) -> None:
    """Each conversation is a chain that grows; whoever starts agents has its next step wait for the last of each."""
    assert work.session_ids is not None
    assert work.delay_s is not None
    assert work.request_ids is not None
    assert work.task_ids is not None
    assert work.content is not None
    assert len(set(work.request_ids)) == len(work)
    chains: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(work.session_ids):
        chains[name or ""].append(row)
    ends: dict[int, set[int]] = defaultdict(set)
    rows_by_name = {name: row for row, name in enumerate(work.request_ids)}
    for name, rows in chains.items():
        assert all(each.conversation == name for row in rows if (each := work.content[row]))
        if "/" in name:
            start = rows_by_name[name.rpartition("/")[0]]
            assert waits(work, rows[0]) == {start}
            assert work.input_tokens[rows[0]] == 150
            ends[start].add(rows[-1])
            assert work.task_ids[rows[0]] == work.task_ids[start]
        else:
            assert not waits(work, rows[0])
    for rows in chains.values():
        for before, row in pairwise(rows):
            assert waits(work, row) == {before, *ends[before]}
            new = 7 if work.task_ids[row] == work.task_ids[before] else 20
            assert work.input_tokens[row] == work.input_tokens[before] + work.output_tokens[before] + new
            assert work.delay_s[row] == (4.0 if new == 20 else 0.0 if ends[before] else 1.5)
            assert max(waits(work, row)) < row


def test_trees_hang_together() -> None:
    work = draw(3000)
    check_trees(work)
    depths = {(name or "").count("/") for name in work.session_ids or ()}
    assert depths == {0, 1, 2}
    started = [len(waits(work, row)) - 1 for row in range(len(work)) if work.also_after and work.also_after[row]]
    assert set(started) == {1, 2, 3}


def test_a_cut_and_a_longer_workload_change_nothing_before() -> None:
    """A number of requests cuts the last tree: what is left waits for what is there."""
    long, short = draw(4000), draw(777)
    assert len(short) == 777
    assert short.request_ids == (long.request_ids or [])[:777]
    for row in range(777):
        assert waits(short, row) == waits(long, row)
    assert short.input_tokens.tolist() == long.input_tokens[:777].tolist()


def test_a_share_moves_no_length_of_the_agent() -> None:
    """Agents have streams of their own: the agent's own requests are those of a class without agents."""
    few = draw(3000, session={**SESSION, "subagents": {**AGENTS, "share": 0.05}})
    alone = draw(3000, session={key: value for key, value in SESSION.items() if key != "subagents"})
    own = [row for row, name in enumerate(few.request_ids or ()) if "/" not in name]
    count = min(len(own), 500)
    assert count == 500
    for column in ("input_tokens", "output_tokens", "arrival_s"):
        assert getattr(few, column)[own[:count]].tolist() == getattr(alone, column)[:count].tolist()


def test_users_of_a_closed_loop_have_trees() -> None:
    work = draw(300, arrival={"process": "closed_loop", "concurrency": 2})
    (loop,) = work.loops
    first, more = loop.draw(20), loop.draw(60)
    check_trees(more)
    assert more.request_ids is not None
    assert first.request_ids == list(more.request_ids)[: len(first)]


@pytest.mark.parametrize("arrival", [OPEN, {"process": "closed_loop", "concurrency": 2}])
def test_a_run_of_trees_serves_each_request_once(arrival: dict[str, Any]) -> None:
    """Joins come never before their answers; both ways of time agree; each task is done."""
    scenario = {
        "model": "llama-3.1-8b", "hardware": {"gpu": "h200"}, "seed": 3,
        "workload": {"requests": 120, "classes": [{**CLASS, "arrival": arrival}]},
        "engine": {"policy": "chunked_prefill", "enable_prefix_caching": True},
        "replicas": 2, "router": "session_affinity",
    }  # fmt: skip
    result = scenarios.run(scenario)
    table, work = result.requests.set_index("request_id"), draw(120)
    assert len(table) == 120
    for row in range(len(work)):
        ended = [table.last_token_s[work.request_id(each)] for each in waits(work, row)]
        if arrival is OPEN and ended:
            assert work.delay_s is not None
            assert table.arrival_s[work.request_id(row)] == pytest.approx(max(ended) + work.delay_s[row], abs=1e-9)
    cut = arrival is not OPEN  # a pool is cut as it is taken from: the last task of the users is not done
    assert result.summary["tasks_done"] == result.summary["tasks"] - cut
    stepwise = scenarios.run(scenario, fast_forward=False)
    assert stepwise.requests.equals(result.requests)
    assert stepwise.summary == result.summary
    assert np.all(table.task_requests > 0)
