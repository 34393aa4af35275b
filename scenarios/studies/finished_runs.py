"""The finished runs of a study: a folder with a file for each, named by the run's address.

A file is moved to its name when it is complete, so whatever has its name is whole, however the process ended.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from scenarios.runs.storage.staging import unwritable
from scenarios.studies.study_run import Outcome

_ENDING = ".json"


class Store:
    """Keeps outcomes by address. `fresh` ignores those of earlier studies."""

    def __init__(self, folder: Path, *, fresh: bool = False) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        self._fresh = fresh

    def get(self, address: str) -> Outcome | None:
        """Return the outcome of an address; None where there is none, or none that can be read."""
        if self._fresh:
            return None
        with suppress(OSError, ValueError):
            return Outcome.from_json((self.folder / f"{address}{_ENDING}").read_text(encoding="utf-8"))
        return None

    def put(self, address: str, outcome: Outcome) -> None:
        """Keep an outcome without an error. Raises InputError where the disk does not take it."""
        if not outcome.error:
            write_outcome(self.folder, address, outcome)


def write_outcome(folder: Path, address: str, outcome: Outcome) -> None:
    """Write the file of an outcome, whole or not at all. Raises InputError where the disk does not take it."""
    draft = folder / f".{address}-{os.getpid()}"
    try:
        draft.write_text(outcome.to_json(), encoding="utf-8")
        draft.replace(folder / f"{address}{_ENDING}")
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise unwritable(folder, error) from error
