"""Logs of real servers: each tool's layout by hand, how it is recognised, and what is said of bad ones."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.measured import MeasuredRun, formats, read_measured, read_timeseries
from scenarios.measured.measured_run import workload_of
from simulator.errors import InputError
from tests.scenarios.traces.test_read import jsonl, write
from tests.shared_data import shared

BENCH = {
    "date": "20260101-000000",
    "duration": 9.5,
    "completed": 2,
    "input_lens": [100, 50, 70],
    "output_lens": [3, 1, 0],
    "ttfts": [0.5, 0.25, 0.0],
    "itls": [[0.1, 0.3], [], []],
    "start_times": [1000.0, 1002.0, 1003.0],
    "generated_texts": ["a b c", "d", ""],
    "errors": ["", "", "Bad Gateway"],
    "mean_ttft_ms": 375.0,
}


def test_a_format_is_a_file_of_the_folder() -> None:
    files = {path.stem for path in Path(formats.__path__[0]).glob("*.py")} - {"__init__"}
    assert {"plain_csv" if name == "csv" else name for name in formats.log_formats()} == files
    assert list(formats.log_formats()) == sorted(formats.log_formats())
    for each in formats.log_formats().values():
        assert (each.keys is None) != (each.columns is None), each.name


def aiperf(number: int, start_ns: int, **changes: Any) -> dict[str, Any]:
    metrics = {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "time_to_first_token": {"value": 250.0, "unit": "ms"},
        "request_latency": {"value": 1.25, "unit": "s"},
        "output_sequence_length": {"value": 11, "unit": "tokens"},
        "inter_chunk_latency": {"value": [5.0, 4.0], "unit": "ms"},
    }
    metadata = {
        "session_num": number,
        "x_request_id": f"id-{number}",
        "request_start_ns": start_ns,
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    return {"metadata": metadata, "metrics": metrics, "error": None} | changes


def guidellm(start_s: float, **changes: Any) -> dict[str, Any]:
    return {
        "request_id": f"at {start_s}",
        "prompt_tokens": 256,
        "output_tokens": 5,
        "request_start_time": start_s,
        "request_end_time": start_s + 2.0,
        "request_latency": 2.0,
        "time_to_first_token_ms": 500.0,
        "inter_token_latency_ms": 350.0,
        "info": {
            "timings": {
                "request_start": start_s,
                "first_token_iteration": start_s + 0.5,
                "last_token_iteration": start_s + 1.9,
            }
        },
    } | changes


def engine(number: int, arrival: float, first: float, **changes: Any) -> dict[str, Any]:
    """A row of LLMServingSim's log: a wall clock, and one that is 1.7e9 s behind it."""
    return {
        "request_id": f"bench-{number}",
        "input_toks": 20,
        "output_toks": 5,
        "arrival_time": 1.7e9 + arrival,
        "queued_ts": 100.0 + arrival + 0.01 * number,
        "scheduled_ts": 100.0 + arrival + 0.5,
        "first_token_ts": 100.0 + first,
        "last_token_ts": 100.0 + first + 2.0,
    } | changes


def read(folder: Path, text: str, **options: Any) -> MeasuredRun:
    return read_measured(write(folder, text), **options)


def test_vllm_bench(tmp_path: Path) -> None:
    for text in (json.dumps(BENCH), json.dumps(BENCH, indent=2)):
        log = read(tmp_path, text)
        assert log.format == "vllm_bench"
        assert log.at_client
        assert (log.rows, log.row.tolist()) == (3, [0, 1])
        assert log.arrival_s.tolist() == [0, 2]
        assert log.ttft_s.tolist() == [0.5, 0.25]
        assert log.e2el_s.tolist() == pytest.approx([0.9, 0.25])
        assert log.tpot_s[0] == pytest.approx(0.2)
        assert math.isnan(log.tpot_s[1])
        assert log.makespan_s == pytest.approx(2.25)
        assert np.isnan(log.queue_s).all()
        assert "left out 1 row: they failed" in log.notes[1]


def test_vllm_bench_of_another_version(tmp_path: Path) -> None:
    new = BENCH | {"latencies": [1.0, 0.25, 0.0]}
    assert read(tmp_path, json.dumps(new)).e2el_s.tolist() == [1.0, 0.25]
    old = {key: value for key, value in BENCH.items() if key not in ("start_times", "errors")}
    log = read(tmp_path, json.dumps(old))
    assert not log.has_arrivals
    assert log.makespan_s == 9.5
    assert len(log.row) == 2
    with pytest.raises(InputError, match="no arrivals to replay"):
        workload_of(log)


