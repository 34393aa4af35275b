"""The table of a report that says how a step's time was come by."""

from typing import Any

import scenarios
from reports.html import pieces as html
from reports.pages import run_report as build
from reports.tables.details import cost_rows, cost_tables
from scenarios.runs.runner import sensitivity_words
from tests.scenarios.runs.test_runner import small

HOST = {"step_s": 3e-4, "per_seq_s": 1.5e-5, "from": "vLLM 0.15 to 0.18: ITL less kernels"}
COMPOSED = {
    "qkv": "measured, bf16, 6,144 x 4,096",
    "unequal contexts": "estimated, nothing: it splits",
    "sampler": "assumed",
}


def found(**changes: Any) -> Any:
    return {"cost": {"kind": "profile", "profile": "t", "composed": COMPOSED}, "host": HOST, **changes}


def test_a_part_a_line_then_the_host_and_the_way_to_the_engine() -> None:
    front_end = {"fixed_s": 0.0058, "per_running_s": 6.7e-5, "from": "assumed: as vLLM 0.15"}
    assert cost_rows(found(front_end=front_end)) == [
        ("qkv", "measured", "bf16, 6,144 x 4,096"),
        ("unequal contexts", "estimated", "nothing: it splits"),
        ("sampler", "assumed", ""),
        (
            "host",
            "measured",
            "0.3 ms a step and 15 microseconds for each request (vLLM 0.15 to 0.18: ITL less kernels)",
        ),
        ("front end", "assumed", "5.8 ms and 67 microseconds for each running request (assumed: as vLLM 0.15)"),
    ]


def test_without_parts_the_kind_is_said() -> None:
    fitted = {"kind": "profile", "profile": "p", "fitted": {"attention": "measured, in one kernel"}}
    assert cost_rows({"cost": fitted})[0] == ("attention", "measured", "in one kernel")
    rows = cost_rows({"cost": {"kind": "roofline", "error": "not validated"}})
    assert rows[0] == ("step", "assumed", "bytes and operations over the GPU's datasheet")
    assert [row[:2] for row in rows[1:]] == [("host", "nothing"), ("front end", "nothing")]
    assert cost_rows({}) == [], "summaries of before say nothing"


def test_runs_and_groups_of_which_the_same_is_said_share_a_table() -> None:
    other: Any = found(host={**HOST, "from": "the scenario"})
    tables = cost_tables({label: [{"provenance": of}] for label, of in (("a", found()), ("b", other), ("c", found()))})
    assert [title for title, _ in tables] == ["a and c", "b"]
    assert tables[1][1].body[-2][1] == "given"
    [(title, _)] = cost_tables({"a": [{"provenance": found()}], "b": [{"provenance": found()}]})
    assert title == ""
    fleet: Any = {**found(), "fleet": [{"name": "left", **found()}, {"name": "right", **other}]}
    assert [title for title, _ in cost_tables({"a": [{"provenance": fleet}]})] == ["left", "right"]


def test_it_stands_in_the_report_of_a_run() -> None:
    changes: dict[str, Any] = {"cost": {"kind": "profile"}, "hardware": {"gpu": "a100-80gb"}, "model": "qwen3-8b"}
    run = scenarios.run(small(workload__requests=3, front_end={"fixed_s": 0.01, "per_running_s": 0.0}, **changes))
    said = run.summary["provenance"]
    assert said["front_end"] == {"fixed_s": 0.01, "per_running_s": 0.0, "from": "the scenario"}
    assert said["host"]["step_s"] == 3e-4
    section = str(html.section("What a step costs", *build._costs({"mine": [run.summary]}, run.notes)))
    assert section.count("<table>") == 1
    for part in ("unequal contexts", "estimated", "prompts beside decodes", "10 ms and 0 microseconds", "front end"):
        assert part in section


def test_a_fitted_profile_says_its_parts_too() -> None:
    cost = {"kind": "profile", "name": "rtx-4090-llama-3.1-8b"}
    run = scenarios.run(small(workload__requests=3, cost=cost, hardware={"gpu": "rtx-4090"}))
    parts = run.summary["provenance"]["cost"]["fitted"]
    assert parts["attention"] == "measured, prompts and decodes in one kernel"
    assert parts["unequal contexts"] == "measured, batches of two lengths"
    run = scenarios.run(small(workload__requests=3, cost={"kind": "profile"}))
    parts = run.summary["provenance"]["cost"]["fitted"]
    assert parts["unequal contexts"].startswith("estimated, ")
    assert parts["norm, rope, cache_write, activation, sampler"].startswith("assumed")


def test_what_hangs_on_step_times_stands_above_them() -> None:
    """The words of a run that is nearly saturated, as its command gives them to the report."""
    changes = {"workload__requests": 300, "engine": {"policy": "chunked_prefill", "max_num_seqs": 2}}
    run = scenarios.run(small(**changes))
    said = sensitivity_words(run, asked=True)
    assert said is not None
    [told, *tables] = build._costs({"a": [run.summary]}, ["skipped 3 rows", said])
    assert tables
    assert "shorter, mean TTFT" in str(told)
    assert "skipped" not in str(told)
