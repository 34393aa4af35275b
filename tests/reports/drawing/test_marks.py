"""Values that can be pointed at: where they stand, whose they are, and what a page carries of them."""

import json
import re

import pytest
from matplotlib.figure import Figure

from reports.html.pieces import inline, json_text, marks_data
from reports.picture import Mark, Painted, Picture, Series, draw, in_series, some

NASTY = "</script><script>alert(1)</script>"
CORNERS = ((1.0, 3.0), (2.0, 4.0))


@pytest.fixture(scope="module")
def picture() -> Picture:
    def paint(figure: Figure) -> Painted:
        left, right = figure.subplots(1, 2)
        for axes in (left, right):
            axes.set_yscale("log")
            with in_series(axes, 0):
                axes.plot(*zip(*CORNERS, strict=True), marker="o", linestyle="")
            with in_series(axes, 1):
                axes.plot([1.0, 2.0], [3.5, 3.5])
        marks = [Mark(axes, x, y, f"{x:g} and {y:g}") for axes in (left, right) for x, y in CORNERS]
        nowhere = [Mark(left, float("nan"), 3.0, "no value"), Mark(left, 9.0, 3.0, "beyond the axis")]
        return Painted("caption", [*marks, *nowhere], [Series(NASTY, "#000000"), Series("line", "#ffffff")])

    return draw("p", (6.0, 3.0), paint)


def test_spots_stand_where_the_picture_has_its_points(picture: Picture) -> None:
    drawn = re.findall(r'<use xlink:href="#[^"]+" x="([\d.]+)" y="([\d.]+)" style="fill: #1f77b4', picture.svg)
    assert len(drawn) == 4
    apart = [
        max(abs(spot.x - float(x)), abs(spot.y - float(y))) for spot, (x, y) in zip(picture.spots, drawn, strict=True)
    ]
    assert max(apart) < 0.06
    assert [spot.words for spot in picture.spots] == ["1 and 3", "2 and 4"] * 2


def test_what_is_of_a_series_has_its_class_in_every_panel(picture: Picture) -> None:
    ids = re.findall(r' id="([^"]+)"', picture.svg)
    assert len(ids) == len(set(ids))
    page = inline(picture.svg, "p")
    assert (page.count('class="run-0"'), page.count('class="run-1"')) == (2, 2)
    assert re.search(r">\s+<", page) is None, "no room between elements"


def test_words_of_a_file_end_no_script(picture: Picture) -> None:
    text = json_text({"marks": marks_data([picture])})
    assert "<" not in text
    assert json.loads(text)["marks"]["p"]["series"][0]["label"] == NASTY


def test_a_picture_without_marks_is_no_part_of_the_data() -> None:
    assert marks_data([draw("p", (2.0, 1.5), lambda figure: str(figure.subplots() is None))]) == {}


@pytest.mark.parametrize(("count", "most", "expected"), [(0, 5, 0), (5, 5, 5), (6, 5, 3), (1000, 300, 250)])
def test_some_of_many_are_evenly_spaced(count: int, most: int, expected: int) -> None:
    assert len(some(count, most)) == expected <= most