def test_appended_results_need_a_choice(tmp_path: Path) -> None:
    text = jsonl(BENCH, BENCH | {"ttfts": [0.6, 0.25, 0.0]})
    with pytest.raises(InputError, match="holds 2 results") as caught:
        read(tmp_path, text)
    assert "--benchmark 1" in str(caught.value)
    assert read(tmp_path, text, benchmark=2).ttft_s[0] == 0.6
    with pytest.raises(InputError, match="no result 3"):
        read(tmp_path, text, benchmark=3)


def test_aiperf(tmp_path: Path) -> None:
    failed = aiperf(1, 6_000_000_000, error={"code": 499}, metrics={"error_isl": {"value": 550, "unit": "tokens"}})
    warm = aiperf(9, 1, metadata={"benchmark_phase": "warmup"})
    log = read(tmp_path, jsonl(warm, aiperf(0, 5_000_000_000), failed, aiperf(2, 8_000_000_000)))
    assert log.format == "aiperf"
    assert (log.rows, log.row.tolist(), log.request_ids) == (3, [0, 2], ("id-0", "id-2"))
    assert log.arrival_s.tolist() == [0, 3]
    assert log.ttft_s.tolist() == [0.25, 0.25]
    assert log.tpot_s.tolist() == pytest.approx([0.1, 0.1])
    assert log.makespan_s == pytest.approx(4.25)


def test_guidellm(tmp_path: Path) -> None:
    old = {
        "prompt_tokens": 8,
        "output_tokens": 1,
        "start_time": 0.5,
        "request_latency": 1,
        "time_to_first_token_ms": 900,
    }
    requests = {"successful": [guidellm(7.0), guidellm(3.5), old], "errored": [{}], "incomplete": []}
    text = json.dumps({"benchmarks": [{"requests": requests}]}, indent=1)
    log = read(tmp_path, text)
    assert log.format == "guidellm"
    assert log.rows == 4
    assert log.arrival_s.tolist() == [0, 3, 6.5]  # in order of arrival, not of ending
    assert log.ttft_s.tolist() == pytest.approx([0.9, 0.5, 0.5])
    assert log.e2el_s.tolist() == pytest.approx([1.0, 1.9, 1.9])  # to the last token, not to the response's end
    assert log.tpot_s[1] == pytest.approx(0.35)
    two = json.dumps({"benchmarks": [{"requests": requests}] * 2})
    with pytest.raises(InputError, match="holds 2 benchmarks"):
        read(tmp_path, two)
    assert len(read(tmp_path, two, benchmark=2).row) == 3


def test_llmservingsim_on_two_clocks(tmp_path: Path) -> None:
    log = read(tmp_path, jsonl(engine(0, 3.0, 4.0), engine(1, 5.0, 6.5)))
    assert log.format == "llmservingsim"
    assert not log.at_client
    assert log.arrival_s.tolist() == pytest.approx([0, 2], abs=1e-6)
    assert log.ttft_s.tolist() == pytest.approx([1.0, 1.5], abs=1e-6)  # from the arrival, not from queued_ts
    assert log.queue_s.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert log.tpot_s.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert any("another clock" in note for note in log.notes)
    same = [engine(n, a, f, arrival_time=100.0 + a) for n, a, f in ((1, 3.0, 4.0), (2, 5.0, 6.5))]
    log = read(tmp_path, jsonl(*same))
    assert log.ttft_s.tolist() == pytest.approx([1.0, 1.5])  # one clock: nothing is moved
    assert len(log.notes) == 1


def test_llmservingsims_own_simulation(tmp_path: Path) -> None:
    header = "instance id,request id,model,input,output,arrival,end_time,latency,queuing_delay,TTFT,TPOT\n"
    log = read(tmp_path, header + "0,1,m,7,2,500000000,9,2000000000,1,1000000000,1\n0,0,m,9,1,0,9,1e9,1,1e9,0\n")
    assert log.format == "llmservingsim_sim"
    assert log.input_tokens.tolist() == [9, 7]
    assert log.e2el_s.tolist() == [1, 2]
    assert log.makespan_s == 2.5


