"""A run against a log: errors, score, matching, and which part carries the error where that is known beforehand."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.measured import MeasuredRun, read_measured
from scenarios.runs.result import Result
from scenarios.validate.compare import STATISTICS, Validation, compare, measured_side, to_data, validate
from scenarios.validate.error_parts import diagnose, quiet_requests, slots_when_waiting
from simulator.errors import InputError
from tests.shared_data import shared
from tests.traffic import one_class

SERVER: dict[str, Any] = {
    "seed": 3,
    "hardware": {"num_gpu_blocks": 1500},
    "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 1e-4, "per_context_token_s": 1e-7},
    "workload": one_class(250, 14, (50, 400), (20, 200), name="chat"),
    "engine": {"policy": "chunked_prefill", "max_num_seqs": 24, "max_num_batched_tokens": 512},
}


@cache
def served(*overrides: str) -> Result:
    return scenarios.run(scenarios.load(SERVER, overrides))


def log_of(result: Result, folder: Path, *, columns: tuple[str, ...] = ()) -> MeasuredRun:
    """The run as a server's log: its own table, without some columns."""
    table = result.requests.drop(columns=list(columns))
    path = folder / "log.csv"
    table.to_csv(path, index=False)
    return read_measured(path)


def against(folder: Path, *overrides: str, columns: tuple[str, ...] = ()) -> Validation:
    """The plain server as the measured one, the changed one as the simulation."""
    return validate(log_of(served(), folder, columns=columns), served(*overrides).records)


def test_a_run_against_itself_has_no_error(tmp_path: Path) -> None:
    found = against(tmp_path)
    assert found.score == pytest.approx(0.0, abs=1e-9)
    assert found.matched == "request id"
    assert len(found.numbers()) == 13
    assert all(abs(each.median_size) < 1e-9 for each in found.per_request.values())
    verdict = diagnose(found)
    assert verdict is not None
    assert verdict.carrier == ""
    assert "is right; no part causes more than 0.5 ms of error" in verdict.words[0]


def test_errors_are_what_numpy_says(tmp_path: Path) -> None:
    found = against(tmp_path, "cost.base_s=0.013")
    a, b = served().requests, served("cost.base_s=0.013").requests
    for metric, column in (("ttft", "ttft_ms"), ("tpot", "tpot_ms"), ("e2e", "e2el_ms")):
        x, y = a[column].dropna().to_numpy(), b[column].dropna().to_numpy()
        wanted = [y.mean() / x.mean() - 1, *(np.percentile(y, q) / np.percentile(x, q) - 1 for q in (50, 90, 99))]
        assert [found.errors[metric][name] for name in STATISTICS] == pytest.approx(wanted, rel=1e-9)
    spans = [t["last_token_s"].max() - t["arrival_s"].min() for t in (a, b)]
    assert found.makespan == pytest.approx(spans[1] / spans[0] - 1)
    assert found.throughput["output"] == pytest.approx(spans[0] / spans[1] - 1)
    sizes = [abs(error) for error in found.numbers().values()]
    assert found.score == pytest.approx(sum(sizes) / 13)
    assert abs(found.worst[1]) == max(sizes)
    each = (b["e2el_ms"] / a["e2el_ms"] - 1).abs().median()
    assert found.per_request["e2e"].median_size == pytest.approx(each)
    data = to_data(found)
    assert data["per_request_e2e_median"] == pytest.approx(each)
    assert data["errors"] == {metric: dict(of) for metric, of in found.errors.items()}


def test_scaling_all_of_a_server_scales_every_error(tmp_path: Path) -> None:
    log = log_of(served(), tmp_path)
    slow = replace(
        log, ttft_s=log.ttft_s / 2, tpot_s=log.tpot_s / 2, e2el_s=log.e2el_s / 2, makespan_s=log.makespan_s / 2
    )
    assert all(error == pytest.approx(1.0) for error in validate(slow, served().records).numbers().values())


CAUSES = [
    ("cost.base_s=0.0115", "decode"),
    ("cost.base_s=0.009", "decode"),
    ("engine.max_num_seqs=20", "memory"),
    ("hardware.num_gpu_blocks=260", "memory"),
    ("engine.order=sjf workload.predictor={kind: oracle}", "queueing"),
]


@pytest.mark.parametrize(("change", "part"), CAUSES)
def test_the_part_that_was_changed_carries_the_error(change: str, part: str, tmp_path: Path) -> None:
    changes = change.split(" ", 1)
    verdict = diagnose(against(tmp_path, *changes))
    assert verdict is not None
    assert verdict.carrier == part
    total = sum(each.carries_ms for each in verdict.parts)
    a, b = served().requests, served(*changes).requests
    assert total == pytest.approx((b["e2el_ms"] - a["e2el_ms"]).mean(), rel=1e-6)


def test_prefill_carries_it_where_prompts_are_all_there_is(tmp_path: Path) -> None:
    short = ("workload.classes.0.output={dist: fixed, value: 2}", "workload.classes.0.arrival.rate=3")
    log = log_of(served(*short), tmp_path)
    verdict = diagnose(validate(log, served(*short, "cost.per_token_s=1.5e-4").records))
    assert verdict is not None
    assert verdict.carrier == "prefill"
    assert any("found the server quiet" in text for text in verdict.words)


