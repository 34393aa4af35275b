"""How near to a measured TTFT a prediction can come: runs that were repeated, and runs with a cause of their own."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from docs.writers.accuracy.served import ENGINES, RECIPE
from docs.writers.accuracy.served_row import Row
from docs.writers.accuracy.served_score import Scored, figures
from docs.writers.tables import table

SAME = 1e-3
"""Two rows that differ by less than this share, in TTFT and in TPOT, are one run, listed twice."""
LENGTHS = (RECIPE, (2000, 500))  # of Dynamo's recipes

COLD = "kernels compiled during the run: SGLang's DeepSeek in fp4 of November 2025 and in fp8 on B300"
NO_GRAPHS = "Dynamo's recipes of TensorRT-LLM, which look as if decodes ran without graphs"


def cause_of(row: Row) -> str:
    """Why the TTFT of a row hangs on what no figure gives; '' where nothing is known against it."""
    cold = (row.precision == "fp4" and not row.version) or (row.precision == "fp8" and row.system == "b300_sxm")
    if row.engine == "sglang" and "DeepSeek" in row.model and cold:
        return COLD
    return NO_GRAPHS if row.engine == "trtllm" and (row.isl, row.osl) in LENGTHS else ""


def repeats(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By how much runs of one setting differ from the next later one, of the same version and of another.

    The setting is engine, model, GPU, precision, parallel sizes, lengths and users.
    """
    settings: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.measured):
        sizes = row.tensor_parallel, row.data_parallel, row.moe_tensor, row.moe_expert, row.isl, row.osl
        setting = settings[row.engine, row.model, row.system, row.precision, row.concurrency, *sizes]
        if all(max(_apart(row, other)) > SAME for other in setting):
            setting.append(row)
    pairs = [pair for setting in settings.values() for pair in pairwise(setting)]
    found = {}
    for name, alike in (("same version", True), ("another version", False)):
        apart = [_apart(one, two) for one, two in pairs if (one.version == two.version) == alike]
        if apart:
            ttft, tpot = (float(np.median(each)) for each in zip(*apart, strict=True))
            found[name] = {"pairs": len(apart), "ttft": round(ttft, 4), "tpot": round(tpot, 4)}
    return found


def _apart(one: Row, two: Row) -> tuple[float, float]:
    pairs = (one.ttft_ms, two.ttft_ms), (one.tpot_ms, two.tpot_ms)
    return tuple(abs(first - second) / min(first, second) for first, second in pairs)  # type: ignore[return-value] # two


def floor(scored: Sequence[Scored]) -> dict[str, Any]:
    """The figures by engine, over all rows and over those without a cause of their own, and by cause."""
    priced = [each for each in scored if not (each.contradiction or each.refused or np.isnan(each.ttft))]
    engines, causes = {}, defaultdict(list)
    for each in priced:
        causes[cause_of(each.row)].append(each)
    for engine in ENGINES:
        own = [each for each in priced if each.row.engine == engine]
        if own:
            explained = [each for each in own if not cause_of(each.row)]
            engines[engine] = {
                **_ttft("", own), **_ttft("explained_", explained), "repeats": repeats([each.row for each in own]),
            }  # fmt: skip
    return {"engines": engines, "causes": {cause: _ttft("", some) for cause, some in sorted(causes.items()) if cause}}


def _ttft(prefix: str, scored: Sequence[Scored]) -> dict[str, float]:
    found = figures(scored)
    return {f"{prefix}{name}": found[name] for name in ("rows", "ttft_median") if name in found}


def floor_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The tables of the page."""
    yield from (
        "## How near TTFT can come",
        "",
        "Some rows depend on settings that the sample does not record. The causes were found by cell, after the errors",
        "were seen; all rows of a cause count, good ones too. Median error of TTFT with and without them (%):",
        "",
    )
    names = ("rows", "ttft_median", "explained_rows", "explained_ttft_median")
    engines, causes = found["engines"], found["causes"]
    head = ("engine", "rows", "TTFT", "rows without such a cause", "TTFT")
    yield from table(head, [(engine, *_cells(each, names)) for engine, each in engines.items()])
    yield ""
    yield from table(("cause", "rows", "TTFT"), [(cause, *_cells(each, names[:2])) for cause, each in causes.items()])
    yield from (
        "",
        "Some settings were run again, on another day. No prediction from settings alone can beat half the spread of",
        "repeated runs (median, % of the smaller; runs that are listed twice, with TTFT and TPOT the same to a",
        "thousandth, count as one):",
        "",
    )
    again = [
        (engine, kind, *_cells(apart, ("pairs", "ttft", "tpot")))
        for engine, each in engines.items()
        for kind, apart in each["repeats"].items()
    ]
    yield from table(("engine", "run again with", "pairs", "TTFT differs by", "TPOT differs by"), again, range(2, 5))
    yield ""


def _cells(found: Mapping[str, float], names: Sequence[str]) -> list[str]:
    return [_cell(found[name], whole=name.endswith(("rows", "pairs"))) if name in found else "-" for name in names]


def _cell(value: float, *, whole: bool) -> str:
    return f"{value:.0f}" if whole else f"{100 * value:.1f}"
