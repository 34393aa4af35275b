"""The shipped scenarios: they load, they say what they are for, and they show what they say."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from scenarios.generate import GeneratedWorkload, generate
from scenarios.runs.result import Result
from scenarios.schema.scenario import Scenario
from simulator.metrics.summary import summarize_by_class
from simulator.metrics.waits import overload
from simulator.workload import Workload

LIBRARY = Path(scenarios.__file__).parent / "library"
NAMES = ("azure-conv", "chunk-size", "long-tail", "memory-pressure", "preemption-modes", "priorities", "quickstart")
POLICIES = ("static", "continuous", "preemptive", "chunked_prefill")


def workload(scenario: Scenario) -> Workload:
    assert isinstance(scenario.workload, GeneratedWorkload)
    return generate(scenario.workload, scenario.seed)


@cache
def run(name: str, policy: str, *overrides: str) -> Result:
    """The scenario under one policy: simulated once, however often it is asked for."""
    return scenarios.run(scenarios.load(name, (f"engine.policy={policy}", *overrides)))


def summary(name: str, policy: str, *overrides: str) -> dict[str, Any]:
    return dict(run(name, policy, *overrides).summary)


def by_class(name: str, policy: str, *overrides: str) -> dict[str, dict[str, Any]]:
    result = run(name, policy, *overrides)
    return {
        kind: dict(of) for kind, of in summarize_by_class(result.records, slo=result.scenario.resolve_slo()).items()
    }


def ttft_p99(name: str, policies: Iterable[str], *overrides: str) -> list[float]:
    return [summary(name, policy, *overrides)["p99_ttft_ms"] for policy in policies]


def test_all_are_here() -> None:
    # Each kind has tests of its own.
    others = (
        "adapters-", "blind-", "claim-", "drafts-", "images-", "lockstep-", "measured-", "offload-", "ragged-",
        "study-", "tables-",
    )  # fmt: skip
    assert tuple(name for name in scenarios.shipped() if not name.startswith(others)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_loads_and_needs_no_file(name: str) -> None:
    scenario = scenarios.load(name)
    assert scenario.name == name
    assert scenario.slo is not None
    requests = len(workload(scenario))
    assert 1_500 <= requests <= 3_000
    assert scenarios.load(name, ["seed=1"]).seed == 1


@pytest.mark.parametrize("name", NAMES)
def test_survives_being_written_and_read(name: str, tmp_path: Path) -> None:
    scenario = scenarios.load(name)
    file = tmp_path / "again.yaml"
    file.write_text(scenarios.dump(scenario), encoding="utf-8")
    assert scenarios.load(file) == scenario


@pytest.mark.parametrize("name", NAMES)
def test_header_says_what_it_shows_and_its_commands_are_right(name: str) -> None:
    lines = (LIBRARY / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    header = [line for line in lines if line.startswith("#")]
    assert lines[: len(header)] == header
    text = "\n".join(header)
    for part in ("# Shows ", "# Look at ", "# Try "):
        assert part in text
    commands = [line.partition("batchlab ")[2].partition("  #")[0] for line in header if "batchlab " in line]
    assert len(commands) >= 3
    for command in commands:
        assert re.match(rf"(run|compare) {name}( |$)", command), command
        overrides = re.findall(r"--set (\S+)", command)
        scenarios.load(name, overrides)  # refuses a wrong key or value
        policies = re.search(r"--policies (\S+)", command)
        assert command.startswith("run") == (policies is None)
        assert policies is None or {word.partition(":")[0] for word in policies[1].split(",")} <= set(POLICIES)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(name, policy, marks=() if (i + j) % 2 == 0 else pytest.mark.long)
        for i, name in enumerate(NAMES)
        for j, policy in enumerate(POLICIES)
    ],
)
def test_every_policy_serves_everybody(name: str, policy: str) -> None:
    found = summary(name, policy)
    assert found["rejected"] == found["unfinished"] == 0
    assert found["completed"] == len(workload(scenarios.load(name)))


def test_azure_conv_has_the_shape_of_the_trace() -> None:
    drawn = workload(scenarios.load("azure-conv"))
    gaps = np.diff(drawn.arrival_s)
    assert 1 / gaps.mean() == pytest.approx(5.53, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(1.094, rel=0.05)
    many = workload(scenarios.load("azure-conv", ["workload.requests=200000"]))
    published = [
        (0.01, 29, 16),
        (0.1, 207, 54),
        (0.5, 1020, 129),
        (0.75, 1189, 395),
        (0.9, 2734.5, 424),
        (0.99, 4142, 601),
    ]
    for q, inputs, outputs in published:
        assert np.quantile(many.input_tokens, q) == pytest.approx(inputs, rel=0.03, abs=2)
        assert np.quantile(many.output_tokens, q) == pytest.approx(outputs, rel=0.03, abs=2)
    # the means that the header admits to
    assert many.input_tokens.mean() == pytest.approx(1198, rel=0.01)
    assert many.output_tokens.mean() == pytest.approx(219, rel=0.01)
    assert set(drawn.max_tokens) == {1000}


def test_azure_conv_shows_its_point() -> None:
    static, continuous, preemptive, chunked = (summary("azure-conv", policy) for policy in POLICIES)
    assert static["saturated"]
    assert not continuous["saturated"]
    assert not chunked["saturated"]
    assert static["slo_attainment"] < 0.05
    assert chunked["slo_attainment"] > 0.95
    assert static["padding_fraction"] > 0.5
    assert static["wasted_slot_fraction"] > 0.4
    assert continuous["p99_itl_ms"] > 1.5 * chunked["p99_itl_ms"]
    assert continuous["p99_tpot_ms"] > chunked["p99_tpot_ms"]
    assert continuous["p99_ttft_ms"] < chunked["p99_ttft_ms"]
    assert preemptive["p99_ttft_ms"] == chunked["p99_ttft_ms"]


def test_quickstart_shows_its_point() -> None:
    """Every figure of the header."""
    text = (LIBRARY / "quickstart.yaml").read_text(encoding="utf-8")
    header = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    whole = {policy: summary("quickstart", policy) for policy in POLICIES}
    classes = {policy: by_class("quickstart", policy) for policy in POLICIES}
    assert not any(found["saturated"] for found in whole.values())
    shares = [100 * whole[policy]["slo_attainment"] for policy in ("static", "continuous", "chunked_prefill")]
    assert whole["preemptive"]["slo_attainment"] == 1
    gaps = [whole[policy]["p99_itl_ms"] for policy in ("continuous", "chunked_prefill")]
    chat, documents = (
        [classes[policy][kind]["p99_ttft_ms"] for policy in ("preemptive", "chunked_prefill")]
        for kind in ("chat", "documents")
    )
    ends = [run("quickstart", policy).records for policy in ("static", "continuous")]
    until = [found.to_s for records in ends if (found := overload(records, limit_s=1.0)) is not None]
    for said in (
        "{:.1f} % of the requests under static, {:.1f} % under continuous, {:.1f} % under chunked_prefill".format(
            *shares
        ),
        f"({100 * whole['static']['padding_fraction']:.1f} % of all tokens)",
        "{:.1f} ms against {:.1f} ms".format(*gaps),
        "{:,.0f} ms instead of {:,.0f} ms".format(*chat),
        "{:,.0f} ms instead of {:,.0f} ms".format(*documents),
        f"{whole['preemptive']['preemptions']} preemptions",
        "until {:.0f} s, with others until {:.0f} s".format(*until),
    ):
        assert said in header, said
    taken = summary("quickstart", "chunked_prefill")["batch_occupancy"]
    assert taken == pytest.approx(1 / 7, abs=0.01)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_quickstart_shows_it_with_other_seeds_too(seed: int) -> None:
    static, continuous, preemptive, chunked = (
        summary("quickstart", policy, f"seed={seed}")["slo_attainment"] for policy in POLICIES
    )
    assert static + 0.1 < continuous < chunked < 0.99 < preemptive


def test_quickstart_teaches_that_an_order_may_do() -> None:
    """The second comparison of its header: chunks in order of priority keep the SLO at a lower price."""
    ordered = by_class("quickstart", "chunked_prefill", "engine.order=priority")
    preemptive = by_class("quickstart", "preemptive")
    assert ordered["chat"]["slo_attainment"] == 1
    assert ordered["documents"]["p99_ttft_ms"] < 0.8 * preemptive["documents"]["p99_ttft_ms"]


def test_long_tail_shows_its_point() -> None:
    drawn = workload(scenarios.load("long-tail"))
    assert np.mean(drawn.output_tokens < 10) == pytest.approx(0.5, abs=0.03)
    assert np.mean(drawn.output_tokens > 500) == pytest.approx(0.5, abs=0.03)
    static, continuous = (summary("long-tail", policy) for policy in ("static", "continuous"))
    assert static["wasted_slot_fraction"] > 0.5
    assert continuous["wasted_slot_fraction"] == 0
    assert static["saturated"]
    assert not continuous["saturated"]
    at_once = "workload.arrival.rate=10000"
    busiest = [summary("long-tail", policy, at_once)["request_throughput"] for policy in ("static", "continuous")]
    assert busiest[0] < 0.5 * busiest[1]
    slow = ttft_p99("long-tail", ("static", "continuous"), "workload.arrival.rate=6")
    assert slow[0] > 50 * slow[1]
    assert not summary("long-tail", "static", "workload.arrival.rate=6")["saturated"]


def test_memory_pressure_shows_its_point() -> None:
    static, continuous, recompute, chunked = (summary("memory-pressure", policy) for policy in POLICIES)
    swap = summary("memory-pressure", "preemptive", "engine.preemption_mode=swap")
    assert continuous["preemptions"] > chunked["preemptions"] > 100
    assert chunked["recomputed_tokens"] > 10_000
    assert chunked["kv_utilization_peak"] > 0.98
    assert static["preemptions"] == 0
    assert static["saturated"]
    assert swap["swapped_out_blocks"] > 1000
    assert swap["recomputed_tokens"] < 0.1 * recompute["recomputed_tokens"]
    assert swap["p99_ttft_ms"] < recompute["p99_ttft_ms"]


def test_priorities_shows_its_point() -> None:
    fcfs, preemptive = (by_class("priorities", policy) for policy in ("chunked_prefill", "preemptive"))
    swap = by_class("priorities", "preemptive", "engine.preemption_mode=swap")
    ordered = by_class("priorities", "chunked_prefill", "engine.order=priority")
    people = [found["interactive"]["p99_ttft_ms"] for found in (preemptive, ordered, fcfs)]
    assert people[0] < 0.3 * people[1] < 0.3 * people[2]
    assert preemptive["interactive"]["slo_attainment"] > 0.99 > fcfs["interactive"]["slo_attainment"]
    batch = [found["batch"]["mean_e2el_ms"] for found in (fcfs, swap, preemptive)]
    assert batch[0] < batch[1] < 0.6 * batch[2]
    assert swap["interactive"]["slo_attainment"] > 0.99
    whole = [summary("priorities", policy)["duration"] for policy in ("chunked_prefill", "preemptive")]
    assert whole[0] < whole[1]


def test_chunk_size_shows_its_point() -> None:
    sizes = {size: f"engine.max_num_batched_tokens={size}" for size in (128, 512, 2048, 8192)}
    found = {size: summary("chunk-size", "chunked_prefill", key) for size, key in sizes.items()}
    tpot = [found[size]["p99_tpot_ms"] for size in sizes]
    assert tpot == sorted(tpot)
    assert tpot[-1] > 2 * tpot[0]
    ttft = [found[size]["mean_ttft_ms"] for size in sizes]
    assert ttft[0] > 1.3 * ttft[1]
    assert ttft[1] == pytest.approx(ttft[3], rel=0.2)
    assert found[8192]["p99_itl_ms"] < found[2048]["p99_itl_ms"]
    threshold = by_class("chunk-size", "chunked_prefill", "engine.long_prefill_token_threshold=512")
    plain = by_class("chunk-size", "chunked_prefill")
    assert threshold["chat"]["p99_ttft_ms"] < 0.3 * plain["chat"]["p99_ttft_ms"]
    assert summary("chunk-size", "continuous")["p99_tpot_ms"] > found[8192]["p99_tpot_ms"]
