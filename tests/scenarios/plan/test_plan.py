"""Plans against known answers, what their JSON holds, and what they say where nothing holds or the budget ends."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.plan.answer import Plan, write_plan
from scenarios.plan.candidate import make_candidate
from scenarios.plan.goal import chosen_goals
from scenarios.plan.plan import make_plan
from scenarios.plan.text import below, sentence, table
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.studies.study import parse_vary
from simulator.errors import InputError
from tests.command import batchlab
from tests.scenarios.plan.cases import CHAT, ONE_AT_A_TIME, chat

KEYS = [
    "settings", "feasible", "rate", "rate_at_best", "replicas", "gpus", "usd_per_hour", "usd_per_million_output_tokens",
    "binding_slo", "bottleneck", "headroom", "advice", "equal_to_best", "deploy",
]  # fmt: skip


def planned(scenario: Scenario, *goals: str, **options: Any) -> Plan:
    return make_plan(scenario, chosen_goals(goals, scenario), **{"seeds": 2, **options})


def fleet_of_ones() -> Scenario:
    return load(ONE_AT_A_TIME)


@cache
def plan_of_ones() -> Plan:
    return planned(fleet_of_ones(), "p99_ttft_ms<=150")


@cache
def plan_of_chat() -> Plan:
    return planned(chat(), "p99_ttft_ms<=300")


# ---------------------------------------------------------------------------------------------------------- the rate


def test_finds_the_rate_of_a_server_of_one_request_at_a_time() -> None:
    """Five steps of 0.1 s a request: 2 a second, and not more."""
    (answer,) = plan_of_ones().answers
    assert answer.feasible
    assert answer.bounds is not None
    assert answer.bounds.value == pytest.approx(2.0, rel=0.025)
    assert answer.bounds.low <= answer.bounds.value <= answer.bounds.high
    assert (answer.binding and answer.binding.text) == "p99_ttft_ms<=150"
    assert answer.shares.bottleneck == "queueing"
    # By the law of scaling: with steps 5 % slower it serves 1 / 1.05 of it, and no queue softens that.
    assert answer.slower == pytest.approx(1 / 1.05 - 1, abs=0.005)
    assert answer.faster == pytest.approx(1 / 0.95 - 1, abs=0.005)


def test_the_rate_is_held_against_what_no_scheduler_betters() -> None:
    """Half a second of work a request: two a second, and twice as many of two replicas."""
    plan = plan_of_ones()
    (answer,) = plan.answers
    assert answer.rate_at_best == pytest.approx(2.0)
    assert answer.entry()["rate_at_best"] == pytest.approx(2.0)
    (line,) = [line for line in below(plan) if line.startswith("at best:")]
    assert line == "at best: upper bound for any scheduler: 2.00 req/s (you reach 99%)"
    (twice,) = planned(load({**ONE_AT_A_TIME, "replicas": 2}), "p99_ttft_ms<=150").answers
    assert twice.rate_at_best == pytest.approx(4.0)


def test_a_short_run_may_carry_more_than_can_be_served_for_ever() -> None:
    plan = planned(
        load({**ONE_AT_A_TIME, "workload": {**ONE_AT_A_TIME["workload"], "requests": 20}}), "p99_ttft_ms<=9e3"
    )
    (answer,) = plan.answers
    assert answer.bounds is not None
    assert answer.rate_at_best == pytest.approx(2.0)
    if answer.bounds.value > 2.001:
        assert any("a run this short ends before its queue is full" in line for line in below(plan))


def test_without_a_proof_nothing_is_said_of_the_best() -> None:
    """Here a step gives several tokens."""
    drafts = {"method": "ngram", "num_speculative_tokens": 2, "acceptance": {"rates": [0.5, 0.5]}}
    engine = {**ONE_AT_A_TIME["engine"], "policy": "vllm", "speculative_config": drafts}
    plan = planned(load({**ONE_AT_A_TIME, "engine": engine}), "p99_ttft_ms<=300")
    assert plan.answers[0].bounds is not None
    assert plan.answers[0].rate_at_best is None
    assert not any(line.startswith("at best:") for line in below(plan))


def test_a_metric_of_ones_own_is_a_goal_like_any_other(tmp_path: Path) -> None:
    """Here it is p99_ttft_ms under another name, and so it has the same answer."""
    path = tmp_path / "own.py"
    path.write_text(
        "from simulator.metrics.summary import METRICS\nfrom simulator.metrics.metric import Metric\n"
        "METRIC = Metric('late_ms', 'late', 'ms', '', METRICS['p99_ttft_ms'].of, -1)\n"
    )
    scenario = load({**ONE_AT_A_TIME, "measure": {"metrics": [f"{path}:METRIC"]}})
    (answer,) = planned(scenario, "late_ms<=150").answers
    (known,) = plan_of_ones().answers
    assert answer.bounds is not None
    assert known.bounds is not None
    assert answer.bounds.value == known.bounds.value
    assert (answer.binding and answer.binding.text) == "late_ms<=150"
    with pytest.raises(InputError, match="of late_ms, less is better"):
        chosen_goals(["late_ms>=150"], scenario)
    with pytest.raises(InputError, match="did you mean `late_ms`"):
        chosen_goals(["lat_ms<=150"], scenario)
    with pytest.raises(InputError, match="not computed for single classes"):
        chosen_goals(["alike:late_ms<=150"], scenario)


def test_a_limit_without_latency_still_ends_where_the_queue_grows() -> None:
    plan = planned(fleet_of_ones(), "p99_tpot_ms<=1000")
    (answer,) = plan.answers
    assert answer.bounds is not None
    assert answer.bounds.value < 2.4
    assert (answer.binding and answer.binding.text) == "saturated<=0"
    assert below(plan)[0].startswith("binds:   saturation breaks first; the time of its slowest requests: ")


def test_prices_are_those_of_a_run_at_the_rate(tmp_path: Path) -> None:
    plan = planned(chat(), "p99_ttft_ms<=300", seeds=1)
    (answer,) = plan.answers
    write_plan(tmp_path, plan, chat())
    (written,) = (tmp_path / "candidates").iterdir()
    summary = scenarios.run(written).summary
    assert summary["p99_ttft_ms"] <= 300
    assert summary["slo_met"]
    assert summary["usd_per_million_output_tokens"] == pytest.approx(answer.usd_per_million)
    assert answer.usd_per_hour == 1.8
    found = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert "cpu_s" not in found
    assert found["candidates"] == plan.to_json()["candidates"]


def test_the_json_has_the_keys_of_the_contract() -> None:
    found = planned(chat(), "p99_ttft_ms<=300", gpus=["h100", "a100-80gb"]).to_json()
    assert list(found) == ["find", "slo", "candidates", "runs", "cpu_s"]
    assert (found["find"], found["slo"]) == ("rate", ["p99_ttft_ms<=300"])
    for candidate in found["candidates"]:
        assert list(candidate) == KEYS
        assert list(candidate["rate"]) == ["value", "low", "high"]
        assert candidate["deploy"].startswith("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 8 ")
        assert candidate["bottleneck"] in ("memory", "compute", "bandwidth", "host", "queueing", "link")
    prices = [candidate["usd_per_million_output_tokens"] for candidate in found["candidates"]]
    assert prices == sorted(prices)
    json.dumps(found, allow_nan=False)


def test_equal_plans_are_equal() -> None:
    one, other = plan_of_chat().to_json(), planned(chat(), "p99_ttft_ms<=300").to_json()
    assert {**one, "cpu_s": 0} == {**other, "cpu_s": 0}


def test_candidates_that_decide_alike_are_equal_and_a_worse_one_is_not() -> None:
    plan = planned(chat(), "p99_ttft_ms<=300", policies="chunked_prefill,vllm,static", seeds=3)
    by_policy = {str(answer.candidate.settings["engine.policy"]): answer for answer in plan.answers}
    assert by_policy["vllm"].equal_to_best
    assert by_policy["chunked_prefill"].equal_to_best
    assert not by_policy["static"].equal_to_best
    assert plan.answers[-1] is by_policy["static"]
    assert "cannot be told apart from" in sentence(plan)
    assert by_policy["static"].deploy.startswith("# ")


def test_drawn_traffic_has_an_interval_over_its_seeds() -> None:
    (answer,) = planned(chat(), "p99_ttft_ms<=300", seeds=3).answers
    assert answer.bounds is not None
    assert len(answer.bounds.draws) == 3
    mean = math.exp(answer.bounds.draws.mean())
    assert answer.bounds.value == pytest.approx(mean)
    assert answer.bounds.low < mean < answer.bounds.high


def test_seeds_that_agree_are_as_sure_as_the_bracket() -> None:
    """Prompts differ from seed to seed, and cost nothing here: each seed has the same largest rate."""
    drawn = load(ONE_AT_A_TIME, ["workload.classes.0.input={dist: uniform, min: 5, max: 15}"])
    (answer,) = planned(drawn, "p99_ttft_ms<=150", seeds=2).answers
    assert answer.bounds is not None
    assert len(answer.bounds.draws) == 2
    assert answer.bounds.value == answer.bounds.low
    assert answer.bounds.low < answer.bounds.high < 1.1 * answer.bounds.low


# ------------------------------------------------------------------------------------------------------ the replicas


@pytest.mark.parametrize(("rate", "fewest"), [(1.5, 1), (3.9, 2), (9.0, 5)])
def test_finds_the_fewest_replicas(rate: float, fewest: int) -> None:
    """Two requests a second each, dealt in turn."""
    plan = planned(fleet_of_ones(), "p99_ttft_ms<=150", find="replicas", rate=rate)
    (answer,) = plan.answers
    assert (answer.replicas, answer.gpus) == (fewest, fewest)
    assert answer.bounds is not None
    assert answer.bounds.low <= answer.bounds.value <= answer.bounds.high
    assert rate <= answer.bounds.value <= 2.02 * max(fewest, 1) * 1.15
    assert answer.usd_per_hour == 3.0 * fewest
    if fewest > 1:
        assert f"on each of {fewest} replicas" in answer.deploy


def test_says_that_no_number_of_replicas_is_enough() -> None:
    plan = planned(fleet_of_ones(), "p99_ttft_ms<=50", find="replicas", rate=3.0)
    (answer,) = plan.answers
    assert not answer.feasible
    assert answer.bounds is None
    assert "A replica holds at no rate: p99_ttft_ms is 100 (limit 50)" in answer.note


def test_a_fleet_of_groups_has_no_number_of_replicas() -> None:
    scenario = chat(fleet=[{"name": "a", "replicas": 1}, {"name": "b", "replicas": 2}])
    with pytest.raises(InputError, match="fleet of groups"):
        planned(scenario, "p99_ttft_ms<=300", find="replicas", rate=20.0)
    (answer,) = planned(scenario, "p99_ttft_ms<=300", seeds=1).answers
    assert answer.gpus == 3


# ------------------------------------------------------------------------------------------------- the configuration


def test_finds_the_best_settings() -> None:
    axes = [parse_vary("engine.max_num_seqs=1,2,4,8,16"), parse_vary("engine.max_num_batched_tokens=64,256")]
    plan = planned(chat(), "p99_ttft_ms<=300", "p99_tpot_ms<=30", find="config", rate=10.0, axes=axes, seeds=1)
    best = plan.answers[0]
    assert best.feasible
    assert best.candidate.settings["engine.max_num_seqs"] in (8, 16)
    assert len(plan.answers) <= 5
    assert [answer.feasible for answer in plan.answers] == sorted((a.feasible for a in plan.answers), reverse=True)


def test_the_nearest_miss_comes_first_with_its_remedy() -> None:
    axes = [parse_vary("engine.max_num_seqs=1,2,4")]
    plan = planned(chat(), "p99_ttft_ms<=300", find="config", rate=60.0, axes=axes, seeds=1)
    assert not any(answer.feasible for answer in plan.answers)
    rates = [answer.bounds.value for answer in plan.answers if answer.bounds is not None]
    assert rates == sorted(rates, reverse=True)
    assert plan.answers[0].candidate.settings["engine.max_num_seqs"] == 4
    assert plan.answers[0].headroom is not None
    assert plan.answers[0].headroom < 0
    assert "(run" in plan.answers[0].advice
    assert sentence(plan).startswith("No candidate meets the SLO at 60.0 requests/s. The nearest is max_num_seqs 4: ")


def test_looks_around_where_nothing_is_varied() -> None:
    scenario = chat(engine={"policy": "chunked_prefill"}, hardware={"gpu": "h100", "tensor_parallel": 2})
    from scenarios.plan.candidate import space

    found = space(scenario, by_default=True).candidates
    settings = [candidate.settings for candidate in found]
    assert {setting["engine.policy"] for setting in settings} == {"chunked_prefill", "continuous"}
    assert {setting.get("hardware.tensor_parallel", 2) for setting in settings} == {1, 2}
    assert {candidate.gpus(candidate.scenario.replicas) for candidate in found} == {2}
    assert not any("engine.enable_prefix_caching" in setting for setting in settings)  # no prompt says what it holds


# --------------------------------------------------------------------------------------------- what a reader is told


def test_a_budget_that_ends_says_what_it_left_open() -> None:
    plan = planned(chat(), "p99_ttft_ms<=300", gpus=["h100", "a100-80gb"], budget_s=1e-9)
    assert not any(answer.feasible for answer in plan.answers)
    assert all("budget ended" in answer.note for answer in plan.answers)
    assert any("budget" in note for note in plan.notes)


def test_gpus_are_compared_on_an_equal_footing() -> None:
    workload = {**CHAT["workload"], "requests": 100}
    measured = {**CHAT, "workload": workload, "hardware": {"gpu": "h100"}, "cost": {"kind": "profile"}}
    plan = planned(load(measured), "p99_ttft_ms<=300", gpus=["h100", "l4"], seeds=1)
    assert {answer.candidate.scenario.cost.kind for answer in plan.answers} == {"roofline"}
    assert any("no profile of llama-3.1-8b on l4" in note for note in plan.notes)
    alone = planned(load(measured), "p99_ttft_ms<=300", gpus=["h100", "a100-80gb", "l40s"], seeds=1)
    assert {answer.candidate.scenario.cost.kind for answer in alone.answers} == {"profile"}


def test_a_candidate_that_does_not_fit_says_why() -> None:
    scenario = chat(model="llama-3.1-70b", hardware={"gpu": "h100", "tensor_parallel": 4}, cost={"kind": "roofline"})
    plan = planned(scenario, "p99_ttft_ms<=3000", axes=[parse_vary("hardware.tensor_parallel=1,4")], seeds=1)
    assert [answer.feasible for answer in plan.answers] == [True, False]
    assert "llama-3.1-70b needs" in plan.answers[1].note


def test_the_text_is_short_and_says_all() -> None:
    plan = plan_of_chat()
    said = [line.partition(":")[0] for line in below(plan)]
    assert said == ["binds", "unsure", "at best", "change", "deploy"]
    assert len(table(plan)) == 2
    assert "meets the SLO up to" in sentence(plan)


def test_a_table_tells_candidates_apart_and_nothing_more() -> None:
    axes = [parse_vary("engine.max_num_seqs=8,16")]
    plan = planned(chat(), "p99_ttft_ms<=300", gpus=["h100"], policies="chunked_prefill,static", axes=axes, seeds=1)
    head, *lines = table(plan)
    assert "GPUs" not in head  # one a replica
    of_each = {f"max_num_seqs {seqs}, {policy}" for seqs in (8, 16) for policy in ("chunked_prefill", "static")}
    assert {line[0] for line in lines} == of_each
    two = planned(chat(hardware={"gpu": "h100", "tensor_parallel": 2}), "p99_ttft_ms<=300", seeds=1)
    assert dict(zip(*table(two), strict=True))["GPUs"] == "2"


CASES = {
    "--slo p99_ttf_ms<=1": ["did you mean `p99_ttft_ms`?"],
    "--find rates": ["--find", "did you mean `rate`?"],
    "--gpus h10": ["--gpus", "did you mean", "h100"],
    "--policies statc": ["--policies", "did you mean `static`?"],
    "--policies static:max_num_batched_token=5": ["does not take max_num_batched_token"],
    "--rate 0": ["--rate", "above 0"],
    "--budget-s -1": ["--budget-s", "above 0"],
    "--vary engine.max_num_seq=1,2": ["max_num_seq", "did you mean `max_num_seqs`?"],
    "--vary engine.policy=static --policies static": ["engine.policy is varied already"],
    "--vary replicas=x": ["replicas"],
}


@pytest.mark.parametrize("typed", CASES)
def test_bad_input_is_named(typed: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(dict(CHAT)), encoding="utf-8")
    done = batchlab("plan", "c.yaml", "--slo", "p99_ttft_ms<=300", *typed.split(" "), cwd=tmp_path)
    assert done.code == 2, done.err
    assert done.out == ""
    for words in CASES[typed]:
        assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.usefixtures("blank_pictures")
def test_the_command_writes_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(dict(CHAT)), encoding="utf-8")
    asked = ["plan", "c.yaml", "--slo", "p99_ttft_ms<=300", "--gpus", "h100,a100-80gb", "--seeds", "2", "--out", "out"]
    done = batchlab(*asked, cwd=tmp_path)
    assert done.code == 0, done.err
    assert " meets the SLO up to " in done.out
    assert "deploy:  vllm serve" in done.out
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<svg" in report
    assert "p99_ttft_ms" in report
    again = batchlab(*asked, cwd=tmp_path)
    assert again.code == 2
    assert "holds a plan" in again.err
    over = batchlab(*asked, "--overwrite", "--json", cwd=tmp_path)
    assert over.code == 0
    assert list(json.loads(over.out)["candidates"][0]) == KEYS
    (scenario,) = (tmp_path / "out" / "candidates").iterdir()
    assert batchlab("run", scenario, "--out", "run", cwd=tmp_path).code == 0


def test_advice_relieves_what_the_worst_requests_wait_for() -> None:
    from scenarios.plan.bottleneck import Shares
    from scenarios.plan.goal import Goal
    from scenarios.plan.plan import proposals

    candidate, late = make_candidate(chat(), {}), Goal("p99_ttft_ms", 300)
    seqs, budget = {"engine.max_num_seqs": 16}, {"engine.max_num_batched_tokens": 512}
    for shares, first in (
        ({"compute": 0.6, "queueing": 0.2, "memory": 0.05}, [budget, seqs]),
        ({"compute": 0.2, "queueing": 0.6}, [seqs, budget]),
        ({"memory": 0.9, "compute": 0.05, "queueing": 0.05}, [{"hardware.gpu_memory_utilization": 0.95}, budget]),
    ):
        assert list(proposals(candidate, late, Shares(shares)))[:2] == first


def test_a_change_is_a_candidate_of_its_own() -> None:
    one = make_candidate(chat(), {"engine.policy": "static", "engine.max_num_seqs": 4})
    other = one.with_settings({"engine.max_num_seqs": 2})
    assert other.scenario.engine.parameter("max_num_seqs") == 2
    assert other.scenario.engine.policy == "static"


def test_what_is_rejected_is_no_success() -> None:
    """All prompts but the shortest are too large for the memory: the percentiles of the others are fine."""
    scenario = chat(hardware={"gpu": "a100-80gb", "num_gpu_blocks": 12})
    (answer,) = planned(scenario, "p99_ttft_ms<=5000", seeds=1).answers
    assert not answer.feasible
    assert " % of the requests are rejected (" in answer.note
    assert "need" in answer.note
