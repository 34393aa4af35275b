"""A study: a question, the runs that answer it, the text of its page and its picture."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from docs.writers.claims.claim import Expectation, Figures, Table
from docs.writers.claims.markdown import expected_lines, filled, table_lines
from docs.writers.tables import Files, csv_text
from scenarios.schema.loader import header


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a picture: points as (x, y), by rising x.

    `dashed` is for what is not measured: theory, a limit; `steps` for what keeps its value until the next point.
    """

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes of a picture. Both are logarithmic where the values span more than a decade."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Result of a study: figures by name, which texts and expectations refer to; the tables and panels to show."""

    figures: Figures
    tables: Sequence[Table]
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Study:
    """A study of the scenario `study-NAME`. Texts hold `{figure:format}` where a measured figure belongs.

    `setup` says what was run, `alt` what the picture shows, `answer` is its caption and the answer in a paragraph or
    several; `limits` says where it does not hold. `expected` are figures that follow from theory or reason: a run that
    misses one is wrong, or the reason is. `trace` names the file in $BATCHLAB_SHARED that it reads, if any.
    """

    name: str
    setup: str
    alt: str
    answer: Sequence[str]
    limits: str
    expected: Sequence[Expectation]
    measure: Callable[[], StudyResult]
    trace: str = ""

    @property
    def scenario(self) -> str:
        return f"study-{self.name}"

    @property
    def picture(self) -> str:
        """The file name of its picture, beside the page."""
        return f"{self.name}.png"


@dataclass(frozen=True, slots=True)
class Head:
    """The comment at the top of a study's scenario, in parts."""

    title: str
    question: str
    commands: tuple[str, ...]


def read_head(scenario: str) -> Head:
    """The parts of a shipped scenario's comment. ValueError where one is missing."""
    lines = header(scenario)
    title = lines[0].removeprefix("# ").partition(": ")[2]
    text = "\n".join(lines)
    question = re.search(r"^# Question +(.*(?:\n#  +.*)*)", text, re.MULTILINE)
    commands = re.findall(r"^#(?: Try)? +(batchlab .*)$", text, re.MULTILINE)
    if not title or question is None or not commands:
        raise ValueError(f"{scenario}: its head lacks a title, a Question or what to Try")
    return Head(title, " ".join(re.sub(r"\n# +", " ", question[1]).split()), tuple(commands))


def data_files(found: StudyResult) -> Files:
    """The tables that are data files, a row for each cell."""
    return {
        f"data/{table.data}": csv_text(
            (table.head[0], "setting", *table.parts),
            [
                (row[0], setting, *cell.split(" · "))
                for row in table.rows
                for setting, cell in zip(table.head[1:], row[1:], strict=True)
            ],
        )
        for table in found.tables
        if table.data
    }


def page(study: Study, found: StudyResult) -> str:
    """The study's page, as Markdown."""
    return "\n".join(_page(study, found)) + "\n"


def _page(study: Study, found: StudyResult) -> Iterator[str]:
    head = read_head(study.scenario)
    yield f"# {head.title[:1].upper()}{head.title[1:]}"
    yield ""
    yield f"> {head.question}"
    yield ""
    scenario = f"[`{study.scenario}`](../../scenarios/library/{study.scenario}.yaml)"
    yield f"Scenario: {scenario}. {filled(study.setup, found.figures)}"
    yield ""
    yield f"![{study.alt}]({study.picture})"
    for paragraph in study.answer:
        yield ""
        yield filled(paragraph, found.figures)
    for table in found.tables:
        yield ""
        if table.data:
            columns = ", ".join(table.parts)
            yield f"[{table.data}](../data/{table.data}) has {columns} of every {table.head[0]} in every setting."
        else:
            yield from table_lines(table)
    yield ""
    yield f"Where it does not hold: {filled(study.limits, found.figures)}"
    yield ""
    yield from expected_lines(study.expected, found.figures)
    yield ""
    yield "Try it:"
    yield ""
    yield "```"
    yield from head.commands
    yield "```"
    yield ""
    yield f"`make pages PAGES={study.name}` writes this page and its picture again; a test"
    yield "keeps the page true."
