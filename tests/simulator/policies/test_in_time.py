"""Under overload most requests are late with vLLM's order, and most are in time with this one."""

from scenarios.runs.runner import run
from scenarios.schema.loader import load
from simulator.policies.in_time import InTime
from tests.scenarios.search.overload import OVERLOAD, workload


def test_most_requests_are_in_time_under_overload_and_the_slo_says_what_late_is() -> None:
    plain, found = (run(load(OVERLOAD, [f"engine.policy={policy}"])) for policy in ("chunked_prefill", "in_time"))
    assert found.summary["slo_attainment"] > 2 * plain.summary["slo_attainment"]
    assert "late_after_s: 1.0" in found.scenario_yaml
    assert "input_token_s: 0.001" in found.scenario_yaml
    given = run(load(OVERLOAD, ["engine.policy=in_time", "engine.late_after_s=null"]))
    assert "late_after_s" not in given.scenario_yaml or "late_after_s: null" in given.scenario_yaml
    assert given.summary["slo_attainment"] < found.summary["slo_attainment"]


def test_it_is_vllms_scheduler_where_no_request_waits() -> None:
    assert InTime().max_num_batched_tokens == 512
    idle = load(OVERLOAD | {"workload": workload(20, 0.05)})
    ours, theirs = (
        run(load(idle, [f"engine.policy={policy}", "engine.max_num_batched_tokens=512"])).summary["mean_e2el_ms"]
        for policy in ("in_time", "chunked_prefill")
    )
    assert ours == theirs
