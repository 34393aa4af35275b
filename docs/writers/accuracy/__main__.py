"""Score the scenarios of measured runs, and compare with the figures last committed: `make accuracy`.

    python -m docs.writers.accuracy [--engine vllm] [--every 4] [--rows FILE] [--write] [--again FILE ...]

Exit code 1 where a cell has become worse. `--every N` takes each N-th row; figures are kept for the whole alone, and
with them the residuals that intervals are made of. `--again` takes rows that were scored before.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docs.writers.accuracy.floor import floor
from docs.writers.accuracy.residuals import write
from docs.writers.accuracy.served import ENGINES, read_rows
from docs.writers.accuracy.served_row import Row
from docs.writers.accuracy.served_score import (
    FIGURES,
    by,
    figures,
    read_rows_again,
    reasons,
    score,
    table,
    worse,
    write_rows,
)
from scenarios.schema.loader import shared_folder
from simulator.errors import InputError

EVERY_ROOFLINE = 8  # rows that are priced by the roofline too
ROWS = "measured/ground_truth/silicon"
KINDS: Mapping[str, Callable[[Row], str]] = {
    "engines": lambda row: row.engine,
    "models": lambda row: row.model.rpartition("/")[2],
    "GPUs": lambda row: row.system,
    "precisions": lambda row: row.precision,
    "versions": lambda row: f"{row.engine} {row.version or 'not said'}",
}
"""Groups of rows whose figures are kept beside those of the cells."""


def main(words: Sequence[str] | None = None) -> int:
    """Score, print, compare."""
    parser = argparse.ArgumentParser(prog="python -m docs.writers.accuracy", description="Score measured runs.")
    parser.add_argument("--engine", choices=[*ENGINES], help="rows of this engine alone")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th row of a cell alone")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write each row with its errors there (JSON lines)")
    parser.add_argument("--write", action="store_true", help="keep the figures, for later runs to be compared with")
    parser.add_argument("--again", type=Path, nargs="+", metavar="FILE", help="rows of --rows, not scored again")
    asked = parser.parse_args(words)
    engines = [asked.engine] if asked.engine else [*ENGINES]
    scored = read_rows_again(asked.again) if asked.again else [score(row) for row in _ordered(engines, asked.every)]
    if asked.rows is not None:
        write_rows(scored, asked.rows)
    for lines in (table(scored, lambda row: row.engine), table(scored, lambda row: row.cell), reasons(scored)):
        print("\n".join([*lines, ""]))
    if asked.every > 1:
        return 0
    now = {cell: figures(some) for cell, some in by(scored, lambda row: row.cell).items()}
    if asked.write:
        kept = {kind: {name: figures(some) for name, some in by(scored, key).items()} for kind, key in KINDS.items()}
        kept |= {"cells": now, "floor": floor(scored)}
        FIGURES.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        write(scored, [score(row, cost={"kind": "roofline"}) for row in _ordered(engines, EVERY_ROOFLINE)])
        return 0
    before = json.loads(FIGURES.read_text(encoding="utf-8"))["cells"] if FIGURES.exists() else {}
    found = worse(now, before)
    for line in found:
        print(f"worse: {line}", file=sys.stderr)
    return 1 if found else 0


def _ordered(engines: Sequence[str], every: int) -> list[Row]:
    """Every n-th row of the engines, cell by cell."""
    found = []
    for engine in engines:
        rows = read_rows(shared_folder() / ROWS, engine)
        found += sorted(rows, key=lambda row: (row.cell, row.tensor_parallel, row.isl, row.name))[::every]
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