def test_a_log_without_stamps_of_scheduling_still_tells_decode(tmp_path: Path) -> None:
    found = against(tmp_path, "cost.base_s=0.0115", columns=("scheduled_s",))
    verdict = diagnose(found)
    assert verdict is not None
    assert [part.name for part in verdict.parts] == ["prefill", "decode", "queueing"]
    a, b = served().requests, served("cost.base_s=0.0115").requests
    decode = (b["e2el_ms"] - b["ttft_ms"] - a["e2el_ms"] + a["ttft_ms"]).mean()
    assert verdict.parts[1].carries_ms == pytest.approx(decode)


def test_preemptions_are_told(tmp_path: Path) -> None:
    few = "hardware.num_gpu_blocks=260"
    verdict = diagnose(against(tmp_path, few))
    assert verdict is not None
    count = served(few).summary["preemptions"]
    assert count > 10
    assert f"Preemptions: {served().summary['preemptions']:,} on the server, {count:,} here." in verdict.words
    verdict = diagnose(against(tmp_path, few, columns=("preemptions",)))
    assert verdict is not None
    assert f"Preemptions: {count:,} here; the log does not count them." in verdict.words


def test_slots_and_quiet(tmp_path: Path) -> None:
    side = measured_side(log_of(served(), tmp_path))
    assert slots_when_waiting(side) == 24
    quiet = quiet_requests(side)
    assert len(quiet) >= 5
    assert side.arrival_s[quiet].max() < side.arrival_s.max() / 2


def test_matching_by_order_and_not_at_all(tmp_path: Path) -> None:
    log = log_of(served(), tmp_path, columns=("request_id",))
    found = validate(log, served().records)
    assert found.matched == "order"
    assert found.score == pytest.approx(0.0, abs=1e-9)
    fewer = served("workload.requests=200")
    found = validate(log, fewer.records)
    assert found.matched == ""
    assert not found.per_request
    assert diagnose(found) is None
    assert "the log has 250 requests and the scenario 200" in found.notes[0]
    other = served("seed=4")
    found = validate(log, other.records)
    assert "is it the same workload?" in found.notes[0]


def test_failed_requests_are_left_out_on_both_sides(tmp_path: Path) -> None:
    result = served()
    table = result.requests.drop(columns=["request_id"])
    table.loc[10, "status"] = "rejected"
    table.to_csv(tmp_path / "log.csv", index=False)
    found = validate(read_measured(tmp_path / "log.csv"), result.records)
    assert len(found.measured.names) == len(found.simulated.names) == 249
    assert "10" not in found.simulated.names
    assert found.score == pytest.approx(0.0, abs=1e-9)


def test_what_lies_between_client_and_engine_is_added(tmp_path: Path) -> None:
    found = validate(log_of(served(), tmp_path), served("front_end={fixed_s: 0.02, per_running_s: 0}").records)
    late = found.simulated.ttft_s - found.measured.ttft_s
    assert late == pytest.approx(np.full(250, 0.02))
    assert found.errors["tpot"]["mean"] == pytest.approx(0.0, abs=1e-9)


def test_without_arrivals_there_is_no_makespan_error_and_no_verdict(tmp_path: Path) -> None:
    log = log_of(served(), tmp_path)
    nowhere = np.full(250, np.nan)
    found = validate(replace(log, arrival_s=nowhere, scheduled_s=nowhere, makespan_s=math.nan), served().records)
    assert len(found.numbers()) == 12
    assert to_data(found)["makespan"] is None
    assert diagnose(found) is None


def test_nothing_finished_is_an_error(tmp_path: Path) -> None:
    records = served().records
    unserved = replace(records, requests=replace(records.requests, status=np.ones(250, dtype=np.int64)))
    with pytest.raises(InputError, match="finished no request"):
        validate(log_of(served(), tmp_path), unserved)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("case", "score", "worst"),
    [("rtxpro6000_llama31_8b_tp1", 0.0235, 0.087), ("rtxpro6000_qwen3_30b_a3b_dp2ep2", 0.063, 0.36)],
)
def test_the_published_simulators_scores_come_out(case: str, score: float, worst: float) -> None:
    folder = shared(f"measured/ground_truth/llmservingsim_vllm/{case}")
    server = measured_side(read_measured(folder / "vllm_requests.jsonl.gz"))
    peer = measured_side(read_measured(folder / "peer_llmservingsim_requests.csv.gz"))
    found = compare(server, peer, "order")
    assert found.score == pytest.approx(score, abs=5e-4)
    assert abs(found.worst[1]) == pytest.approx(worst, abs=5e-3)
    assert found.worst[0] == "ttft p50"


def test_a_sample_is_compared_as_a_distribution_and_its_rates_are_scaled(tmp_path: Path) -> None:
    """A tenth of the requests has the same latencies, but a tenth of the load: it tells no parts of an error."""
    log = log_of(served(), tmp_path)
    kept = np.arange(0, len(log.row), 10)
    columns = ("row", "arrival_s", "scheduled_s", "input_tokens", "output_tokens", "ttft_s", "tpot_s", "e2el_s")
    some = {name: getattr(log, name)[kept] for name in columns}
    names = None if log.request_ids is None else tuple(log.request_ids[place] for place in kept.tolist())
    for request_ids in (names, None):
        part = replace(log, **some, request_ids=request_ids, preemptions=None, sample_of=len(log.row))
        found = validate(part, served().records)
        assert abs(found.throughput["request"]) < 0.01
        assert diagnose(found) is None
        assert found.matched == ("" if request_ids is None else "request id")
        assert not any("warning" in note for note in found.notes)
    unscaled = validate(replace(log, **some, request_ids=None, preemptions=None, rows=len(kept)), served().records)
    assert unscaled.throughput["request"] > 5
