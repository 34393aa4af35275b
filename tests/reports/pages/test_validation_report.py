"""Pictures and page of a comparison with a server's log, from numbers alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reports.pages.validation_report import Facing, draw_validation, error_table, parts_table, write_validation
from simulator.metrics.series import StepFunction
from tests.command import tree

METRICS = ("ttft", "tpot", "e2e")
RNG = np.random.default_rng(0)
LATENCY = {metric: RNG.lognormal(5, 1, 80) for metric in METRICS}


def facing() -> Facing:
    errors = {
        f"{m} {s}": 0.1 * i - 0.5
        for i, (m, s) in enumerate((m, s) for m in METRICS for s in ("mean", "p50", "p90", "p99"))
    }
    steps = StepFunction(np.array([0.0, 1.0]), np.array([3.0, 0.0]), 2.0)
    return Facing(
        title="a <server>: simulated and measured",
        subtitle="80 requests",
        measured_ms=LATENCY,
        simulated_ms={metric: values * 1.1 for metric, values in LATENCY.items()},
        errors={**errors, "makespan": 0.02},
        makespan_s=(50.0, 51.0),
        throughput={"request": -0.02, "output": float("nan")},
        paired_ms=(LATENCY["e2e"], LATENCY["e2e"] * 1.1),
        over_time={"waiting\n(requests)": (steps, steps)},
        parts=parts_table([("decode", 100.0, 110.0, 0.1, 10.0), ("memory", np.nan, np.nan, np.nan, -0.4)]),
        words=["Off by 10 % <b>."],
        notes=["a note"],
        scenario_yaml="name: a\n",
    )


def test_the_table_has_both_sides_and_the_error() -> None:
    table = error_table(facing())
    lines = {line[0]: line[1:] for line in table.body}
    assert len(lines) == 14
    assert lines["TTFT mean"][-1] == "-50.0 %"
    assert lines["makespan"] == ("s", "50", "51", "+2.0 %") or lines["makespan"] == ("s", "50.0", "51.0", "+2.0 %")
    assert lines["request throughput"][-1] == "-2.0 %"
    assert "output throughput" not in lines  # not known
    mean = float(lines["E2E mean"][1].replace(",", ""))
    assert mean == pytest.approx(LATENCY["e2e"].mean(), abs=1)


def test_pictures_and_page_are_complete_and_equal_each_time(tmp_path: Path) -> None:
    write_validation(tmp_path / "a", facing())
    write_validation(tmp_path / "b", facing())
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    names = {path.stem for path in (tmp_path / "a" / "plots").iterdir()}
    assert names == {"errors", "ttft_cdf", "tpot_cdf", "e2el_cdf", "requests", "timeline"}
    page = (tmp_path / "a" / "report.html").read_text(encoding="utf-8")
    for part in ("a &lt;server&gt;", "Off by 10&nbsp;% &lt;b&gt;." if "&nbsp;" in page else "&lt;b&gt;", "a note"):
        assert part in page
    assert page.count('role="img"') == len(names)


def test_what_is_not_known_is_not_drawn() -> None:
    whole = facing()
    bare = replace(whole, paired_ms=None, over_time={}, parts=None, errors={"makespan": 0.0})
    bare = replace(bare, measured_ms={}, simulated_ms={})
    assert set(draw_validation(bare)) == {"errors"}


@pytest.mark.parametrize(
    "values",
    [np.array([0.0, 0.0]), *(pytest.param(np.array(odd), marks=pytest.mark.long) for odd in ([5.0], [1.0, 1e9]))],
)
def test_odd_numbers_can_be_drawn(values: np.ndarray) -> None:
    odd = replace(facing(), measured_ms=dict.fromkeys(METRICS, values), paired_ms=(values, values))
    assert set(draw_validation(odd)) >= {"errors", "requests"}


def test_without_parts_there_is_no_table() -> None:
    assert parts_table([]) is None
