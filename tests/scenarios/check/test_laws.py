"""Laws that no policy breaks while the engine is right: runs that were tampered with, and an engine that is wrong."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scenarios.check.cases import RandomCase, RandomRequest
from scenarios.check.check_policy import LAWS, broken_laws, check_policy
from scenarios.check.law_trial import Trial, make_trial
from scenarios.check.laws import other_lengths, same
from scenarios.schema.loader import load
from simulator.memory.blocks import BlockManager
from simulator.results.records import Status
from simulator.simulate import Run

REQUESTS = (RandomRequest(0.0, 6, 5, 8), RandomRequest(0.0, 9, 3, 8), RandomRequest(2.0, 4, 4, 8))


@pytest.fixture(scope="module")
def trial() -> Trial:
    return trial_of(RandomCase(REQUESTS, 30, 2, {"max_num_seqs": 2, "max_num_batched_tokens": 8}))


def trial_of(case: RandomCase) -> Trial:
    scenario = load(case.scenario("tampered", "chunked_prefill", "none.csv"), check_files=False)
    return make_trial(scenario, case.workload())


def column(table: str, name: str, index: int, value: float) -> Callable[[Run], Run]:
    """A run with one number of its records changed."""

    def change(run: Run) -> Run:
        columns: Any = getattr(run.records, table)
        values = getattr(columns, name).copy()
        values[index] = value
        return replace(run, records=replace(run.records, **{table: replace(columns, **{name: values})}))

    return change


def steps(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Run], Run]:
    """A run with its decisions changed."""

    def changed(run: Run) -> Run:
        decisions = deepcopy(run.decisions or [])
        change(decisions)
        return replace(run, decisions=decisions)

    return changed


TAMPERED: list[tuple[str, Callable[[Run], Run], str]] = [
    ("budgets", column("rows", "running", 0, 3), "runs 3 requests; max_num_seqs is 2"),
    ("budgets", column("rows", "tokens", 1, 9), "computes 9 tokens; max_num_batched_tokens is 8"),
    ("service", column("requests", "status", 1, Status.UNFINISHED), "request 1 unserved"),
    ("conservation", column("requests", "row", 1, 0), "3 requests were submitted"),
    ("conservation", column("requests", "status", 1, Status.REJECTED), "rejected are [1]"),
    ("conservation", column("requests", "output_tokens", 0, 4), "request 0 got 4 output tokens, its answer has 5"),
    ("conservation", steps(lambda log: log[0]["running"].append("0")), "request 0 is in 2 places, not 1"),
    ("conservation", steps(lambda log: log[0]["scheduled"].clear()), "the steps computed"),
    ("conservation", steps(lambda log: log[-1]["finished"].append("0")), "the steps tell of"),
    ("conservation", column("rows", "decoding", 0, 7), "not those of its parts"),
    ("blocks", column("rows", "context_tokens", 0, 99), "99 tokens in blocks for"),
    ("causality", column("requests", "scheduled_s", 2, 1.0), "request 2: arrival_s is 2, scheduled_s 1"),
    ("causality", column("requests", "first_token_s", 0, 0.0), "first_token_s 0"),
    ("causality", column("requests", "released_s", 0, 1.0), "released_s 1"),
    ("causality", column("rows", "start_s", 2, 0.5), "before the one before has ended"),
]


@pytest.mark.parametrize(("law", "tamper", "says"), TAMPERED)
def test_a_run_that_was_tampered_with(trial: Trial, law: str, tamper: Callable[[Run], Run], says: str) -> None:
    check = LAWS[law][1]
    assert check is not None
    run = trial.base_run()
    assert check(trial, run) is None
    assert says in str(check(trial, tamper(run)))


def test_a_server_that_begins_late(trial: Trial) -> None:
    run = trial.base_run()
    check = LAWS["work"][1]
    assert check is not None
    assert check(trial, run) is None
    late = column("rows", "start_s", 0, 9.0)(run)
    assert "at 0 s: rests 9 s while request 0 waits" in str(check(trial, late))


def test_a_clock_that_goes_back(trial: Trial) -> None:
    run = trial.base_run()
    ends = run.records.step_end_s.copy()
    ends[2] = ends[0]
    check = LAWS["causality"][1]
    assert check is not None
    assert "the one before at" in str(check(trial, replace(run, records=replace(run.records, step_end_s=ends))))


def test_an_engine_that_leaks_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    free = BlockManager.free

    def leak(self: BlockManager, row: int, num_blocks: int) -> None:
        free(self, row, num_blocks)
        self._free.pop()

    monkeypatch.setattr(BlockManager, "free", leak)
    report = check_policy("chunked_prefill", scenarios=3)
    assert set(report.broken) == {"blocks"}
    assert not report.holds


def test_runs_that_differ_in_a_bit(trial: Trial) -> None:
    run = trial.base_run()
    assert same(run, trial.base_run(), ("", "")) is None
    other = column("requests", "requeued_s", 0, -0.0)(run)
    assert "equal decisions, other records: requests.requeued_s" in str(same(run, other, ("", "")))
    fewer = steps(lambda log: log.pop())(run)
    assert f"{len(run.decisions or [])} steps here, {len(run.decisions or []) - 1} there" in str(
        same(run, fewer, (" here", " there"))
    )


def test_other_lengths_stay_within_caps_and_memory() -> None:
    """And the request that never fits keeps its own."""
    never = RandomRequest(2.0, 70, 5, 8)
    trial = trial_of(RandomCase((*REQUESTS, never), 30, 2, {}))
    run = trial.base_run()
    assert run.records.requests.status[3] == Status.REJECTED
    lengths = other_lengths(trial.workload, run)
    assert [found.tolist() for found in lengths] == [[3, 5, 4, 5], [2, 3, 2, 5]]
    for found in lengths:
        assert (found <= trial.workload.max_tokens).all()


def test_a_trial_breaks_no_law(trial: Trial) -> None:
    tried = dict.fromkeys(LAWS, 0)
    assert broken_laws(trial, tried) == {}
    assert tried == dict.fromkeys(LAWS, 1)


def test_the_scenario_is_the_case() -> None:
    """Host blocks and seconds a block come out exact, and the requests are those of the trace."""
    case = RandomCase(REQUESTS, 30, 2, {}, num_host_blocks=7, swap_s_per_block=1e-4, replicas=2, router="least_loaded")
    trial = trial_of(case)
    assert trial.parts.kv.num_host_blocks == 7
    assert trial.parts.kv.num_gpu_blocks == 30
    assert trial.parts.swap_s_per_block == pytest.approx(1e-4, rel=1e-12)
    assert trial.scenario.replicas == 2
    assert case.trace().splitlines()[1] == "0.0,6,5,8,0"
    assert np.array_equal(trial.workload.arrival_s, [0.0, 0.0, 2.0])
