"""The page and the pictures of a sweep: what is there, what failed, and the same bytes each time."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from reports.picture import printed, shading
from reports.sweep.load import colours, load_picture
from reports.sweep.points import SweepAxis, best_points
from reports.sweep.sweep_report import best_table, best_words, heatmaps, write_sweep_report
from reports.units import short
from tests.reports.sweep.results import POLICIES, RATES, SEATS, made, of_queue, summary

LIMITS = {"p99_ttft_ms": 1_000.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sweep")
    write_sweep_report(target, made(limits=LIMITS, errors={(1, 0): "<b>no such GPU</b>"}))
    return target


def test_the_page_names_the_best_points_and_the_failed_one(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "The best points", "Over the load", "Throughput against speed", "Cost against the SLO", "Over two keys",
        "Failed points", "All points", "Study",
    ]  # fmt: skip
    assert "8 points, 3 seeds each; 1 failed." in page
    assert "&lt;b&gt;no such GPU&lt;/b&gt;" in page
    assert "<b>no such GPU" not in page
    assert "1 saturated point is left out: it has no steady state." in page
    assert not re.search(r"""(src|href)=["']?https?:""", page)


def test_pictures_are_both_png_and_svg(folder: Path) -> None:
    names = {path.name for path in (folder / "plots").iterdir()}
    stems = {"load", "throughput_latency", "front_speed", "front_cost", "heatmap_rate_max_num_seqs"}
    assert names == {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg")}
    assert "SLO" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_equal_sweeps_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    write_sweep_report(tmp_path, made(limits=LIMITS, errors={(1, 0): "<b>no such GPU</b>"}))
    for path in sorted(folder.rglob("*.*")):
        assert (tmp_path / path.relative_to(folder)).read_bytes() == path.read_bytes(), path.name


def test_policies_alone_have_neither_load_nor_map(tmp_path: Path) -> None:
    result = made([POLICIES], lambda places, seed: summary(p99_ttft_ms=5.0 + places[0] + 0.1 * seed))
    write_sweep_report(tmp_path, result)
    assert load_picture(result) is None
    assert heatmaps(result) == []
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Over the load" not in page
    assert "Failed points" not in page
    assert "policy static" in page


def test_three_keys_have_a_map_for_each_pair() -> None:
    third = SweepAxis(("engine.policy",), "policy", ("static", "chunked_prefill"))
    result = made([RATES, SEATS, third], lambda places, seed: of_queue(places[:2], seed))
    found = heatmaps(result)
    assert [picture.name for picture in found] == [
        "heatmap_rate_max_num_seqs", "heatmap_rate_policy", "heatmap_max_num_seqs_policy",
    ]  # fmt: skip
    assert all("best value over the other keys" in picture.caption for picture in found)


def test_scattered_points_make_no_map_and_no_line() -> None:
    axes = [
        SweepAxis(("workload.arrival.rate",), "rate", tuple("12345678"), tuple(map(float, range(1, 9)))),
        SweepAxis(("engine.max_num_seqs",), "seats", tuple("12345678"), tuple(map(float, range(1, 9)))),
    ]
    whole = made(axes, lambda places, seed: summary(p99_ttft_ms=1.0 + places[0]))
    few = tuple(point for point in whole.points if point.places[0] == (3 * point.places[1]) % 8)
    from dataclasses import replace

    scattered = replace(whole, points=few)
    assert len(few) == 8
    assert heatmaps(scattered) == []
    assert load_picture(scattered) is None


def test_colours_follow_the_varied_number() -> None:
    """By value, however the values were listed; lightness rises with them."""

    def lightness(color: str) -> int:
        return sum(weight * int(color[at : at + 2], 16) for weight, at in ((2, 1), (7, 3), (1, 5)))

    mixed = SweepAxis(("engine.max_num_seqs",), "seats", ("64", "8", "256"), (64.0, 8.0, 256.0))
    light = [lightness(color) for color in colours(mixed)]
    assert light[1] < light[0] < light[2]


def test_the_words_say_what_equality_rests_on() -> None:
    three, one = made(), made(seeds=1)
    assert "paired 95 % interval" in " ".join(best_words(three, best_points(three)))
    assert "points within 2 % are called equal" in " ".join(best_words(one, best_points(one)))
    rows = best_table(best_points(three), named=0)
    assert rows is not None
    assert rows.head == ("best by", "point", "value", "equal to it")
    assert "±" in rows.body[-1][2]


def test_cells_that_read_the_same_have_one_shade() -> None:
    """A colour says no more than the figure on it; where figures hardly differ, so do their shades."""
    alike = np.array([[700.1, 700.4], [699.96, math.nan]])
    values = np.array([[printed(value) for value in row] for row in alike])
    assert [short(value) for value in values[0]] == [short(value) for value in alike[0]] == ["700", "700"]
    assert {float(shading(values)(value)) for value in values[np.isfinite(values)]} == {0.5}
    apart = np.array([printed(value) for value in (5.764, 5.769, 5.7611)])
    assert [round(float(share), 2) for share in shading(apart)(apart)] == [0.48, 0.52, 0.48]
    far = np.array([1.0, 1.5, 2.0])
    assert [float(share) for share in shading(far)(far)] == [0.0, 0.5, 1.0]