def test_plain_csv_with_stamps_or_latencies(tmp_path: Path) -> None:
    stamps = "arrival_s,input_tokens,output_tokens,first_token_s,last_token_s,scheduled_s,status,preemptions\n"
    log = read(tmp_path, stamps + "10,5,2,11,13,10.5,finished,1\n11,5,2,,,,rejected,0\n12,5,2,13,16,12,finished,0\n")
    assert log.format == "csv"
    assert (log.rows, log.row.tolist()) == (3, [0, 2])
    assert log.arrival_s.tolist() == [0, 2]
    assert log.queue_s.tolist() == [0.5, 0]
    assert log.e2el_s.tolist() == [3, 4]
    assert log.preemptions is not None
    assert log.preemptions.tolist() == [1, 0]
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(
        gzip.compress(b"request_id,arrival_time_s,input_tokens,output_tokens,ttft_ms,e2el_ms\na,0,5,3,100,300\n")
    )
    log = read_measured(packed)
    assert log.request_ids == ("a",)
    assert log.tpot_s.tolist() == pytest.approx([0.1])
    assert log.preemptions is None


def test_a_log_is_replayed_in_order_of_arrival(tmp_path: Path) -> None:
    workload = workload_of(read(tmp_path, jsonl(engine(1, 5.0, 6.5, input_toks=30), engine(0, 3.0, 4.0))))
    assert workload.arrival_s.tolist() == pytest.approx([0, 2], abs=1e-6)
    assert workload.input_tokens.tolist() == [20, 30]
    assert workload.request_ids == ["bench-0", "bench-1"]


BAD = [
    ("", "the file is empty", ""),
    ("{}", "unknown format of a log", ""),
    ('{"a": 1,\n "b": }', "this is no complete JSON document", ":2:7"),
    ("[1]", "a JSON array is not a known log", ":1"),
    (json.dumps({"mean_ttft_ms": 1.0, "completed": 3}), "lacks the times of single requests", ""),
    (json.dumps({"input_config": {}, "request_latency": {"avg": 1}}), "AIPerf's summary", ""),
    (json.dumps(BENCH | {"itls": 3}), "itls is not a list", ""),
    (json.dumps(BENCH | {"itls": [[], []]}), "itls has 2 entries, ttfts 3", ""),
    (json.dumps(BENCH | {"ttfts": ["x", 1, 1]}), "request 0: ttfts is not a number", ""),
    (json.dumps(BENCH | {"itls": [["x"], [], []]}), "request 0: itls is not a list of numbers", ""),
    (json.dumps(BENCH | {"errors": ["a", "b", "c"]}), "no request in it was served", ""),
    (jsonl(aiperf(0, 1), aiperf(1, 2, metrics={})), "metrics has no input_sequence_length", ":2"),
    (jsonl(aiperf(0, 1), aiperf(0, 2)), "the request 'id-0' occurs twice", ":2"),
    (jsonl(aiperf(0, 1)) + "{cut", "not a whole JSON object", ":2"),
    (jsonl(aiperf(0, 1, metrics=None)), "metrics is not an object", ":1"),
    (json.dumps({"benchmarks": []}), "benchmarks is not a list of runs", ""),
    (json.dumps({"benchmarks": [{"requests": {}}]}), r"benchmarks\[0\].requests.successful is not a list", ""),
    (
        json.dumps({"benchmarks": [{"requests": {"successful": [guidellm(0, output_tokens=None)]}}]}),
        r"benchmarks\[0\].requests.successful\[0\]: output_tokens is missing",
        "",
    ),
    (jsonl(engine(0, 1.0, 2.0), engine(1, 1.0, 0.5)), "a time to first token of -0.5", ":2"),
    (jsonl(engine(0, 1.0, 2.0, last_token_ts=101.0)), "comes before the first", ":1"),
    (jsonl(engine(0, 1.0, 2.0, scheduled_ts=105.0)), "scheduled after its first token", ":1"),
    (jsonl(engine(0, 1.0, 2.0, scheduled_ts=None)), "scheduled_ts is missing", ":1"),
    ("a,b\n1,2\n", "no column input_tokens, output_tokens", ":1"),
    ("arrival_s,input_tokens,output_tokens\n1,2,3\n", "no latencies in it", ":1"),
    ("arrival_s,input_tokens,output_tokens,ttft_ms,e2el_ms\n1,2,3,4\n", "4 fields, but the header has 5", ":2"),
    ("arrival_s,input_tokens,output_tokens,ttft_ms,e2el_ms\n1,2,3,4,x\n", "e2el_ms is not a number", ":2"),
    ("arrival_s,input_tokens,output_tokens,ttft_ms,e2el_ms\n1,2,3,4,9e12\n", "is it in another unit", ":2"),
]


