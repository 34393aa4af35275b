import re
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.figure import Figure

import scenarios
from reports.picture import Picture, Style, latency_axis, log_numbers, look, plain_numbers, styles
from reports.plots import gantt as gantt_module
from reports.plots.bars import latency_bars, throughput_bars
from reports.plots.cdf import GRID, CdfCurve, cdf, curves, quantities
from reports.plots.gantt import gantt
from reports.plots.timeline import STEP_BUCKETS, band, shown_until, step_band, strips, timeline
from reports.verdict.shown_metrics import Summaries
from simulator.metrics.latency import Slo, itl, ttft_s
from simulator.metrics.series import Points, StepFunction, queue_depth, step_time
from simulator.metrics.summary import summarize
from simulator.metrics.window import run_end_s
from simulator.results.records import Records
from tests.columns import as_floats
from tests.reports_maker import continuous, static

SLO = Slo(ttft_ms=1000, tpot_ms=50)


@pytest.fixture(scope="module")
def runs() -> list[tuple[str, Records]]:
    return [("static", static(120)), ("continuous", continuous(120, num_blocks=200))]


@pytest.fixture(scope="module")
def style(runs: list[tuple[str, Records]]) -> Mapping[str, Style]:
    return styles([(label, label) for label, _ in runs])


@pytest.fixture(scope="module")
def summaries(runs: list[tuple[str, Records]]) -> Summaries:
    second = {"static": static(120, seed=1), "continuous": continuous(120, seed=1, num_blocks=200)}
    return {label: [summarize(records, slo=SLO), summarize(second[label], slo=SLO)] for label, records in runs}


@pytest.fixture(scope="module")
def slots(runs: list[tuple[str, Records]], style: Mapping[str, Style]) -> Picture:
    return gantt(runs, style)


def texts(picture: Picture) -> list[str]:
    """Everything written in a picture: matplotlib leaves it as comments beside the outlines of the letters."""
    return [found.strip() for found in re.findall(r"<!--(.*?)-->", picture.svg, re.DOTALL)]


def everything(picture: Picture) -> str:
    return "\n".join(texts(picture))


def test_gantt_says_what_it_shows(slots: Picture) -> None:
    said = everything(slots)
    for text in (
        "static",
        "continuous",
        "slot",
        "time since the run began (s)",
        "prefill",
        "decode",
        "padding",
        "idle",
    ):
        assert text in said
    assert "held after finishing" in said
    assert "Look for grey" in slots.caption
    assert re.search(r"16 of 16 slots used; of all: \d+ % decode, \d+ % prefill, \d+ % held or padding", said)
    assert re.search(r"of 16 slots used; of all: \d+ % decode, \d+ % waiting, \d+ % prefill", said), (
        "prefill steps of their own"
    )


def test_gantt_shares_add_up(slots: Picture) -> None:
    for line in texts(slots):
        if "of 16 slots used" in line:
            assert sum(int(share) for share in re.findall(r"(\d+) %", line)) == pytest.approx(100, abs=2)


def test_gantt_of_many_slots_draws_every_kth(style: Mapping[str, Style]) -> None:
    crowd = continuous(150, rate=200.0, max_num_seqs=80)
    picture = gantt([("continuous", crowd)], style)
    assert "slot (1 in 3 drawn)" in everything(picture)
    assert "one slot of every 3 is drawn." in picture.caption


def test_gantt_draws_each_policy_in_its_color(slots: Picture, style: Mapping[str, Style]) -> None:
    assert all(look.color in slots.svg for look in style.values())


def test_gantt_leaves_out_stripes_too_many_to_see(
    runs: list[tuple[str, Records]], slots: Picture, style: Mapping[str, Style], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gantt_module, "MAX_STRIPES", 1)
    assert len(gantt(runs, style).svg) < len(slots.svg)


def test_pictures_of_a_run_without_steps(style: Mapping[str, Style]) -> None:
    nothing = [("continuous", continuous(3, num_blocks=1))]
    assert "nothing ran in this window" in everything(gantt(nothing, style))
    assert "nothing ran" in everything(timeline(nothing, style))
    lines = [curves(label, records, SLO) for label, records in nothing]
    for quantity in quantities(SLO):
        assert "no samples" in everything(cdf(quantity, [line[quantity.name] for line in lines], style))
    empty: Summaries = {"continuous": [summarize(nothing[0][1], slo=SLO)]}
    assert latency_bars(empty, style, SLO).png
    assert throughput_bars(empty, style).png


