"""Intervals of predictions: what they hold, where they are wider, and what longer steps do at a load."""

from collections.abc import Mapping
from math import log
from typing import Any

import pytest

from scenarios.assembly.workloads import build_workload
from scenarios.prediction.prediction import (
    BASES,
    COVERAGE,
    OUTSIDE,
    check_coverage,
    load_of,
    prediction_words,
    shipped_residuals,
    traits_of,
)
from scenarios.runs.runner import run, run_on
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.hardware.models import find_model
from simulator.metrics.summary import PREDICTED, PREDICTION

LINEAR = {"kind": "linear", "base_s": 5e-3, "per_token_s": 1e-5, "per_context_token_s": 1e-8}
CLOSED = {"process": "closed_loop", "concurrency": 4}


def scenario(arrival: Mapping[str, object] = CLOSED, **changed: Any) -> dict[str, Any]:
    lengths = {"input": {"dist": "fixed", "value": 500}, "output": {"dist": "fixed", "value": 100}}
    return {
        "name": "predicted",
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100"},
        "engine": {"policy": "vllm", "version": "0.19", "max_num_seqs": 128},
        "cost": {"kind": "profile"},
        "workload": {"requests": 200, "arrival": dict(arrival), "classes": [{"name": "all", **lengths}]},
        **changed,
    }


def width(entry: Mapping[str, Any], metric: str) -> float:
    ends = entry["metrics"][metric]
    return float(ends["high"] / ends["low"])


def test_a_closed_loop_has_an_interval_of_each_metric() -> None:
    summary = run(scenario()).summary
    entry = summary[PREDICTION]
    assert (entry["coverage"], entry["basis"], entry["envelope"]) == (COVERAGE, "measured", "inside")
    assert set(entry["metrics"]) == set(PREDICTED)
    assert all(ends["low"] < ends["high"] for ends in entry["metrics"].values())
    rate, answer = (entry["metrics"][name] for name in ("request_throughput", "mean_e2el_ms"))
    assert rate["low"] * answer["high"] == pytest.approx(summary["request_throughput"] * summary["mean_e2el_ms"])
    assert "90 % of similar real servers fell in mean TTFT" in prediction_words(entry)


def test_a_server_whose_first_requests_count_may_be_cold() -> None:
    """A sixth of SGLang's measured runs compiled kernels on the way; a server in service, or warmed up, has them."""
    sglang = {"engine": {"policy": "sglang"}}
    cold, warm = (run(scenario(**sglang, **cut)).summary[PREDICTION] for cut in ({}, {"measure": {"warmup_s": 1.0}}))
    assert width(cold, "mean_ttft_ms") > 1.5 * width(warm, "mean_ttft_ms")
    open_loop = run(scenario({"process": "poisson", "rate": 1}, **sglang)).summary[PREDICTION]
    assert width(open_loop, "mean_ttft_ms") < width(cold, "mean_ttft_ms")


def test_costs_of_the_users_own_have_none() -> None:
    assert PREDICTION not in run(scenario(cost=LINEAR)).summary


def test_a_roofline_is_less_sure_than_kernels() -> None:
    measured, roofline = (run(scenario(cost={"kind": kind})).summary[PREDICTION] for kind in ("profile", "roofline"))
    assert roofline["basis"] == "roofline"
    assert width(roofline, "mean_tpot_ms") > width(measured, "mean_tpot_ms")


def test_outside_of_the_envelope_it_says_so_and_how_far() -> None:
    inside = run(scenario(cost={"kind": "roofline"})).summary[PREDICTION]
    outside = run(scenario(cost={"kind": "roofline"}, hardware={"gpu": "l4"})).summary[PREDICTION]
    assert outside["envelope"] == "outside"
    assert "outside the measured envelope: no measured run of a server on l4" in outside["why"]
    assert width(outside, "mean_tpot_ms") > 1.3 * width(inside, "mean_tpot_ms")


