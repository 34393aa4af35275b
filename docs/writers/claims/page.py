"""The page of claims, written from the scenarios and their runs."""

from collections.abc import Iterator
from functools import cache

from docs.writers.claims import latency, memory, ratios, steps, systems
from docs.writers.claims.claim import Claim, ClaimResult
from docs.writers.claims.markdown import filled, table_lines
from docs.writers.claims.runs import run
from docs.writers.tables import Files, csv_text

CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (*steps.CLAIMS, *ratios.CLAIMS, *systems.CLAIMS, *memory.CLAIMS, *latency.CLAIMS),
        key=lambda claim: claim.number,
    )
)

_HEAD = """# Common claims about batching, tested

Each claim is a shipped scenario (`batchlab run {first}`). This page is written from the runs (`make pages
PAGES=claims`). All times come from cost models (`cost:` in each scenario), so they show the effect of scheduling alone
on one GPU. Each run has one seed unless it says otherwise; another seed moves ratios by some 10 %.
[claims.csv](data/claims.csv) has the expected and the measured figures of each claim, and why they are expected:
derived where possible, else from a first run.

`orca` is continuous batching in its plainest form, with prompts in the same steps as decodes. `continuous` gives
prompts steps of their own. `chunked_prefill` is vLLM's scheduler. All have the same slots as static batching, unless
the claim is about slots. CV is the coefficient of variation: standard deviation over mean.
"""


@cache
def measured(claim: Claim) -> ClaimResult:
    """Result of the claim's runs; they are run once."""
    found = claim.measure()
    run.cache_clear()  # runs are shared within a claim; their records need not be kept for the next
    return found


def page() -> str:
    """The whole page, as Markdown."""
    rows = [overview_row(claim) for claim in CLAIMS]
    return "\n\n".join(["\n".join([head(), *rows]), *(section(claim) for claim in CLAIMS)]) + "\n"


DATA = "data/claims.csv"


def files() -> Files:
    """Expected and measured figures of every claim."""
    rows = [row for claim in CLAIMS for row in figure_rows(claim)]
    return {DATA: csv_text(("claim", "figure", "expected", "measured", "why"), rows)}


def figure_rows(claim: Claim) -> list[tuple[object, ...]]:
    """The rows of a claim in the data file."""
    figures = measured(claim).figures
    return [
        (claim.number, one.figure, one.written, f"{figures[one.figure]:.4g}", one.why) for one in claim.head.expected
    ]


def head() -> str:
    """Text before the first row of the table of claims."""
    text = _HEAD.format(first=CLAIMS[0].scenario)
    return f"{text}\n| | claim | verdict | measured |\n| --- | --- | --- | --- |"


def overview_row(claim: Claim) -> str:
    """The claim's row in the table at the top."""
    figures = measured(claim).figures
    texts = (claim.head.title, filled(claim.verdict, figures), filled(claim.brief, figures))
    return f"| [{claim.number}](#claim-{claim.number}) | " + " | ".join(texts) + " |"


def section(claim: Claim) -> str:
    """The claim's part of the page."""
    return "\n".join(_section(claim))


def _section(claim: Claim) -> Iterator[str]:
    head, found = claim.head, measured(claim)
    yield f"## Claim {claim.number}"
    yield ""
    yield f"> {head.claim}"
    yield ""
    yield f"Said: {head.said}. Scenario: [`{claim.scenario}`](../scenarios/library/{claim.scenario}.yaml)."
    for table in found.tables:
        yield ""
        yield from table_lines(table)
    yield ""
    yield f"**Verdict: {filled(claim.verdict, found.figures)}.**"
    yield ""
    yield f"Where it holds: {filled(claim.holds, found.figures)}"
    yield ""
    yield f"Where it does not: {filled(claim.fails, found.figures)}"