def test_timeline_panels_have_units(runs: list[tuple[str, Records]], style: Mapping[str, Style]) -> None:
    said = everything(timeline(runs, style))
    wanted = (
        "waiting",
        "(requests)",
        "in the batch",
        "(of 16 slots)",
        "KV in use",
        "(%)",
        "step time",
        "(ms)",
        "time (s)",
    )
    for text in (*wanted, "preemptions", "(so far)", "static", "continuous"):
        assert text in said


def test_timeline_has_no_panel_of_nothing(runs: list[tuple[str, Records]]) -> None:
    assert len(strips(runs)) == 5
    assert len(strips(runs[:1])) == 4, "static preempts nobody"


def test_timeline_is_not_squeezed_by_one_run_that_goes_on(style: Mapping[str, Style]) -> None:
    short_one, long_one = ("continuous", continuous(60, rate=20.0)), ("static", static(60, rate=20.0, max_num_seqs=1))
    assert run_end_s(long_one[1]) > 4 * run_end_s(short_one[1])
    until = shown_until([short_one, long_one])
    assert until == 2 * run_end_s(short_one[1])
    picture = timeline([short_one, long_one], style)
    assert re.search(r"static goes on until [\d.]+ s →", everything(picture))
    assert "The end is cut off: static goes on until" in picture.caption
    assert shown_until([long_one]) == run_end_s(long_one[1])


def test_bands_keep_every_peak(runs: list[tuple[str, Records]]) -> None:
    records = runs[0][1]
    end_s = run_end_s(records)
    depth = queue_depth(records)
    found = band(depth, end_s)
    assert found.high.max() == depth.value.max()
    assert (found.low <= found.mean + 1e-9).all()
    assert (found.mean <= found.high + 1e-9).all()
    took = step_band(step_time(records), end_s, 1e3)
    assert np.nanmax(took.high) == pytest.approx(1e3 * step_time(records).value.max())
    assert np.nanmin(took.low) == pytest.approx(1e3 * step_time(records).value.min())


def test_band_of_one_short_peak_in_a_long_run() -> None:
    found = band(StepFunction(as_floats([0.0, 5000.0, 5000.001]), as_floats([1.0, 900.0, 1.0]), 10_000.0), 10_000.0)
    assert found.high.max() == 900.0
    assert len(found.high) < 2000


def test_a_long_step_lasts_and_idle_time_is_a_gap() -> None:
    found = step_band(Points(as_floats([0.0, 90.0]), as_floats([40.0, 10.0])), 100.0)
    assert len(found.mean) == STEP_BUCKETS
    assert (found.mean[found.time_s < 39.0] == 40.0).all()
    idle = (found.time_s > 41.0) & (found.time_s < 88.0)
    assert np.isnan(found.mean[idle]).all()
    assert np.isnan(step_band(Points(as_floats([]), as_floats([])), 1.0).mean).all()


def test_cdf_curves_are_numpys_percentiles(runs: list[tuple[str, Records]]) -> None:
    records = runs[1][1]
    found = curves("continuous", records, SLO)
    done = records.requests.status == 0
    ttft_ms = 1e3 * ttft_s(records)[done]
    assert found["ttft_cdf"].percentile(99) == pytest.approx(np.percentile(ttft_ms, 99))
    assert found["ttft_cdf"].within_slo == pytest.approx((ttft_ms <= 1000).mean())
    gaps = itl(records, (50, 99))
    assert gaps is not None
    assert found["itl_cdf"].percentile(99) == pytest.approx(1e3 * gaps.percentiles[1])
    assert len(GRID) <= 2000


def test_cdf_of_cut_runs_leaves_out_what_the_summary_does(runs: list[tuple[str, Records]]) -> None:
    records = runs[1][1]
    summary = summarize(records, slo=SLO, warmup_s=5.0)
    found = curves("continuous", records, SLO, warmup_s=5.0)["ttft_cdf"]
    assert found.percentile(99) == pytest.approx(summary["p99_ttft_ms"])


