"""Data files of accuracy.md: every figure of which the page shows the summary. Errors are in per cent."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from docs.writers.accuracy.composed import LeftOut
from docs.writers.accuracy.possible import contradicts_itself
from docs.writers.accuracy.silicon import Scored, grouped
from docs.writers.tables import Files, csv_text
from simulator.timing.tables import Tables

HELD_OUT = "data/held-out-errors.csv"
ROWS_LEFT_OUT = "data/kernel-rows-left-out.csv"
MODELS_LEFT_OUT = "data/models-left-out.csv"
CLOSED_LOOP = "data/closed-loop-runs.csv"

COUNTS = {"cold": "cold", "rejected": "impossible", "disturbed": "disturbed"}
"""Rows of a source that were corrected or left out: the key of the tables, and the word of the pages."""

_FIGURES = {"mape": "mean", "median": "median", "p95": "p95", "bias": "bias"}


def held_out(documents: Iterable[Mapping[str, Any]]) -> str:
    """Held-out errors that profiles and tables state of themselves."""
    rows: list[Sequence[object]] = []
    for each in documents:
        head = each["name"], each.get("software", ""), _sources(each)
        for kernel, regimes in each.get("errors", {}).items():
            for regime, of in regimes.items():
                figures = [f"{of[name]:.1f}" if name in of else "" for name in _FIGURES]
                rows.append((*head, kernel, regime, of.get("rows", ""), *figures))
    return csv_text(("name", "software", "source", "kernel", "left_out", "rows", *_FIGURES.values()), rows)


def rows_left_out(tables: Iterable[Tables]) -> str:
    """Rows of the sources that were corrected or left out, in per cent of those of their kind."""
    lines: list[Sequence[object]] = []
    for each in tables:
        held = {name: each.document.get(name, {}) for name in COUNTS}
        for kind, (_, rows) in held["rejected"].items():
            shares = [100.0 * of[kind][0] / of[kind][1] if kind in of else 0.0 for of in held.values()]
            lines.append((each.name, kind, rows, *(f"{share:.1f}" for share in shares), ""))
        for what, why in each.document.get("left_out", {}).items():
            lines.append((each.name, what, "", "", "", "", why))
    return csv_text(("tables", "kind", "rows", *COUNTS.values(), "why"), lines)


def models_left_out(models: Iterable[LeftOut]) -> str:
    """Errors of models composed of tables without them."""
    rows: list[Sequence[object]] = []
    for model in models:
        for kind, errors in model.errors.items():
            percent = 100.0 * np.asarray(errors)
            size = np.abs(percent)
            figures = (float(np.median(size)), float(np.percentile(size, 95)), float(percent.mean()))
            rows.append((model.profile, model.tables, kind, len(errors), *(f"{figure:.1f}" for figure in figures)))
    return csv_text(("profile", "tables", "steps", "number", "median", "p95", "bias"), rows)


def closed_loop(scored: Sequence[Scored]) -> str:
    """Runs with their error of TPOT; empty where a row contradicts itself and is not scored."""
    rows: list[Sequence[object]] = []
    for group in grouped(scored).values():
        for each in group:
            run = each.run
            error = "" if contradicts_itself(run) else f"{100 * each.error:.1f}"
            rows.append((run.name, run.gpu, run.model, run.dtype, run.version, each.kernels, run.tensor_parallel,
                         run.concurrency, run.isl, run.osl, f"{1e3 * run.tpot_s:.2f}", error))  # fmt: skip
    head = ("run", "gpu", "model", "dtype", "vllm", "kernels", "tp", "concurrency", "isl", "osl", "tpot_ms", "error")
    return csv_text(head, rows)


def accuracy_files(
    profiles: Sequence[Mapping[str, Any]],
    silicon: Sequence[Scored],
    left_out: Sequence[LeftOut],
    tables: Sequence[Tables],
    parts_beside: Sequence[Mapping[str, Any]],
) -> Files:
    """The files of accuracy.md."""
    return {
        HELD_OUT: held_out([*profiles, *(each.document for each in tables), *parts_beside]),
        ROWS_LEFT_OUT: rows_left_out(tables),
        MODELS_LEFT_OUT: models_left_out(left_out),
        CLOSED_LOOP: closed_loop(silicon),
    }


def _sources(document: Mapping[str, Any]) -> str:
    """The public sources of a document: each with its commit or version, and its licence."""
    return "; ".join(
        f"{source.get('source', '')} at {str(source.get('commit') or source.get('version', ''))[:7]}"
        f" ({source.get('licence', '')})"
        for source in document.get("sources", ())
    )
