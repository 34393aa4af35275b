"""The results of a campaign: a JSON line each, on disk before the next begins. It goes on wherever it was killed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_TRIES = 2
"""Times that something is begun: what ended the process twice is left out."""


class Journal:
    """A file of results by key. The last entry of a key counts; a last line that was cut off does not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, dict[str, Any]] = {}
        self._begun: dict[str, int] = {}
        if path.exists():
            data = path.read_bytes()
            whole = data.rfind(b"\n") + 1
            for line in data[:whole].splitlines():
                self._take(json.loads(line))
            os.truncate(path, whole)

    def _take(self, entry: Mapping[str, Any]) -> None:
        if "begun" in entry:
            self._begun[entry["key"]] = int(entry["begun"])
        else:
            self._found[entry["key"]] = dict(entry["found"])

    def recall(self, key: str) -> dict[str, Any] | None:
        """The result under the key; None where there is none."""
        return self._found.get(key)

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Write it, and make sure that it is on the disk."""
        self._write({"key": key, "found": dict(found)})

    def begin(self, key: str) -> bool:
        """Note that this is begun; False where it was begun too often already, without a result."""
        tries = self._begun.get(key, 0)
        if tries >= MOST_TRIES:
            return False
        self._write({"key": key, "begun": tries + 1})
        return True

    def keys(self, prefix: str) -> Iterator[str]:
        """Keys that begin so, in the order in which they were first found."""
        return (key for key in self._found if key.startswith(prefix))

    def _write(self, entry: dict[str, Any]) -> None:
        self._take(entry)
        with self._path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


class Section:
    """The part of a journal that belongs to one part of the campaign, and that part's time.

    A `gpu_backend.profiler.Memory`.
    """

    def __init__(self, journal: Journal, name: str, seconds: float) -> None:
        self._journal, self.name = journal, name
        self._end_s = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds that the part still has."""
        return self._end_s - time.monotonic()

    def is_over(self) -> bool:
        """True if the part's time is over."""
        return self.left_s <= 0

    def recall(self, key: str) -> dict[str, Any] | None:
        """The result under the key in this part."""
        return self._journal.recall(f"{self.name}: {key}")

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Keep it for good, at once."""
        self._journal.keep(f"{self.name}: {key}", found)

    def begin(self, key: str) -> bool:
        """As `Journal.begin`."""
        return self._journal.begin(f"{self.name}: {key}")

    def all(self) -> dict[str, dict[str, Any]]:
        """Everything that the part has found, by key."""
        start = f"{self.name}: "
        found = {key: self._journal.recall(key) for key in self._journal.keys(start)}
        return {key.removeprefix(start): value for key, value in found.items() if value is not None}
