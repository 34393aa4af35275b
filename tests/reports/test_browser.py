"""The pages in a real browser: silent, complete, worked by mouse and keyboard, and deaf to what a file brings along."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reports.build import write_report
from reports.run import ReportRun
from reports.sweep.build import write_sweep_report
from reports.validation import write_validation
from simulator.metrics.summary import summarize
from tests.conftest import BROWSERS
from tests.reports.sweep.results import made
from tests.reports.test_build import PLOTS, SLO
from tests.reports.test_validation import facing
from tests.reports_maker import continuous, static

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

pytestmark = pytest.mark.browser
NASTY = "<script>alert(1)</script>"
WORSE = '"><img src=x onerror=alert(1) style="position:fixed">'
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
PAGES = ("runs", "sweep", "validation")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    found = next(path for name in BROWSERS if (path := shutil.which(name)))
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=found, args=list(FLAGS))
        yield started
        started.close()


def some_runs() -> list[ReportRun]:
    """Two runs whose every text would like to be markup."""
    classes = ("chat", NASTY)
    both = {NASTY: static(60, classes=classes), WORSE: continuous(60, num_blocks=150, classes=classes)}
    named = f"name: {NASTY}\n# </pre>{WORSE}\n"
    return [
        ReportRun(label, "static" if label == NASTY else WORSE, records, [summarize(records, slo=SLO)], named, SLO,
                  state=WORSE, findings=[(NASTY, WORSE, NASTY, WORSE, NASTY)])
        for label, records in both.items()
    ]  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> list[ReportRun]:
    return some_runs()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, runs: list[ReportRun]) -> Path:
    path = tmp_path_factory.mktemp("pages")
    write_report(path / "runs", runs, [NASTY, WORSE])
    write_sweep_report(path / "sweep", made(errors={(1, 0): WORSE}, limits={"p99_ttft_ms": 1e3}))
    write_validation(path / "validation", replace(facing(), title=NASTY, notes=[WORSE]))
    return path


class Opened:
    """A page that has loaded, with everything that it said, asked for, or put in the reader's way."""

    def __init__(self, browser: Browser, file: Path, width: int = 1280, **options: Any) -> None:
        self.events: list[str] = []
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page: Page = context.new_page()
        self.page.on("console", lambda message: self.events.append(f"console: {message.text}"))
        self.page.on("pageerror", lambda error: self.events.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.events.append(f"request: {request.url}"))
        self.page.goto(file.as_uri())
        self.page.wait_for_timeout(150)
        assert self.events.pop(0) == f"request: {file.as_uri()}"

    def _dismiss(self, dialog: Dialog) -> None:
        self.events.append("dialog")
        dialog.dismiss()

    def close(self) -> None:
        self.page.context.close()


@pytest.fixture(scope="module")
def page_of_runs(browser: Browser, folder: Path) -> Iterator[Opened]:
    one = Opened(browser, folder / "runs/report.html")
    yield one
    one.close()


