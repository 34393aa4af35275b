"""How much code one run executes, and how large the rooms are: what a reader must open to follow a run.

`python -m tests.footprint` loads and runs a small scenario of vLLM's scheduler, or the one that is named, and counts
the product's files, functions and lines that this executes, by room. Imports happen before and are not counted. Then it
counts each room's Python files, their lines and the median file.
"""

import argparse
import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
ROOMS = ("simulator", "scenarios", "reports", "calibration", "gpu_backend", "batchlab")
SCENARIO = "claim-15-four-systems"  # vLLM's scheduler without a part
IMPORTED = """
import sys, scenarios
scenarios.run(scenarios.load(sys.argv[1], sys.argv[2:]))
print([name for name in sys.modules if name.partition(".")[0] in {rooms}])
"""

Executed = Mapping[CodeType, set[int]]
"""By function: the numbers of its lines that were executed."""


def executed(scenario: str, overrides: list[str]) -> Executed:
    """Load and run a scenario; return the product's code that it executes. `<lambda>` and the like are functions."""
    for name in _imported(scenario, overrides):
        importlib.import_module(name)
    import scenarios

    found: defaultdict[CodeType, set[int]] = defaultdict(set)
    ours: dict[CodeType, bool] = {}

    def called(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code not in ours:
            ours[code] = bool(code.co_flags & inspect.CO_OPTIMIZED) and room_of(code.co_filename) is not None
        if not ours[code]:
            return None
        lines = found[code]

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return line

        return line

    sys.settrace(called)
    try:
        scenarios.run(scenarios.load(scenario, overrides))
    finally:
        sys.settrace(None)
    return found


def _imported(scenario: str, overrides: list[str]) -> list[str]:
    """Return the product's modules that a run has imported at its end, asked for in another process."""
    script = IMPORTED.replace("{rooms}", repr(set(ROOMS)))
    command = [sys.executable, "-c", script, scenario, *overrides]
    environment = os.environ | {"BATCHLAB_PURE": "1"}
    done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True, env=environment)
    names: list[str] = ast.literal_eval(done.stdout)
    return names


def room_of(file: str) -> str | None:
    """Return the room of a product's file, None of another file."""
    path = Path(file)
    if ROOT not in path.parents:
        return None
    top = path.relative_to(ROOT).parts[0]
    return top if top in ROOMS else None


def by_room(code: Executed) -> Iterator[tuple[str, int, int, int]]:
    """Yield each room with its files, functions and lines that were executed; last the sum."""
    for room in (*ROOMS, "sum"):
        some = {each: lines for each, lines in code.items() if room in ("sum", room_of(each.co_filename))}
        if some:
            files = {each.co_filename for each in some}
            lines = {(each.co_filename, line) for each, numbers in some.items() for line in numbers}
            yield room, len(files), len(some), len(lines)


def sizes() -> Iterator[tuple[str, int, int, float, int]]:
    """Yield each room with its Python files, lines, the median file and the files below 60 lines; last the sum."""
    found = {room: [_lines(path) for path in sorted((ROOT / room).rglob("*.py"))] for room in ROOMS}
    found["sum"] = [each for lengths in found.values() for each in lengths]
    for room, lengths in found.items():
        yield room, len(lengths), sum(lengths), median(lengths), sum(each < 60 for each in lengths)


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.footprint", description=__doc__)
    parser.add_argument("scenario", nargs="?", default=SCENARIO)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    asked = parser.parse_args()
    overrides = asked.overrides or (["workload.requests=200"] if asked.scenario == SCENARIO else [])
    print(f"{'executed':12} {'files':>6} {'functions':>10} {'lines':>7}   {asked.scenario}")
    for room, files, functions, lines in by_room(executed(asked.scenario, overrides)):
        print(f"{room:12} {files:6,} {functions:10,} {lines:7,}")
    print(f"\n{'in all':12} {'files':>6} {'lines':>10} {'median':>7} {'below 60':>9}")
    for room, count, total, middle, short in sizes():
        print(f"{room:12} {count:6,} {total:10,} {middle:7,.0f} {short:9,}")


if __name__ == "__main__":
    main()
