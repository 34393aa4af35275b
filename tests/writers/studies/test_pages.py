"""Studies: each page of `docs/studies` says what its runs say, its figures are as expected, its commands can be run."""

import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import scenarios
from docs.writers.claims.runs import figure, run
from docs.writers.studies import low_rates, studies
from docs.writers.studies.panels import panels_picture
from docs.writers.studies.study import Line, Panel, Study, data_files, page, read_head
from simulator.policies import built_in_policies
from tests.shared_data import shared

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "studies"
STUDIES: Mapping[str, Study] = studies()

by_study = pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
by_measured_study = pytest.mark.parametrize(
    "study",
    [pytest.param(study, marks=pytest.mark.slow if study.trace else pytest.mark.long) for study in STUDIES.values()],
    ids=lambda study: study.name,
)
"""A study takes a quarter of a CPU minute and more; those that read a trace take minutes, and need it."""


def needed(study: Study) -> None:
    """Skips the test where a study's trace is absent."""
    if study.trace:
        shared(study.trace)


def test_every_study_has_its_scenario_its_page_and_its_picture() -> None:
    shipped = {name for name in scenarios.shipped() if name.startswith("study-")}
    assert shipped == {study.scenario for study in STUDIES.values()}
    assert {path.stem for path in PAGES.glob("*.md")} == set(STUDIES)
    assert {path.name for path in PAGES.glob("*.png")} == {study.picture for study in STUDIES.values()}


@by_measured_study
def test_measures_what_is_expected_and_the_page_says_so(study: Study) -> None:
    """One test for all, so that a study is run once: the page also fails where a text names no figure."""
    needed(study)
    found = study.measure()
    for one in study.expected:
        value = found.figures[one.figure]
        assert abs(value - one.value) <= one.tolerance, f"{one.figure} is {value:g}, not {one.written}"
    written = (PAGES / f"{study.name}.md").read_text(encoding="utf-8")
    again = f"write it again: make pages PAGES={study.name}"
    assert written == page(study, found), again
    files = data_files(found)
    assert {name: (PAGES.parent / name).read_text(encoding="utf-8") for name in files} == files, again
    assert panels_picture(study.name, found.panels).png.startswith(b"\x89PNG")


@by_study
def test_the_head_can_be_followed(study: Study) -> None:
    needed(study)
    head = read_head(study.scenario)
    assert head.title
    assert head.question.endswith("?")
    for command in head.commands:
        words = shlex.split(command)
        assert words[0] == "batchlab"
        assert words[2] == study.scenario
        scenarios.load(study.scenario, [words[at + 1] for at, word in enumerate(words) if word == "--set"])
        policies = [words[at + 1] for at, word in enumerate(words) if word == "--policies"]
        assert (words[1] == "compare") == bool(policies)
        assert all(set(listed.split(",")) <= set(built_in_policies()) for listed in policies)


def test_a_head_that_lacks_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scenarios.schema.loader._LIBRARY", tmp_path)
    (tmp_path / "study-bare.yaml").write_text("# Study: x\n#\n# Question x?\nname: x\n", encoding="utf-8")
    with pytest.raises(ValueError, match="lacks a title, a Question or what to Try"):
        read_head("study-bare")
    text = "# Study: x\n# Question x\n#          y?\n# Try      batchlab a\n#          batchlab b\n"
    (tmp_path / "study-whole.yaml").write_text(text, encoding="utf-8")
    assert read_head("study-whole").question == "x y?"
    assert read_head("study-whole").commands == ("batchlab a", "batchlab b")


def test_an_unknown_study_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "docs.writers", "low-rate"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "no page is called 'low-rate'" in done.stderr
    assert "did you mean `low-rates`?" in done.stderr


LINES = ([Line("a", [(1, 1), (2, 3)])], [Line("a", [(1, 1), (2, 3)]), Line("limit", [(1, 2), (2, 2)], dashed=True)])


def test_a_picture_needs_a_panel_and_is_the_same_twice() -> None:
    with pytest.raises(ValueError, match="at least one panel"):
        panels_picture("x", [])
    panel = Panel("t", "x", "y", LINES[1])
    assert panels_picture("x", [panel]).png == panels_picture("x", [panel]).png
    dashes = [panels_picture("x", [replace(panel, lines=lines)]).svg.count("stroke-dasharray") for lines in LINES]
    assert dashes[0] < dashes[1]


# ------------------------------------------------------------------------------- figures that a formula gives as well


@pytest.mark.parametrize(("rate", "tokens"), [(0.05, 100), (0.02, 400)])
def test_the_rule_of_low_rates_on_equal_requests(rate: float, tokens: int) -> None:
    """Requests all alike, no padding, CV 0: the mean wait is rate x S / 2 of a request's own time S, at low rates."""
    fixed = f"{{dist: fixed, value: {tokens}}}"
    keys = (
        f"workload.classes=[{{name: a, arrival: {{process: poisson, rate: {rate}}}, input: {fixed}, output: {fixed}}}]",
        "workload.requests=4000",
        "cost={kind: linear, base_s: 0.01, per_token_s: 0, per_context_token_s: 0}",
    )
    static = run(low_rates.SCENARIO, "static", *keys)
    own_s = tokens * 0.01
    waited = figure(static, "mean_e2el_ms") / 1e3 / own_s - 1
    assert waited == pytest.approx(rate * own_s / 2, rel=0.12)
    run.cache_clear()


def test_the_crossing_is_between_the_rates_around_it() -> None:
    ratios = {rate: 1 + rate for rate in low_rates.RATES}
    assert low_rates._crossing(ratios) == pytest.approx(0.1)
    assert low_rates._crossing({rate: 1 + 20 * rate for rate in low_rates.RATES}) == pytest.approx(0.005)
