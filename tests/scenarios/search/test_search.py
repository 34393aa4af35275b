"""A search finds a policy that pays on traffic it never saw, says so where it finds none, and writes what it found."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scenarios.cli.app import app
from scenarios.plan.candidate import Candidate, make_candidate
from scenarios.plan.goal import parse_goal
from scenarios.runs.runner import run
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.search.race import WORST, Aim, Race, Space, Trial, parts_of, with_part
from scenarios.search.search import command_of, held_out, policy_text, scenario_text, scheduler_text, weights_of
from scenarios.studies.run_sweep import InProcess, Outcome
from simulator.errors import InputError
from tests.scenarios.search.overload import OVERLOAD, workload


@pytest.fixture(scope="module")
def base() -> Scenario:
    return load(OVERLOAD)


def test_a_search_pays_and_its_file_runs_as_it_did(base: Scenario, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(OVERLOAD))
    out = tmp_path / "found"
    asked = ["search", str(path), "--objective", "request_goodput", "--trials", "14", "--seeds", "6", "--no-report"]
    done = CliRunner().invoke(app(), [*asked, "--workers", "1", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert {"best", "baseline", "held_out", "gap_closed", "deploy", "trials", "cpu_s"} <= said.keys()
    assert said["found"]
    assert said["held_out"]["difference"]["low"] > 0
    assert 0 < said["gap_closed"]["low"] <= said["gap_closed"]["value"] <= 1
    assert sorted(each.name for each in out.iterdir()) == ["policy.py", "scenario.yaml", "search.json", "trials.csv"]
    assert len((out / "trials.csv").read_text().splitlines()) == said["trials"] + 1
    seeds = [3, 4, 5]  # the search has not seen them
    reached = [run(load(out / "scenario.yaml", [f"seed={seed}"])).summary["request_goodput"] for seed in seeds]
    assert sum(reached) / 3 == pytest.approx(said["held_out"]["best"], rel=1e-12)


def test_nothing_is_taken_where_nothing_is_to_be_had(tmp_path: Path) -> None:
    path = tmp_path / "idle.yaml"
    path.write_text(json.dumps(OVERLOAD | {"workload": workload(40, 0.05)}))
    asked = ["search", str(path), "--objective", "request_goodput", "--trials", "4", "--seeds", "4", "--workers", "1"]
    done = CliRunner().invoke(app(), [*asked, "--no-report", "--json", "--out", str(tmp_path / "found")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["found"] is False
    assert "policy_class('chunked_prefill')" in (tmp_path / "found" / "policy.py").read_text()


def _race(base: Scenario, folder: Path, metric: str = "request_goodput") -> Race:
    parts = parts_of(base, 4, 0.5)
    from scenarios.assembly.workloads import build_workload

    space = Space(base, build_workload(base), sheds=True)
    return Race(space, parts, Aim(metric), folder, InProcess())


def test_a_search_that_was_stopped_makes_no_run_twice(base: Scenario, tmp_path: Path) -> None:
    one = _race(base, tmp_path)
    best = one.run(6)
    again = _race(base, tmp_path)
    assert again.run(6).candidate.settings == best.candidate.settings
    assert one.runs > 0
    assert again.runs == 0


@pytest.mark.long
def test_the_better_third_goes_on(base: Scenario, tmp_path: Path) -> None:
    race = _race(base, tmp_path)
    race.run(16)
    came = [len(trial.scores) for trial in race.trials]
    assert min(came) == 1
    assert max(came) == len(race.parts.rounds)
    last = [trial for trial in race.trials if len(trial.scores) == 1]
    first_out = min(trial.scores[0] for trial in last)
    assert all(trial.scores[0] <= first_out for trial in race.trials[1:] if trial.draw == 2 and len(trial.scores) > 1)


@pytest.mark.long
def test_settings_that_do_not_matter_are_taken_out(base: Scenario, tmp_path: Path) -> None:
    race = _race(base, tmp_path)
    for number in range(len(race.parts.rounds)):
        race._enter([race.baseline], number)
    short = {"engine.order": "weighted", "engine.input_token_s": 0.01}
    trial = Trial(make_candidate(base, {**short, "engine.watermark": 0.0, "engine.max_num_seqs": 256}), 0)
    for number in range(len(race.parts.rounds)):
        race._enter([trial], number)
    assert race._plainer(trial).candidate.settings == short


def test_the_seeds_that_are_held_out_are_no_seeds_of_the_search(base: Scenario) -> None:
    parts = parts_of(base, 8, 0.25)
    seen = {part for of_round in parts.rounds for part in of_round}
    assert len(parts.rounds[-1]) == 6
    assert len(parts.held_out) == 2
    assert not seen & set(parts.held_out)


def test_a_trace_is_cut_in_time_and_no_request_is_lost(tmp_path: Path) -> None:
    rows = "".join(f"{at},{10 + at},3\n" for at in range(101))
    (tmp_path / "trace.csv").write_text(f"arrival_time_s,input_tokens,output_tokens\n{rows}")
    traced = {"trace": {"path": str(tmp_path / "trace.csv"), "rate_scale": 2.0, "start_s": 20.0}}
    scenario = load(OVERLOAD | {"workload": traced})
    parts = parts_of(scenario, 8, 0.5)
    sizes = [
        len(run(with_part(scenario, part)).records.requests.row)
        for of in (parts.rounds[-1], parts.held_out)
        for part in of
    ]
    assert sizes == [40, 41]


def test_too_few_requests_prove_nothing_and_the_answer_says_why(tmp_path: Path) -> None:
    rows = "".join(f"{at / 50},{900 - 90 * (at % 10)},5\n" for at in range(20))
    (tmp_path / "trace.csv").write_text(f"arrival_time_s,input_tokens,output_tokens\n{rows}")
    path = tmp_path / "few.yaml"
    path.write_text(json.dumps(OVERLOAD | {"workload": {"trace": {"path": str(tmp_path / "trace.csv")}}}))
    asked = ["search", str(path), "--objective", "mean_ttft_ms", "--trials", "18", "--workers", "1", "--no-report"]
    done = CliRunner().invoke(app(), [*asked, "--out", str(tmp_path / "found")])
    assert done.exit_code == 0, done.output
    assert "Nothing proven" in done.stdout
    assert "for 10 requests are too few" in " ".join(done.stdout.split())


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_held_out_lies_between_none_and_all(base: Scenario, share: float) -> None:
    with pytest.raises(InputError, match="cannot be held out"):
        parts_of(base, 8, share)


def test_an_objective_is_a_metric_with_a_better_side(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(OVERLOAD))
    for wrong in ("goodput", "num_steps", "mean_tft_ms"):
        done = CliRunner().invoke(app(), ["search", str(path), "--objective", wrong, "--out", str(tmp_path / "o")])
        assert done.exit_code == 2
        assert "unknown metric" in done.stderr
    assert "did you mean `mean_ttft_ms`" in done.stderr
    assert not (tmp_path / "o").exists()


def _outcome(**summary: Any) -> Outcome:
    return Outcome({"completed": 10, **summary})


def test_a_latency_of_fewer_answers_is_no_gain(base: Scenario) -> None:
    aim, own = Aim("mean_ttft_ms"), [_outcome(mean_ttft_ms=500.0)]
    assert aim.score([_outcome(mean_ttft_ms=400.0)], own) < aim.score(own, own)
    assert aim.score([Outcome({"completed": 9, "mean_ttft_ms": 1.0})], own) == WORST


def test_a_candidate_that_misses_a_limit_comes_after_all_that_keep_it(base: Scenario) -> None:
    aim = Aim("request_goodput", (parse_goal("p99_tpot_ms<=50", base),))
    keeps = _outcome(request_goodput=1.0, p99_tpot_ms=50.0)
    misses, more = (_outcome(request_goodput=9.0, p99_tpot_ms=excess) for excess in (60.0, 90.0))
    assert aim.score([keeps], [keeps]) < aim.score([misses], [keeps]) < aim.score([more], [keeps])


@pytest.mark.parametrize(
    "settings",
    [
        {"engine.order": "weighted", "engine.input_token_s": 0.002, "engine.late_after_s": 0.7},
        {"engine.prefill_schedule_interval": 4, "engine.max_num_batched_tokens": 512, "engine.max_num_queued_reqs": 30},
        {"engine.policy": "in_time"},
        {"engine.policy": "sglang"},
    ],
)
def test_the_file_decides_as_the_candidate_does(base: Scenario, settings: dict[str, Any], tmp_path: Path) -> None:
    scenario = make_candidate(base, settings).scenario
    path = tmp_path / "policy.py"
    path.write_text(policy_text(scenario, "A test's."))
    (tmp_path / "scenario.yaml").write_text(scenario_text(scenario, str(path)))
    one, other = run(scenario), run(tmp_path / "scenario.yaml")
    assert other.scenario.engine.policy == f"{path}:Found"
    for key in ("request_goodput", "mean_ttft_ms", "p99_e2el_ms", "num_steps", "rejected"):
        assert one.summary[key] == other.summary[key]


def test_the_interval_of_one_pair_holds_zero_for_equal_runs_and_the_difference_for_others(base: Scenario) -> None:
    own = run(base)
    other = run(make_candidate(base, {"engine.order": "weighted", "engine.input_token_s": 1.0}).scenario)
    for metric in ("p99_ttft_ms", "request_goodput"):
        same = held_out([own], [own], metric).difference
        assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
        found = held_out([other], [own], metric)
        assert found.difference.low <= found.difference.mean <= found.difference.high
        assert found.difference.mean == pytest.approx(other.summary[metric] - own.summary[metric])
    found = held_out([other], [own], "mean_ttft_ms")
    assert found.closed is not None
    assert found.bound is not None
    assert found.baseline is not None
    assert found.closed.mean == pytest.approx(found.difference.mean / (found.bound - found.baseline))
    assert np.isnan(held_out([other], [own], "output_throughput").difference.low)


@pytest.mark.long
def test_children_stay_near_their_parents(base: Scenario) -> None:
    from scenarios.assembly.workloads import build_workload

    space = Space(base, build_workload(base), sheds=False)
    parent = make_candidate(base, {"engine.order": "weighted", "engine.input_token_s": 0.01})
    rng = np.random.default_rng(0)
    children = [space.child(rng, [Candidate(parent.settings, parent.scenario)]) for _ in range(20)]
    changed = [len(set(child.settings.items()) ^ set(parent.settings.items())) for child in children]
    assert max(changed) <= 5
    assert len({str(child.settings) for child in children}) > 10
    assert all(
        "engine.max_num_queued_reqs" not in child.settings for child in children
    )  # a latency's search sheds none


def test_a_command_stands_only_where_flags_and_the_class_for_vllm_say_all(base: Scenario) -> None:
    said = command_of(make_candidate(base, {"engine.max_num_batched_tokens": 512}).scenario)
    assert said is not None
    assert "--max-num-batched-tokens 512" in said
    weights = {"engine.order": "weighted", "engine.input_token_s": 0.01, "engine.late_after_s": None}
    for settings in (weights, {"engine.policy": "in_time"}):
        said = command_of(make_candidate(base, settings).scenario)
        assert said is not None
        assert said.endswith(" --scheduler-cls vllm_scheduler.WeightedScheduler")
    for settings in ({**weights, "engine.deadline_weight": 1.0}, {"engine.policy": "fastserve"}):
        assert command_of(make_candidate(base, settings).scenario) is None


def test_classes_shared_prefixes_and_the_victim_are_searched_where_there_are_some() -> None:
    from scenarios.assembly.workloads import build_workload

    def keys(scenario: Scenario, policy: str = "chunked_prefill") -> set[str]:
        space = Space(scenario, build_workload(scenario), sheds=False)
        assert policy in space.composed
        return set(space._of(policy))

    more = {"engine.class_s", "engine.cached_token_s"}
    assert not more & keys(load(OVERLOAD))
    one = workload(20, 4.0)["classes"][0]
    shared = {**one, "name": "b", "prefix": {"tokens": 64, "groups": 2}}
    mixed = {"workload": {"requests": 20, "classes": [one, shared]}}
    both = load(OVERLOAD | mixed | {"engine": {"policy": "chunked_prefill", "enable_prefix_caching": True}})
    assert more <= keys(both)
    space, rng = Space(both, build_workload(both), sheds=False), np.random.default_rng(3)
    drawn = [space._of("chunked_prefill")["engine.class_s"].draw(rng) for _ in range(20)]
    assert {len(each) for each in drawn} == {0, 1, 2}
    cached = {"engine.order": "weighted", "engine.cached_token_s": 0.1}
    weights = weights_of(make_candidate(both, cached).scenario)
    assert weights is not None
    assert weights["cached_token_s"] == 0.1
    assert weights_of(make_candidate(both, {**cached, "engine.class_s": {"b": 3.0}}).scenario) is None
    assert "engine.victim" in keys(load(OVERLOAD, ["engine.policy=preemptive"]), "preemptive")


def test_the_class_for_vllm_has_the_weights(base: Scenario) -> None:
    found = weights_of(make_candidate(base, {"engine.policy": "in_time", "engine.late_token_s": 0.5}).scenario)
    assert found is not None
    text = scheduler_text(found)
    for key, value in {**found, "late_after_s": 1.0, "late_token_s": 0.5, "priority_s": 0.0}.items():
        assert f'"{key}": {value!r},' in text


def test_another_end_of_the_run_is_no_difference_in_goodput() -> None:
    idle = load(OVERLOAD | {"workload": workload(60, 0.5)})
    own, other = run(idle), run(make_candidate(idle, {"engine.max_num_batched_tokens": 256}).scenario)
    assert own.summary["slo_attainment"] == other.summary["slo_attainment"] == 1.0
    assert own.summary["duration"] != other.summary["duration"]
    found = held_out([other], [own], "request_goodput").difference
    assert found.mean != 0.0
    assert found.low <= 0.0 <= found.high


def test_the_bound_holds_for_a_policy_that_turns_requests_away(base: Scenario) -> None:
    own = run(base)
    sheds = run(make_candidate(base, {"engine.max_num_queued_reqs": 8, "engine.max_num_batched_tokens": 4096}).scenario)
    assert sheds.summary["rejected"] > 0
    found = held_out([sheds], [own], "request_goodput")
    assert found.bound is not None
    assert found.bound >= sheds.summary["request_goodput"]
    assert held_out([sheds], [own], "mean_ttft_ms").bound is None
