import hashlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import pytest
from markupsafe import Markup

from reports.html import pieces as html
from reports.html.pieces import inline
from reports.pages import run_report as build
from reports.pages.run_report import plots, write_report
from reports.picture import Picture, ReportRun, draw, styles, write
from reports.tables.details import METRICS_TABLE, OTHER_TOOLS, TableRows
from simulator.errors import InputError
from simulator.metrics.latency import Slo
from simulator.metrics.summary import summarize
from tests.reports.drawing.test_style import paint
from tests.reports_maker import continuous, static

SLO = Slo(ttft_ms=1000, tpot_ms=50)
NASTY = "<script>alert('&')</script>"
YAML = "name: chat-rush-hour\nengine:\n  policy: {}\n  max_num_seqs: 16\n"


def some_runs() -> list[ReportRun]:
    classes = ("chat", NASTY)
    both = {
        "static": static(50, classes=classes),
        NASTY: continuous(50, num_blocks=150, classes=classes),
    }
    return [
        ReportRun(label, "static" if label == "static" else "mine.py:P", records, [summarize(records, slo=SLO)],
                  YAML.format(label), SLO)
        for label, records in both.items()
    ]  # fmt: skip


PLOTS = {plot.name for plot in plots(some_runs(), styles([("static", "static"), (NASTY, "mine.py:P")]))}


def test_every_file_of_plots_has_its_plots() -> None:
    known = "gantt kv_by_request ttft_cdf tpot_cdf itl_cdf e2el_cdf timeline fairness throughput latency"
    assert PLOTS.issuperset(known.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    write(path / "report.html", "an older one")
    assert write_report(path, some_runs(), [f"skipped 3 rows {NASTY}"]) == path / "report.html"
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Reader(HTMLParser):
    """Checks that elements close in order; collects attributes, ids and text."""

    VOID = ("meta", "img", "br", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_every_picture_is_there_in_both_forms(folder: Path) -> None:
    names = {f"plots/{name}.{ending}" for name in PLOTS for ending in ("png", "svg")}
    assert set(hashes(folder)) == names | {"report.html"}


def write_some(folder: Path, one_of: int) -> None:
    """A report with one of so many of its pictures."""
    whole = build.plots
    with mock.patch.object(build, "plots", lambda runs, style: whole(runs, style)[::one_of]):
        write_report(folder, some_runs(), ["skipped 3 rows " + NASTY])


@pytest.mark.parametrize("one_of", [8, pytest.param(1, marks=pytest.mark.long)])
def test_the_same_runs_make_the_same_bytes_in_another_process(one_of: int, tmp_path: Path) -> None:
    write_some(tmp_path / "here", one_of)
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from pathlib import Path\n"
        "from tests.reports.pages.test_run_report import write_some\n"
        f"write_some(Path({str(tmp_path / 'there')!r}), {one_of})\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": "11", "TZ": "Asia/Tokyo"},
        check=True,
    )
    assert hashes(tmp_path / "there") == hashes(tmp_path / "here")
    assert len(hashes(tmp_path / "here")) > 4


def test_the_page_fetches_nothing(page: str, reader: Reader) -> None:
    assert "http" not in page.lower().replace("http-equiv", "")
    assert not re.search(r"@import|\bsrc=\"(?!data:)|url\((?!#)", page)
    assert not {"link", "iframe", "object", "base", "form"} & set(reader.tags)
    assert reader.tags.count("script") == 2, "the data and what reads them"
    for tag, name, value in reader.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:image/png;base64,")), (tag, value)


def test_references_inside_the_page_lead_somewhere(page: str, reader: Reader) -> None:
    ids = [value for _, name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids)), "pictures must not share ids"
    used = set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", page))
    assert used
    assert used <= set(ids)


def test_what_users_write_is_escaped(page: str, reader: Reader) -> None:
    assert NASTY not in page
    assert "&lt;script&gt;" in page
    assert any(f"skipped 3 rows {NASTY}" in text for text in reader.text)


