"""Measure what docs/newcomer.md and docs/disaggregated.md show, and keep the figures.

    python -m docs.writers.accuracy.others [newcomer] [disaggregated]

Takes minutes, and needs the measurements of the shared folder. `make pages PAGES="newcomer disaggregated"` writes the
pages from what is kept.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.writers.accuracy import newcomer
from docs.writers.accuracy.disaggregated import Apart, read_apart, score_apart, sizes_words
from docs.writers.accuracy.served import ENGINES
from docs.writers.accuracy.served_score import Scored, by, figures
from scenarios.schema.loader import shared_folder
from simulator.errors import InputError

ROWS = "measured/ground_truth/silicon"
FOLDER = Path(__file__).parent


def of_newcomers() -> dict[str, Any]:
    """The errors of full scenarios, without each key, and of a newcomer's, by server."""
    rows = newcomer.servers(shared_folder() / ROWS)
    return {
        "logged": [{"title": each.title, "errors": dict(each.errors)} for each in newcomer.of_cases()],
        "looped": [
            {"name": each.name, "engine": each.row.engine, "tpot": _rounded(each.tpot), "ttft": _rounded(each.ttft)}
            for each in map(newcomer.looped, rows)
        ],
    }


def of_apart() -> dict[str, Any]:
    """The errors of disaggregated runs, by engine, by cell, by what decodes, and one by one."""
    rows = [apart for engine in ENGINES for apart in read_apart(shared_folder() / ROWS, engine)]
    return apart_figures([(apart, score_apart(apart)) for apart in rows])


def apart_figures(scored: Sequence[tuple[Apart, Scored]]) -> dict[str, Any]:
    """The figures of scored rows, as they are kept."""
    every = [each for _, each in scored]
    priced = [(apart, each) for apart, each in scored if not each.contradiction and not each.refused]
    ranks = {id(each.row): apart.decode.data_parallel > 1 for apart, each in scored}
    kinds = {"decode in tensor parallel": False, "decode with attention data parallel": True}
    return {
        "rows": len(every),
        "left_out": Counter(each.contradiction for each in every if each.contradiction),
        "refused": Counter(each.refused for each in every if each.refused),
        "engines": {name: figures(some) for name, some in by(every, lambda row: row.engine).items()},
        "cells": {name: figures(some) for name, some in by(every, lambda row: row.cell).items()},
        "kinds": {
            name: figures([each for _, each in priced if ranks[id(each.row)] == kind]) for name, kind in kinds.items()
        },
        "all": figures(every),
        "runs": [
            {
                "cell": each.row.cell, "lengths": f"{each.row.isl}/{each.row.osl}", "users": each.row.concurrency,
                "sizes": sizes_words(apart), "tpot_ms": round(each.row.tpot_ms, 2), "tpot": round(each.tpot, 4),
                "ttft_ms": round(each.row.ttft_ms, 1), "ttft": round(each.ttft, 4),
            }
            for apart, each in sorted(priced, key=lambda one: (one[1].row.cell, one[1].row.isl, one[1].row.concurrency))
        ],
    }  # fmt: skip


def _rounded(errors: Mapping[str, float]) -> dict[str, float | None]:
    return {name: round(value, 4) if value == value else None for name, value in errors.items()}


PARTS: Mapping[str, Callable[[], dict[str, Any]]] = {"newcomer": of_newcomers, "disaggregated": of_apart}


def kept(name: str) -> dict[str, Any]:
    """The figures last kept of a part."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def main() -> int:
    """Measure the parts that are named, all without a name."""
    for name in sys.argv[1:] or PARTS:
        if name not in PARTS:
            raise InputError(f"no part is called {name!r}", hint=f"one of: {', '.join(PARTS)}")
        text = json.dumps(PARTS[name](), indent=1) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