def test_what_costs_nothing_for_want_of_rows_is_said() -> None:
    """Of unequal contexts there are rows on RTX PRO 6000, and none on H100."""
    why = {gpu: run(scenario(hardware={"gpu": gpu})).summary[PREDICTION]["why"] for gpu in ("h100", "rtx-pro-6000")}
    said = "assumed: requests of mixed length cost as much as equal ones (not measured)"
    assert (said in why["h100"], said in why["rtx-pro-6000"]) == (True, False)


def test_near_saturation_an_error_of_the_steps_is_everything() -> None:
    quiet, busy = (run(scenario({"process": "poisson", "rate": rate})).summary[PREDICTION] for rate in (2, 36))
    assert log(width(busy, "mean_e2el_ms")) > 3 * log(width(quiet, "mean_e2el_ms"))
    assert quiet["metrics"]["request_throughput"]["low"] > 1.8  # the rate of arrivals, with the last request's end
    assert width(busy, "request_throughput") > width(quiet, "request_throughput")


@pytest.mark.parametrize(("rate", "factor"), [(5, 1.3), (15, 0.8), (15, 1.3), (30, 1.3), (60, 1.3), (60, 0.8)])
def test_longer_steps_do_what_a_run_with_them_does(rate: float, factor: float) -> None:
    chosen = load(scenario({"process": "poisson", "rate": rate}))
    workload = build_workload(chosen)
    plain, other = (run_on(chosen, workload, step_time=each) for each in (1.0, factor))
    found = load_of(plain.records, 128)
    assert found is not None
    decode_s = [(each.summary["mean_e2el_ms"] - each.summary["mean_ttft_ms"]) / 1e3 for each in (plain, other)]
    assert found.decodes(factor, decode_s[0]) * decode_s[0] == pytest.approx(decode_s[1], rel=0.35)


def test_no_more_run_at_once_than_the_cache_holds() -> None:
    """A request of 500 and 100 tokens takes 32 to 38 blocks, so 800 hold some 22 of them and not 128."""
    small = load(scenario({"process": "poisson", "rate": 15}, hardware={"gpu": "h100", "num_gpu_blocks": 800}))
    found = load_of(run(small).records, 128)
    assert found is not None
    assert 20 <= found.slots <= 26


def test_residuals_are_wider_where_less_is_known() -> None:
    held, model = shipped_residuals(), find_model("llama-3.1-8b")
    traits = [traits_of(basis, model, 1, 64.0) for basis in BASES]
    widths = []
    for of, times in (*((each, 1.0) for each in traits[:-1]), (traits[-2], held.wider[OUTSIDE])):
        low, high = held.factors("vllm", "mean_tpot_ms", 0.9, of, times)
        widths.append(high / low)
    assert widths == sorted(widths)
    assert widths[0] < widths[2]  # measured, extrapolated
    narrow, wide = (held.factors("vllm", "mean_tpot_ms", coverage, traits[0]) for coverage in (0.5, 0.95))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert held.factors("nobody's", "mean_tpot_ms", 0.9, {}) == held.factors("any", "mean_tpot_ms", 0.9, {})


def test_a_run_has_traits() -> None:
    dense, latent, experts = map(find_model, ("llama-3.1-8b", "deepseek-v3", "gpt-oss-120b"))
    assert traits_of("measured", dense, 1, None) == {"basis": "measured", "kind": "dense", "gpus": "one"}
    assert traits_of("measured", latent, 8, 0.0)["kind"] == "latent attention"
    assert traits_of("measured", experts, 4, 5000.0) == {
        "basis": "measured", "kind": "experts", "gpus": "some", "load": "5"
    }  # fmt: skip


def test_a_confidence_is_a_probability() -> None:
    assert check_coverage(0.9) == 0.9
    with pytest.raises(InputError, match=r"from 0.5 to 0.98, not 1.2"):
        check_coverage(1.2)
