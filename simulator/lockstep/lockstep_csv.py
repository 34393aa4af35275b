"""The steps of a lockstep as a CSV file: a row a step, times in milliseconds.

`clock_s`, the run's clock, is written to the last bit: played back, it must give the same plans.
"""

import csv
from collections.abc import Sequence
from math import nan
from pathlib import Path

from simulator.errors import InputError
from simulator.lockstep.step_errors import ComparedStep
from simulator.timing.cost import COUNTS, StepShape

_TIMES = ("predicted_s", "device_s", "host_s", "again_s")
_SEEN = ("canary", "flag", "sm_mhz", "power_w", "control")
COLUMNS = (
    "step",
    "digest",
    "device_digest",
    *COUNTS,
    "swapped_out_blocks",
    "swapped_in_blocks",
    *(name.removesuffix("_s") + "_ms" for name in _TIMES),
    "clock_s",
    *_SEEN,
)
_BEFORE = (COLUMNS[: -len(_SEEN)], COLUMNS[:-1])
"""Those of files from before devices had a canary, and controls: they are read too."""


def write_csv(path: Path, steps: Sequence[ComparedStep]) -> None:
    """Write the steps; a time that was not measured is an empty cell."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for index, step in enumerate(steps):
            times = [getattr(step, name) for name in _TIMES]
            cells = ["" if seconds != seconds else f"{seconds * 1e3:.6g}" for seconds in times]
            swapped = (step.swapped_out_blocks, step.swapped_in_blocks)
            seen = [_cell(step.canary), step.flag, _cell(step.sm_mhz), _cell(step.power_w)]
            seen.append(_cell(step.control))
            counts = [*step.shape[: len(COUNTS)], *swapped]
            rows.writerow([index, step.digest, step.device_digest, *counts, *cells, repr(step.clock_s), *seen])


def read_csv(path: Path) -> list[ComparedStep]:
    """The steps that `write_csv` wrote. Raises InputError for any other file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) not in (COLUMNS, *_BEFORE):
                hint = f"its columns are {', '.join(COLUMNS)}"
                raise InputError("not the steps of a lockstep", file=str(path), line=1, hint=hint)
            return [_step(row, path, number) for number, row in enumerate(rows, start=2)]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=str(path)) from None


def _step(row: dict[str, str], path: Path, line: int) -> ComparedStep:
    try:
        times = {name: _seconds(row[name.removesuffix("_s") + "_ms"]) for name in _TIMES}
        return ComparedStep(
            digest=row["digest"],
            device_digest=row["device_digest"],
            shape=StepShape(*[int(row[name]) for name in COUNTS]),
            swapped_out_blocks=int(row["swapped_out_blocks"]),
            swapped_in_blocks=int(row["swapped_in_blocks"]),
            clock_s=float(row["clock_s"]),
            canary=float(row.get("canary") or 1.0),
            flag=row.get("flag") or "",
            sm_mhz=float(row.get("sm_mhz") or nan),
            power_w=float(row.get("power_w") or nan),
            control=float(row.get("control") or nan),
            **times,
        )
    except (TypeError, ValueError) as error:
        raise InputError(f"not a step of a lockstep: {error}", file=str(path), line=line) from None


def _seconds(cell: str) -> float:
    return float(cell) / 1e3 if cell else nan


def _cell(value: float) -> str:
    return "" if value != value else f"{value:.6g}"