def test_the_page_holds_everything(reader: Reader) -> None:
    said = " ".join(" ".join(reader.text).split())
    for text in (
        "chat-rush-hour", "Verdict", "What the slots did", "Look for grey", "Latency", "Over time", "By class",
        "Longest waits", "Notes", "max_num_seqs: 16", "AIPerf", "GuideLLM", "Other seeds may disagree",
        "TTFT p99", "req/s", "every limit of the SLO",
    ):  # fmt: skip
        assert text in said, text
    assert reader.tags.count("figure") == len(PLOTS)
    assert reader.attributes.count(("svg", "role", "img")) == len(PLOTS)
    assert reader.tags.count("figcaption") == len(PLOTS)
    assert all(row[0] in said for row in (*METRICS_TABLE.body, *OTHER_TOOLS.body))


def test_other_scenarios_show_what_differs(page: str) -> None:
    assert "-  policy: static" in page
    assert page.count("max_num_seqs: 16") == 1


def test_the_page_is_made_for_light_and_dark(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert "color-scheme: light dark" in page
    own_style, _, rest = page.partition("</style>")
    for color in ("#1b1f24", "#5b6471", "#dfe3e8"):
        assert color in own_style
        assert color not in rest, "pictures take the page's colours"
    assert page.count("var(--ink)") > 100


def test_runs_of_one_name_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blank = {name: Picture(name, "", b"", "<svg></svg>") for name in PLOTS}
    monkeypatch.setattr(build, "draw_all", lambda runs, style: blank)
    run = some_runs()[0]
    page = write_report(tmp_path, [run, run]).read_text(encoding="utf-8")
    assert "static (2)" in page


def test_no_run_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run"):
        write_report(tmp_path, [])


def test_nothing_half_written_is_left_beside_the_report(folder: Path) -> None:
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_an_unwritable_folder_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot write"):
        write(tmp_path / "file" / "report.html", "x")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    return tmp_path / "report.html"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(broken: Path) -> None:
    broken.write_text("old", encoding="utf-8")
    with pytest.raises(InputError, match="No space left on device"):
        write(broken, "new")
    assert [path.name for path in broken.parent.iterdir()] == ["report.html"]
    assert broken.read_text(encoding="utf-8") == "old"


def test_inlined_pictures_keep_their_own_ids() -> None:
    svg = draw("p", (2.0, 1.5), paint).svg
    text = inline(svg, "one")
    assert text.startswith("<svg")
    assert "one-" in text
    assert "metadata" not in text
    assert not re.search(r'\bid="(?!one-)|href="#(?!one-)|url\(#(?!one-)', text)


def test_a_huge_picture_goes_in_as_png() -> None:
    picture = Picture("big", "a <caption>", b"\x89PNG", "<svg>" + "x" * html.MAX_SVG + "</svg>")
    text = html.figure(picture)
    assert 'src="data:image/png;base64,iVBORw=="' in text
    assert "a &lt;caption&gt;" in text
    assert len(text) < 500


def test_tables_escape_and_put_units_below() -> None:
    text = html.table(TableRows(("run", "wait (s)"), ((NASTY, "1 < 2"),)))
    assert NASTY not in text
    assert '<th scope="col">wait<small>s</small></th>' in text
    assert "1 &lt; 2" in text
    assert html.table(None) == ""
    assert html.section("Nothing", Markup()) == ""


@pytest.mark.parametrize(
    "piece",
    [
        html.page(NASTY, NASTY, []),
        html.section(NASTY, html.text(NASTY)),
        html.paragraphs([NASTY], "notes"),
        html.figure(Picture(NASTY, NASTY, b"", "x" * (html.MAX_SVG + 1))),
        html.table(TableRows((NASTY, f"a ({NASTY})"), ((NASTY, NASTY),)), title=NASTY),
        html.details(NASTY, NASTY),
        html.section("plain text in the place of a piece", NASTY),  # type: ignore[arg-type] # what mypy would stop
    ],
)
def test_every_piece_escapes_what_it_is_given(piece: str) -> None:
    assert "<script" not in piece
    assert "&lt;script&gt;" in piece
