"""How fast the simulation loop is, in CPU seconds: figures to read, not to assert.

`make bench` runs them. The loop is `simulate` as a whole: arrivals, engine, records; not reading a trace or metrics.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from simulator.metrics.summary import summarize
from simulator.policies import built_in_policies
from tests.bench.workloads import azure_chat, normal_lengths, per_second, serve_on_h200

POLICIES = built_in_policies()
on_cpu_time = pytest.mark.benchmark(timer=time.process_time, warmup=False)


@on_cpu_time
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rate", [10.0, 100.0])
def test_ten_thousand_requests(benchmark: Any, policy: str, rate: float) -> None:
    workload = normal_lengths(10_000, rate)
    run = benchmark.pedantic(serve_on_h200(workload, policy), rounds=3, iterations=1)
    per_second(benchmark, len(workload))
    assert (run.records.requests.status == 0).all()


@on_cpu_time
@pytest.mark.parametrize("policy", POLICIES)
def test_azure_chat_hour_at_twice_the_rate(benchmark: Any, policy: str) -> None:
    workload = azure_chat(rate_scale=2.0)
    run = benchmark.pedantic(serve_on_h200(workload, policy), rounds=3, iterations=1)
    per_second(benchmark, len(workload))
    assert len(run.records.requests.row) == len(workload)


@on_cpu_time
@pytest.mark.parametrize("requests", [10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("rate", [10.0, 100.0])
def test_cost_per_request_stays_flat(benchmark: Any, requests: int, rate: float) -> None:
    workload = normal_lengths(requests, rate)
    benchmark.pedantic(serve_on_h200(workload, "chunked_prefill"), rounds=1, iterations=1)
    per_second(benchmark, requests)


@on_cpu_time
def test_summary_of_a_hundred_thousand_requests(benchmark: Any) -> None:
    workload = normal_lengths(100_000, 10.0)
    records = serve_on_h200(workload, "chunked_prefill")().records
    benchmark.pedantic(summarize, args=(records,), rounds=3, iterations=1)
    per_second(benchmark, len(workload))


MILLION = """
import resource, sys
from tests.bench.workloads import normal_lengths, serve_on_h200
from simulator.metrics.summary import summarize
summarize(serve_on_h200(normal_lengths(1_000_000, 10.0), "chunked_prefill")().records)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(f"{usage.ru_utime + usage.ru_stime:.1f} CPU s, {usage.ru_maxrss / 2**20:.2f} GiB")
"""


def test_a_million_requests_in_a_process_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """CPU seconds and peak memory, from start to summary."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", MILLION], cwd=root, capture_output=True, text=True, check=True)
    with capsys.disabled():
        print(f"\na million requests at 10/s: {done.stdout.strip()}")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "SCENARIO", "--quiet"]], ids=["help", "run"])
def test_whole_process(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CPU seconds of the command: its help, and a run of 1,000 requests of about 512 in and 512 out."""
    scenario = tmp_path / "thousand.yaml"
    scenario.write_text(
        "name: thousand\nmodel: llama-3.1-8b\nhardware: {gpu: h200}\nworkload:\n  requests: 1000\n  classes:\n"
        "    - name: all\n      arrival: {process: poisson, rate: 10}\n"
        "      input: {dist: normal, mean: 512, sd: 256, min: 2}\n"
        "      output: {dist: normal, mean: 512, sd: 256, min: 2}\n"
        "engine: {policy: chunked_prefill, max_num_seqs: 256}\n"
    )
    entry = "import sys; from scenarios.cli.app import main; sys.exit(main())"
    command = [sys.executable, "-c", entry, *(str(scenario) if a == "SCENARIO" else a for a in arguments)]
    if arguments[0] == "run":
        command += ["--out", str(tmp_path / "out")]
    timed = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
        "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime)"
    )
    seconds = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", timed, *command], capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
    with capsys.disabled():
        print(f"\nbatchlab {arguments[0]}: {min(seconds):.2f} CPU s at best of five, {max(seconds):.2f} at worst")
