"""A format of server logs as one object: how a log of it is recognised, and how it is read.

Each module of `scenarios/measured/formats/` holds one, as its constant `FORMAT`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scenarios.measured.measured_run import MeasuredRun
from scenarios.traces.lines import Line
from simulator.errors import InputError


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log as it lies on disk: its name, and its lines that are not blank."""

    name: str
    lines: list[Line]

    def document(self) -> Any:
        """The JSON document that the whole file holds. Raises InputError with the line where it breaks."""
        texts = dict(self.lines)
        text = "\n".join(texts.get(line, "") for line in range(1, self.lines[-1][0] + 1))
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(
                f"this is no complete JSON document: {error.msg}", file=self.name, line=error.lineno, column=error.colno
            ) from None
        except RecursionError:
            raise InputError("the JSON document is nested too deeply", file=self.name) from None


@dataclass(frozen=True, slots=True)
class Summary:
    """A file of the same tool without single requests: a key that marks it, what it is, what to give instead."""

    key: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format. `read` takes the file and the number of a run in it (None: not chosen), and raises InputError.

    A log is of the format if its first object (or the whole document) has all of `keys`, or its header all of
    `columns`; the format that demands most wins, and one that demands nothing takes any other CSV. `several` says that
    a file may hold more than one run.
    """

    name: str
    read: Callable[[LogFile, int | None], MeasuredRun]
    keys: frozenset[str] | None = None
    columns: frozenset[str] | None = None
    several: bool = False
    summary: Summary | None = None