@pytest.mark.parametrize(("text", "said", "place"), BAD)
def test_bad_logs_say_what_and_where(text: str, said: str, place: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        read_measured(path)
    assert str(caught.value).startswith(f"{path}{place}: ")


def test_the_format_can_be_given_but_must_be_known(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(BENCH), format_="vllm_bench").format == "vllm_bench"
    with pytest.raises(InputError, match="unknown format of a log: 'vlm_bench'") as caught:
        read(tmp_path, json.dumps(BENCH), format_="vlm_bench")
    assert "vllm_bench" in str(caught.value)
    with pytest.raises(InputError, match="--benchmark does not apply to aiperf"):
        read(tmp_path, jsonl(aiperf(0, 1)), benchmark=1)


def test_timeseries(tmp_path: Path) -> None:
    ticks = read_timeseries(write(tmp_path, "t,prompt_throughput,running,waiting\n1.0,5,9,0\n2.0,5,19,1\n"))
    assert ticks.time_s.tolist() == [1, 2]
    assert ticks.running.tolist() == [9, 19]
    assert ticks.waiting.tolist() == [0, 1]
    for text, said in (("t,running\n", "no column waiting"), ("t,running,waiting\n", "no rows")):
        with pytest.raises(InputError, match=said):
            read_timeseries(write(tmp_path, text))
    with pytest.raises(InputError, match="t does not grow: 1 after 2") as caught:
        read_timeseries(path := write(tmp_path, "t,running,waiting\n2,1,1\n1,1,1\n"))
    assert str(caught.value).startswith(f"{path}:3: ")


@pytest.mark.shared
@pytest.mark.parametrize("case", ["rtxpro6000_llama31_8b_tp1", "rtxpro6000_qwen3_30b_a3b_dp2ep2"])
def test_real_logs(case: str) -> None:
    log = read_measured(shared(f"measured/ground_truth/llmservingsim_vllm/{case}/vllm_requests.jsonl.gz"))
    assert len(log.row) == log.rows == 300
    assert np.isfinite(log.queue_s).all()
    assert float(np.max(log.arrival_s)) == pytest.approx(29.2, abs=0.2)


def sample(folder: Path, kept: int, served: int, place: str = "metrics") -> Path:
    """A file of GuideLLM that keeps some of its requests."""
    totals = {"request_totals": {"successful": served, "errored": 0, "incomplete": 0, "total": served}}
    run = {"requests": {"successful": [guidellm(float(start)) for start in range(kept)]}, "end_time": 1000.0 + served}
    run |= {"start_time": 1000.0, **({"metrics": totals} if place == "metrics" else totals)}
    return write(folder, json.dumps({"benchmarks": [run]}))


@pytest.mark.parametrize("place", ["metrics", "top"])
def test_a_sample_of_the_requests_is_known_by_the_totals(tmp_path: Path, place: str) -> None:
    log = read_measured(sample(tmp_path, 10, 1500, place))
    assert (log.sample_of, log.makespan_s) == (1500, 1500.0)
    assert "keeps 10 of 1,500 served requests" in log.notes[-1]
    assert "--sample-requests" in log.notes[-1]
    with pytest.raises(InputError, match="keeps 10 of 1,500 requests: a replay of them is not the traffic"):
        workload_of(log)
    whole = read_measured(sample(tmp_path, 10, 10, place))
    assert whole.sample_of is None
    assert whole.makespan_s == pytest.approx(10.9)


def test_totals_of_vllm_bench_are_compared_with_its_rows(tmp_path: Path) -> None:
    assert len(read(tmp_path, json.dumps(BENCH)).notes) == 2
    assert read(tmp_path, json.dumps(BENCH | {"completed": 20})).sample_of == 20
    empty = BENCH | {"errors": ["", "", ""], "completed": 3}
    assert read(tmp_path, json.dumps(empty)).sample_of is None  # an answer without a token is one of those completed
    other = read(tmp_path, json.dumps(BENCH | {"total_input_tokens": 150, "total_output_tokens": 400}))
    assert other.notes[-1] == "warning: the file counts 400 output tokens, and its rows add up to 4"