def test_cdf_says_what_it_shows(runs: list[tuple[str, Records]], style: Mapping[str, Style]) -> None:
    lines = [curves(label, records, SLO) for label, records in runs]
    ttft, tpot, gap, e2e = (
        everything(cdf(quantity, [line[quantity.name] for line in lines], style)) for quantity in quantities(SLO)
    )
    assert "Time to first token (TTFT)" in ttft
    assert "SLO 1 s" in ttft
    assert "share of finished requests (%)" in ttft
    assert re.search(r"continuous:  p50 [\d.,]+ m?s, p99 [\d.,]+ m?s, [\d.]+ % within 1 s", ttft)
    assert "SLO 50 ms" in tpot
    assert "share of token gaps (%)" in gap
    assert "99.9" in gap
    assert "SLO" not in e2e


def test_a_limit_of_some_classes_is_drawn_and_counted_as_theirs() -> None:
    """A mean over all requests is no measure of a limit that only some of them have."""
    scenario = {
        "name": "two", "model": "llama-3.1-8b", "hardware": {"gpu": "h200"}, "cost": {"kind": "roofline"},
        "workload": {
            "requests": 60,
            "classes": [
                {"name": name, "arrival": {"process": "poisson", "rate": 10}, "input": size, "output": size}
                for name, size in (("chat", {"dist": "fixed", "value": 50}), ("batch", {"dist": "fixed", "value": 900}))
            ],
        },
    }  # fmt: skip
    records = scenarios.run(scenario).records
    slo = Slo(ttft_ms=20, classes={"batch": Slo(e2el_ms=1000)})
    chat = records.requests.class_index == records.class_names.index("chat")
    found = curves("a", records, slo)
    ttft, _, _, e2e = quantities(slo)
    assert found[ttft.name].within_slo == (1e3 * ttft_s(records)[chat] <= 20).mean()
    assert found[e2e.name].within_slo == 0.0
    look = styles([("a", "chunked_prefill")])
    assert "SLO 20 ms (chat)" in everything(cdf(ttft, [found[ttft.name]], look))
    assert "0.0 % of batch in SLO" in everything(cdf(e2e, [found[e2e.name]], look))
    summary = {"a": [summarize(records, slo=slo)]}
    assert "SLO" not in everything(latency_bars(summary, look, slo))
    assert "SLO 20 ms" in everything(latency_bars(summary, look, Slo(ttft_ms=20)))


def test_equal_curves_do_not_hide_each_other(style: Mapping[str, Style]) -> None:
    at = np.linspace(1.0, 100.0, len(GRID))
    quantity = quantities(None)[0]
    same = cdf(quantity, [CdfCurve("static", at), CdfCurve("continuous", at)], style).svg
    assert same.count(style["static"].color) == same.count(style["continuous"].color)


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (1.0, 10.0), (1.0, 250.0), (1.0, 1e6), (3.0, 3.0), (0.02, 90.0)])
def test_tick_labels_do_not_touch(low: float, high: float) -> None:
    with look():
        figure = Figure(figsize=(5.6, 3.0), layout="constrained")
        axes = figure.subplots()
        latency_axis(axes.xaxis, low, high)
        figure.draw_without_rendering()
        labels = [label for label in axes.get_xticklabels() if label.get_text()]
        boxes = sorted((label.get_window_extent() for label in labels), key=lambda box: float(box.x0))
        inside = [box for box in boxes if axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1]
    assert len(inside) >= 2
    assert all(left.x1 < right.x0 for left, right in pairwise(inside))


def test_axes_write_plain_numbers() -> None:
    with look():
        axes = Figure().subplots()
        axes.set_ylim(0, 4e6)
        plain_numbers(axes.yaxis)
        assert axes.yaxis.get_major_formatter()(2e6) == "2,000,000"
        log_numbers(axes.yaxis, 50.0)
        assert axes.get_yscale() == "log"


def test_bars_show_values_units_and_intervals(summaries: Summaries, style: Mapping[str, Style]) -> None:
    latency = latency_bars(summaries, style, SLO)
    said = everything(throughput_bars(summaries, style)) + everything(latency)
    for text in (
        "Output throughput (tok/s)",
        "Request throughput (req/s)",
        "Goodput (req/s)",
        "TTFT p99 (log scale)",  # one policy is more than twenty times the other
        "TPOT p50",
    ):
        assert text in said
    assert re.search(r"[\d.]+ ± [\d.]+", said)
    assert "95 % confidence intervals over 2 seeds" in latency.caption
    one = throughput_bars({label: each[:1] for label, each in summaries.items()}, style)
    assert "±" not in everything(one)
    assert "no intervals" in one.caption
