"""The pages in a real browser: silent, complete, worked by mouse and keyboard, and deaf to what a file brings along."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reports.pages.lockstep_report import LockstepReport, write_lockstep
from reports.pages.plan_report import PlanPage, Searched
from reports.pages.plan_report import write_report as write_plan_report
from reports.pages.run_report import write_report
from reports.pages.validation_report import write_validation
from reports.picture import ReportRun
from reports.sweep.points import SweepAxis, SweepResult
from reports.sweep.sweep_report import write_sweep_report
from reports.tables.details import TableRows
from simulator.lockstep.step_errors import read_csv
from simulator.metrics.summary import summarize
from tests.browser import Opened, chromium
from tests.reports.pages.test_plan_report import GRID
from tests.reports.pages.test_run_report import PLOTS, SLO
from tests.reports.pages.test_validation_report import facing
from tests.reports.sweep.results import RATES, made
from tests.reports_maker import continuous, static
from tests.scenarios.validate.test_lockstep_case import RECORDED

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
NASTY = "<script>alert(1)</script>"
WORSE = '"><img src=x onerror=alert(1) style="position:fixed">'
PAGES = ("runs", "sweep", "plan", "validation", "lockstep")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


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


def some_sweep() -> SweepResult:
    """Rates over two policies whose names would like to be markup, and a point that failed."""
    policies = SweepAxis(("engine.policy",), NASTY, (NASTY, WORSE))
    found = made((RATES, policies), errors={(1, 0): WORSE}, limits={"p99_ttft_ms": 1e3})
    return replace(found, name=NASTY, study=f"name: {NASTY}\n")


def some_plan() -> PlanPage:
    """Two candidates, searched with two seeds, and a map of two settings."""
    used = {f"{NASTY}:p99_ttft_ms<=500": [[(4.0, 0.5), (6.0, 0.9), (8.0, 1.6)]] * 2, "p99_tpot_ms<=50": [[(4.0, 0.2)]]}
    searched = [Searched(label, used, (5.5, 6.2, 7.1), 5.0) for label in (NASTY, WORSE)]
    rows = TableRows(("candidate", "rate (req/s)", "TTFT p99"), ((NASTY, "6.2", "9,120 ms"), (WORSE, "11", "35.4 s")))
    grid = replace(GRID, x=NASTY, y_labels=(NASTY, WORSE))
    return PlanPage(NASTY, WORSE, NASTY, [f"binds: {WORSE}", f"deploy: vllm {NASTY}"], rows, [WORSE], searched, grid)


@pytest.fixture(scope="module")
def runs() -> list[ReportRun]:
    return some_runs()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, runs: list[ReportRun]) -> Path:
    path = tmp_path_factory.mktemp("pages")
    write_report(path / "runs", runs, [NASTY, WORSE])
    write_sweep_report(path / "sweep", some_sweep())
    write_plan_report(path / "plan", some_plan())
    write_validation(path / "validation", replace(facing(), title=NASTY, words=[NASTY, WORSE], notes=[WORSE]))
    steps = read_csv(RECORDED)[:600]
    write_lockstep(path / "lockstep", LockstepReport(NASTY, steps, {NASTY: WORSE}, [NASTY, WORSE], NASTY, [WORSE]))
    return path


def unfold(one: Opened) -> None:
    """Open every folded section, as a reader does."""
    for fold in one.page.locator("details.fold > summary").all():
        fold.click()


@pytest.fixture(scope="module")
def page_of_runs(browser: Browser, folder: Path) -> Iterator[Opened]:
    one = Opened(browser, folder / "runs/report.html")
    unfold(one)
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
    unfold(one)
    for width, theme in ((1280, "light"), (1280, "dark"), (390, "dark"), (390, "light")):
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
    one.page.emulate_media(media="print", color_scheme="dark")
    assert (
        one.page.locator("button.tools, fieldset:visible, .tools:visible, canvas:visible, output:visible").count() == 0
    )
    assert one.page.locator("figure svg[role=img]:visible").count() == len(seen)
    assert one.page.locator("h1").inner_text().startswith((NASTY, WORSE, "a <server>"))
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
    unfold(one)
    assert one.page.locator("figure svg[role=img]:visible").count() == len(PLOTS)
    assert one.page.locator("button:visible, input:visible").count() == 0
    cells = one.page.locator("#controls td[data-of]").all_inner_texts()
    assert cells
    assert all(cells)
    one.close()
    assert one.events == []


def test_values_of_a_sweep_are_read_off_toggled_and_zoomed(browser: Browser, folder: Path) -> None:
    one = Opened(browser, folder / "sweep/report.html")
    figure = one.page.locator('figure[data-name="throughput_latency"]')
    svg, says, frame = figure.locator("svg[role=img]"), figure.locator("output"), figure.locator(".picture")
    frame.focus()
    one.page.keyboard.press("ArrowRight")
    first = says.inner_text()
    assert "TTFT p99" in first or "E2E p99" in first
    assert re.search(r"[\d.,]+ m?s", first)
    one.page.keyboard.press("ArrowRight")
    assert says.inner_text() != first
    ring = figure.locator("circle.ring")
    box = ring.bounding_box()
    assert box is not None
    before = says.inner_text()
    one.page.keyboard.press("ArrowRight")
    one.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert says.inner_text() == before, "by mouse as by keyboard"
    whole = svg.get_attribute("viewBox")
    one.page.keyboard.press("+")
    assert svg.get_attribute("viewBox") != whole
    one.page.keyboard.press("Home")
    assert svg.get_attribute("viewBox") == whole
    lines = figure.locator(".run-0:visible")
    there = lines.count()
    assert there >= 4
    figure.get_by_label(NASTY).uncheck()
    assert lines.count() == 0
    assert figure.locator(".run-1:visible").count() >= 4
    figure.get_by_label(NASTY).check()
    assert lines.count() == there
    one.close()
    assert one.events == []


def test_points_of_a_sweep_are_sorted_and_their_columns_chosen(browser: Browser, folder: Path) -> None:
    one = Opened(browser, folder / "sweep/report.html")
    table = one.page.locator("table.sortable")
    column = [head.inner_text().split("\n")[0] for head in table.locator("thead th").all()].index("TTFT p99")

    def values() -> list[float]:
        cells = table.locator(f"tbody td:nth-child({column + 1})").all_inner_texts()
        return [float(re.split("[ ±[]", cell)[0].replace(",", "")) for cell in cells]

    assert values() != sorted(values())
    button = table.locator("th").nth(column).get_by_role("button")
    button.click()
    assert values() == sorted(values())
    button.press("Enter")
    assert values() == sorted(values(), reverse=True)
    head = table.locator("thead th", has_text="TPOT p50")
    assert head.is_hidden()
    one.page.get_by_label("TPOT p50 (ms)").check()
    assert head.is_visible()
    one.page.get_by_label("TTFT p99 (ms)").uncheck()
    assert table.locator("th").nth(column).is_hidden()
    one.close()
    assert one.events == []


def test_runs_of_a_plan_are_read_off_and_candidates_sorted(browser: Browser, folder: Path) -> None:
    one = Opened(browser, folder / "plan/report.html")
    figure = one.page.locator('figure[data-name="rates"]')
    figure.locator(".picture").focus()
    one.page.keyboard.press("ArrowRight")
    assert re.search(r"at [\d.]+ requests/s: [\d.]+ % of ", figure.locator("output").inner_text())
    figure.get_by_label("TPOT p99").uncheck()
    assert figure.locator(".run-1:visible").count() == 0
    cells = one.page.locator('figure[data-name="settings"]')
    cells.locator("svg[role=img]").hover()
    cells.locator(".picture").focus()
    one.page.keyboard.press("ArrowRight")
    assert "largest rate" in cells.locator("output").inner_text()
    table = one.page.locator("table.sortable")
    table.get_by_role("button", name="TTFT p99").click()
    table.get_by_role("button", name="TTFT p99").click()
    assert table.locator("tbody td:first-child").all_inner_texts() == [WORSE, NASTY], "35.4 s is more than 9,120 ms"
    one.close()
    assert one.events == []


def test_a_validation_has_the_controls_of_a_report(browser: Browser, folder: Path) -> None:
    one = Opened(browser, folder / "validation/report.html")
    cell = one.page.locator('#controls td[data-of="1"][data-quantity="ttft_cdf"]')
    of_p99 = cell.inner_text()
    one.page.locator('#controls input[value="50"]').check()
    assert cell.inner_text() != of_p99
    figure = one.page.locator('figure[data-name="ttft_cdf"]')
    figure.locator("svg[role=img]").hover()
    assert re.match(r"p[\d.]+: measured [\d.,]+ m?s, simulated ", figure.locator("output").inner_text())
    one.page.locator('#controls input[data-run="0"]').uncheck()
    assert figure.locator(".run-0:visible").count() == 0
    one.page.locator('.explorer[data-kind="timeline"]').get_by_role("button", name="Zoom in").click()
    pairs = one.page.locator('figure[data-name="requests"]')
    pairs.locator(".picture").focus()
    one.page.keyboard.press("ArrowRight")
    assert re.search(r"measured, .* simulated: [+-]", pairs.locator("output").inner_text())
    one.close()
    assert one.events == []


def test_steps_of_a_lockstep_are_read_off(browser: Browser, folder: Path) -> None:
    one = Opened(browser, folder / "lockstep/report.html")
    for name, words in (
        ("lockstep_scatter", "ms measured"),
        ("lockstep_errors", "of the steps"),
        ("lockstep_drift", "after"),
    ):
        figure = one.page.locator(f'figure[data-name="{name}"]')
        figure.locator(".picture").focus()
        one.page.keyboard.press("ArrowRight")
        assert words in figure.locator("output").inner_text()
    one.close()
    assert one.events == []
