"""The key `slo`: the forms that people state one in, and what is said of others."""

from pathlib import Path
from typing import Any

import pytest

from scenarios.runs.runner import run
from scenarios.schema.loader import dump, load
from simulator.errors import InputError
from simulator.metrics.latency import Slo
from simulator.metrics.summary import METRICS

WORKLOAD = """\
workload:
  requests: 40
  arrival: {process: constant, rate: 20}
  classes:
    - {name: chat, share: 0.8, input: {dist: fixed, value: 100}, output: {dist: fixed, value: 10}}
    - {name: batch, share: 0.2, input: {dist: fixed, value: 2000}, output: {dist: fixed, value: 10}}
"""


def scenario_file(tmp_path: Path, slo: str) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(WORKLOAD + slo, encoding="utf-8")
    return path


def slo_of(tmp_path: Path, text: str) -> Slo:
    found = load(scenario_file(tmp_path, f"slo: {text}\n")).resolve_slo()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("{ttft_ms: 1000, tpot_ms: 50}", Slo(1000, 50)),
        ("{p99_ttft_ms: 1000, p99_tpot_ms: 50}", Slo(targets={"p99_ttft_ms": 1000, "p99_tpot_ms": 50})),
        (
            "{ttft_ms: 1000, attainment: 0.99, classes: {batch: {e2el_ms: 60000}}}",
            Slo(1000, attainment=0.99, classes={"batch": Slo(e2el_ms=60000)}),
        ),
        ("{itl_ms: 200, queue_time_ms: 5}", Slo(itl_ms=200, queue_time_ms=5)),
        ("{mean_itl_ms: 30, median_e2el_ms: 1}", Slo(targets={"mean_itl_ms": 30, "median_e2el_ms": 1})),
        (
            "{ttft_ms: 9, classes: {batch: {p95_queue_time_ms: 7, attainment: 0.5}}}",
            Slo(9, classes={"batch": Slo(targets={"p95_queue_time_ms": 7}, attainment=0.5)}),
        ),
    ],
)
def test_the_forms_of_an_slo(tmp_path: Path, text: str, slo: Slo) -> None:
    assert slo_of(tmp_path, text) == slo


OF_PARTS = [key for key in METRICS if "_lora_" in key or "_gateway_" in key]


@pytest.mark.parametrize("key", [key for key in METRICS if key.endswith("_ms") and METRICS[key].by_run])
def test_every_latency_of_the_summary_but_its_deviation_can_be_a_target(tmp_path: Path, key: str) -> None:
    if key.startswith("std_") or key in OF_PARTS:
        with pytest.raises(InputError, match="unknown key"):
            slo_of(tmp_path, f"{{{key}: 5}}")
    else:
        assert slo_of(tmp_path, f"{{{key}: 5}}").targets == {key: 5}


def test_an_slo_is_written_as_short_as_it_was(tmp_path: Path) -> None:
    path = scenario_file(tmp_path, "slo: {ttft_ms: 5, p99_itl_ms: 7, classes: {batch: {e2el_ms: 9}}}\n")
    text = dump(load(path))
    short = ["slo:", "  ttft_ms: 5.0", "  tpot_ms: null", "  e2el_ms: null", "  p99_itl_ms: 7.0"]
    short += ["  classes:", "    batch:", "      e2el_ms: 9.0"]
    assert text[text.index("slo:") : text.index("measure:")].splitlines() == short
    again = tmp_path / "again.yaml"
    again.write_text(text, encoding="utf-8")
    assert load(again) == load(path)


WRONG: dict[str, tuple[str, list[str]]] = {
    "percentile 0": ("p0_ttft_ms: 1", [":8:3: slo.p0_ttft_ms: a percentile lies above 0 and below 100", "p99_ttft_ms"]),
    "percentile above 100": ("p100.5_tpot_ms: 1", [":8:3: slo.p100.5_tpot_ms: a percentile lies", "p50_tpot_ms"]),
    "percentile that no summary has": ("p75_e2el_ms: 1", [":8:3: slo.p75_e2el_ms: no summary has", "p90_e2el_ms"]),
    "misspelt": ("p99_tftt_ms: 1", [":8:3: slo.p99_tftt_ms: unknown key", "did you mean `p99_ttft_ms`?"]),
    "unit": ("p99_ttft_s: 1", [":8:3: slo.p99_ttft_s: unknown key", "in milliseconds it is `p99_ttft_ms: 1000`"]),
    "per cent": ("{ttft_ms: 1, attainment: 99}", ["slo.attainment: must be", "99 % is 0.99"]),
    "attainment of nothing": ("attainment: 0.9", [":8:3: slo.attainment: no request has a limit", "ttft_ms"]),
    "attainment of nothing, by class": (
        "classes: {batch: {attainment: 0.9}}",
        ["slo.classes.batch.attainment: no request has a limit"],
    ),
    "no such class": (
        "classes: {bacth: {ttft_ms: 1}}",
        [":8:13: slo.classes.bacth: no class is called 'bacth'", "did you mean `batch`? allowed: chat, batch"],
    ),
    "gaps by class": ("classes: {chat: {p99_itl_ms: 1}}", [":8:20: slo.classes.chat.p99_itl_ms", "mean_itl_ms"]),
    "misspelt, by class": ("classes: {chat: {e2e_ms: 1}}", ["chat.e2e_ms: unknown key", "did you mean `e2el_ms`?"]),
    "percentile 0, by class": ("classes: {chat: {p0_itl_ms: 1}}", [":8:20: slo.classes.chat.p0_itl_ms: a percentile"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_slo(tmp_path: Path, name: str) -> None:
    text, said = WRONG[name]
    slo = f"slo: {text}\n" if text.startswith("{") else f"slo:\n  {text}\n"
    with pytest.raises(InputError) as caught:
        load(scenario_file(tmp_path, slo))
    for part in said:
        assert part in str(caught.value) + (caught.value.hint or "")


def test_a_trace_without_the_class(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_time_s,input_tokens,output_tokens,class\n0,9,3,chat\n", encoding="utf-8")
    path = tmp_path / "s.yaml"
    path.write_text("workload:\n  trace: {path: t.csv}\nslo:\n  classes: {chta: {ttft_ms: 1}}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r":4:13: slo.classes.chta: no class is called 'chta'"):
        run(path)


def test_a_run_says_what_became_of_its_targets(tmp_path: Path) -> None:
    slo = "slo: {ttft_ms: 1000, p99_ttft_ms: 0.001, attainment: 0.9, classes: {batch: {p50_e2el_ms: 1e6}}}\n"
    summary: dict[str, Any] = run(load(scenario_file(tmp_path, slo))).summary
    assert summary["slo_met"] is False
    found = [(each["metric"], each["class"], each["met"]) for each in summary["slo_targets"]]
    assert found == [("p99_ttft_ms", None, False), ("slo_attainment", None, True), ("p50_e2el_ms", "batch", True)]
    assert summary["slo_targets"][0]["value"] == summary["p99_ttft_ms"]
    plain = run(load(scenario_file(tmp_path, "slo: {ttft_ms: 1000}\n"))).summary
    assert "slo_targets" not in plain
    assert "slo_met" not in plain