@pytest.fixture
def opened(page_of_runs: Opened) -> Iterator[Opened]:
    """The page of runs, which several tests share: each leaves it as it was, and silent."""
    yield page_of_runs
    assert page_of_runs.events == []


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_silent_fetch_nothing_fit_and_can_be_read_by_all(browser: Browser, folder: Path, name: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    one = Opened(browser, folder / name / "report.html")
    for width, theme in ((1280, "light"), (390, "dark")):
        one.page.set_viewport_size({"width": width, "height": 900})
        one.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        one.page.wait_for_timeout(100)
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width
        figures = one.page.locator("figure").all()
        seen = [figure.bounding_box() for figure in figures]
        assert seen
        assert all(box is not None and box["width"] > 250 and box["height"] > 120 for box in seen)
        for figure in figures:
            assert figure.locator("svg[role=img]:visible, canvas:visible, img:visible").count() == 1
        found = Axe().run(one.page).response["violations"]
        assert [(each["id"], [node["html"][:160] for node in each["nodes"][:3]]) for each in found] == []
    one.close()
    assert one.events == []


def test_every_picture_of_the_runs_is_there(opened: Opened) -> None:
    names = [figure.get_attribute("data-name") for figure in opened.page.locator("figure").all()]
    assert set(names) == PLOTS
    assert NASTY in opened.page.title()
    assert NASTY in opened.page.locator("h1").inner_text()


def test_what_a_file_brings_along_does_nothing(browser: Browser, folder: Path) -> None:
    """Even were it written unescaped, the policy would not let it run, look like anything, or fetch."""
    opened = Opened(browser, folder / "sweep/report.html")
    page = opened.page
    blocked: list[str | None] = []
    page.on("requestfailed", lambda request: blocked.append(request.failure))
    page.evaluate(
        """text => {
            const spot = document.body.appendChild(document.createElement("div"));
            spot.id = "spot";
            spot.innerHTML = '<b id="b" style="position:fixed" onclick="window.hit = 1">x</b>' + text;
            const script = document.createElement("script");
            script.textContent = "window.hit = 1";
            spot.append(script);
            document.getElementById("b").click();
        }""",
        WORSE,
    )
    page.wait_for_timeout(100)
    assert page.evaluate("window.hit") is None
    assert page.evaluate("getComputedStyle(document.getElementById('b')).position") == "static"
    assert not any(event == "dialog" for event in opened.events)
    said = opened.events
    opened.close()
    refused = [event for event in said if "Content Security Policy" in event]
    assert len(refused) >= 4
    assert len(said) - len(refused) == len(blocked) == 1
    assert blocked == ["csp"], "the picture was asked for, and never fetched"


def test_runs_and_percentiles_are_chosen_by_mouse(opened: Opened) -> None:
    page = opened.page
    cell = page.locator('#controls td[data-of="1"][data-quantity="ttft_cdf"]')
    of_p99 = cell.inner_text()
    page.locator('#controls input[value="50"]').click()
    assert cell.inner_text() != of_p99
    assert page.locator("#controls .at").first.inner_text() == "p50"
    rows = page.locator(".run-0:visible")
    before = rows.count()
    assert before > 5
    page.locator('#controls input[data-run="0"]').click()
    assert rows.count() == 0
    page.locator('#controls input[data-run="0"]').click()
    assert rows.count() == before
    page.locator('#controls input[value="99"]').click()
    assert cell.inner_text() == of_p99


def test_the_percentile_under_the_pointer_is_read_off(opened: Opened) -> None:
    figure = opened.page.locator('figure[data-name="ttft_cdf"]')
    figure.locator("svg").hover()
    by_mouse = figure.locator("output").inner_text()
    assert re.match(r"p[\d.]+: <script>alert\(1\)</script> [\d.,]+ m?s, ", by_mouse)
    figure.locator(".picture").focus()
    opened.page.keyboard.press("ArrowUp")
    assert figure.locator("output").inner_text() != by_mouse


def test_slots_go_step_by_step_by_keyboard(opened: Opened, runs: list[ReportRun]) -> None:
    page = opened.page
    canvas = page.locator('.explorer[data-kind="slots"] canvas')
    says = page.locator('.explorer[data-kind="slots"] output')
    canvas.focus()
    for key in ("Home", "+", "+", "+", "+", "ArrowRight", "."):
        page.keyboard.press(key)
        page.wait_for_timeout(40)
    here = float(says.inner_text().partition(" s:")[0])
    page.keyboard.press(".")
    page.wait_for_timeout(60)
    there = float(says.inner_text().partition(" s:")[0])
    ends = sorted(float(end) for run in runs for end in run.records.step_end_s)
    assert there > here
    assert min(abs(end - there) for end in ends) < 2e-3
    page.keyboard.press(",")
    page.wait_for_timeout(60)
    assert float(says.inner_text().partition(" s:")[0]) == here
    assert "decode" in says.inner_text()


def test_the_timeline_zooms_by_mouse_and_reads_values_off(opened: Opened) -> None:
    page = opened.page
    explorer = page.locator('.explorer[data-kind="timeline"]')
    canvas = explorer.locator("canvas")
    whole = canvas.evaluate("canvas => canvas.toDataURL()")
    explorer.get_by_role("button", name="Zoom in").click()
    page.wait_for_timeout(60)
    assert canvas.evaluate("canvas => canvas.toDataURL()") != whole
    canvas.hover()
    page.wait_for_timeout(60)
    assert "waiting" in explorer.locator("output").inner_text()
    explorer.get_by_role("button", name="All").click()
    canvas.evaluate("canvas => canvas.dispatchEvent(new PointerEvent('pointerleave'))")
    assert page.locator('figure[data-name="timeline"] svg[role=img]').is_hidden()


def test_paper_has_the_pictures_and_no_buttons(browser: Browser, folder: Path) -> None:
    one = Opened(browser, folder / "runs/report.html", color_scheme="dark")
    one.page.emulate_media(media="print", color_scheme="dark")
    assert one.page.locator("figure svg[role=img]:visible").count() == len(PLOTS)
    assert one.page.locator("button:visible, input:visible, canvas:visible").count() == 0
    assert one.page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    one.close()
    assert one.events == []


def test_without_its_script_the_page_is_whole(browser: Browser, folder: Path) -> None:
    one = Opened(browser, folder / "runs/report.html", java_script_enabled=False)
    assert one.page.locator("figure svg[role=img]:visible").count() == len(PLOTS)
    assert one.page.locator("button:visible, input:visible").count() == 0
    cells = one.page.locator("#controls td[data-of]").all_inner_texts()
    assert cells
    assert all(cells)
    one.close()
    assert one.events == []
