"""What a page lets a file do: nothing. And what its script is given to draw."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from reports.html import pieces as html
from reports.html.pieces import MOST_STAYS, PERCENTILES, inline, json_text, page_data, rounded, steps_between
from reports.picture import draw, highest, styles
from reports.plots.cdf import curves
from tests.reports.drawing.test_style import paint
from tests.reports_maker import continuous, static

NASTY = "</script><script>alert(1)</script>"


class Parts(HTMLParser):
    """The contents of `<style>` and `<script>`, and every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.contents: dict[str, list[str]] = {"style": [], "script": []}
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in self.contents:
            self.contents[tag].append("")
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.contents[self.inside[-1]][-1] += data


@pytest.fixture(scope="module")
def parts() -> Parts:
    picture = html.figure(draw("p", (2.0, 1.5), paint))
    return Parts(html.page(NASTY, NASTY, [html.section(NASTY, picture)], {"label": NASTY}))


def test_the_policy_names_our_own_style_and_script_alone(parts: Parts) -> None:
    policy = next(value for tag, name, value in parts.attributes if tag == "meta" and "default-src" in value)
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == allowed["base-uri"] == allowed["form-action"] == "'none'"
    assert "unsafe" not in policy
    for kind, content in (("style", parts.contents["style"][0]), ("script", parts.contents["script"][1])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert allowed[f"{kind}-src"] == f"'sha256-{digest}'"
    assert len(parts.contents["style"]) == 1
    assert len(parts.contents["script"]) == 2


def test_data_cannot_end_its_element(parts: Parts) -> None:
    assert json.loads(parts.contents["script"][0]) == {"label": NASTY}
    assert "<" not in json_text({"a": "<!--<script>\u2028&"})


def test_nothing_is_styled_or_handled_in_attributes(parts: Parts) -> None:
    assert [each for each in parts.attributes if each[1] == "style" or each[1].startswith("on")] == []


def test_a_picture_says_in_attributes_what_it_said_in_style() -> None:
    svg = draw("p", (2.0, 1.5), paint).svg
    text = inline(svg, "one")
    first = re.search(r'style="fill: (#\w+); stroke: (#\w+)', svg)
    assert first is not None
    assert "style=" not in text
    assert "<style" not in text
    assert text.count(" stroke-width=") == svg.count("stroke-width:")
    assert len(text) < len(svg)


def test_what_is_of_a_run_has_its_class() -> None:
    assert inline('<svg><g id="run-3-waiting"><path/></g></svg>', "x") == '<svg><g class="run-3"><path/></g></svg>'


def test_wide_pictures_scroll_by_themselves() -> None:
    small, large = (html.figure(draw(name, (width, 2.0), paint)) for name, width in (("s", 5.6), ("l", 10.0)))
    assert 'class="picture wide"' in large
    assert 'class="picture"' in small


def test_numbers_are_packed_without_losing_what_is_seen() -> None:
    assert rounded([1234.56, 0.012345, 5.0, float("nan")]) == [1230, 0.0123, 5, None]
    times = np.cumsum(np.full(50, 0.00033))
    back = np.cumsum(steps_between(times, 1e-4)) * 1e-4
    assert np.abs(back - times).max() <= 0.5e-4 + 1e-12


def test_the_script_is_given_what_the_pictures_show() -> None:
    runs = [("static", static(60)), ("continuous", continuous(60))]
    lines = [curves(label, records, None) for label, records in runs]
    data = page_data(runs, styles([(label, label) for label, _ in runs]), lines)
    quantity = data["curves"]["quantities"]["ttft_cdf"]
    for line, ms, samples in zip(lines, quantity["ms"], quantity["samples"], strict=True):
        assert samples == line["ttft_cdf"].samples == 60
        for percent in PERCENTILES:
            got = np.interp(percent, data["curves"]["percents"], ms)
            assert got == pytest.approx(line["ttft_cdf"].percentile(percent), rel=0.01)
    assert highest(60) < 99.0, "too few requests for a p99"
    for (_, records), run in zip(runs, data["slots"]["runs"], strict=True):
        assert len(run["slot"]) == len(records.requests.row), "the whole of a short run"
        start = np.cumsum(run["start"]) * data["slots"]["unit"]
        end = start + np.sum(run["lengths"], axis=0) * data["slots"]["unit"]
        assert end.max() == pytest.approx(np.nanmax(records.requests.released_s), abs=1e-3)
        steps = np.cumsum(run["steps"]) * data["slots"]["unit"]
        assert np.abs(steps[-1] - records.step_end_s[-1]) < 1e-3
    json.loads(json_text(data))


def test_many_stays_are_cut_to_a_stretch_around_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_STAYS > 1000
    monkeypatch.setattr("reports.html.pieces.MOST_STAYS", 40)
    run = ("continuous", continuous(200))
    data = page_data([run], styles([run[:1] * 2]), [curves(*run, None)])["slots"]
    assert len(data["runs"][0]["slot"]) <= 40
    assert data["from"] <= data["window"][0] < data["window"][1] <= data["to"]


def test_sections_are_linked_and_may_be_folded() -> None:
    one = html.section("How <it> went", html.text("well"))
    other = html.section("By class (first seed)", html.text("so"), folded=True)
    page = html.page("t", "s", [one, other])
    assert (
        '<a href="#how-it-went">How &lt;it&gt; went</a><a href="#by-class-first-seed">By class (first seed)</a>' in page
    )
    assert '<section id="by-class-first-seed">' in page
    assert page.count("<details") == 1
    assert "<details" in page[page.index('id="by-class') :]
