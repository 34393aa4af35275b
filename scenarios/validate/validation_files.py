"""The files of a validation (beside the run that it compares), of a lockstep, and of a free-running one."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scenarios.runs.storage.csv_tables import Column, write_csv
from scenarios.runs.storage.run_folder import FREE_RUNNING, LOCKSTEP, LOCKSTEP_STEPS, MEASURED, VALIDATION, to_json
from scenarios.runs.storage.staging import disk_errors
from scenarios.validate.compare import Validation
from simulator.lockstep.lockstep_csv import write_csv as write_steps
from simulator.lockstep.step_errors import ComparedStep


def write_validation(folder: Path, data: Mapping[str, object], found: Validation) -> None:
    """Write validation.json and measured.csv.gz into an existing folder. Raises InputError where the disk refuses."""
    with disk_errors(folder):
        (folder / VALIDATION).write_text(to_json(data), encoding="utf-8", newline="\n")
        write_csv(folder / MEASURED, validation_columns(found))


def write_lockstep(folder: Path, data: Mapping[str, object], steps: Sequence[ComparedStep]) -> None:
    """Write lockstep.json and lockstep.csv into an existing folder. Raises InputError where the disk refuses."""
    with disk_errors(folder):
        write_steps(folder / LOCKSTEP_STEPS, steps)
        (folder / LOCKSTEP).write_text(to_json(data), encoding="utf-8", newline="\n")


def write_free_running(folder: Path, data: Mapping[str, object]) -> None:
    """Write free-running.json into an existing folder. Raises InputError where the disk refuses."""
    with disk_errors(folder):
        (folder / FREE_RUNNING).write_text(to_json(data), encoding="utf-8", newline="\n")


def validation_columns(found: Validation) -> dict[str, Column]:
    """One row a request of a server's log, in its order; beside it what was simulated, where requests were matched."""
    measured = found.measured
    table: dict[str, Column] = {
        "request_id": list(measured.names),
        "arrival_s": measured.arrival_s,
        "input_tokens": measured.input_tokens,
        "output_tokens": measured.output_tokens,
    }
    sides = {"measured": measured, **({"simulated": found.simulated} if found.matched else {})}
    for name in ("ttft", "tpot", "e2el", "queue"):
        table |= {f"{side}_{name}_ms": 1e3 * getattr(of, f"{name}_s") for side, of in sides.items()}
    return table
