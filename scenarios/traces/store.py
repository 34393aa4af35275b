"""The rows of a trace on disk, sorted: what lets a file larger than memory be inspected and converted.

Rows go into a temporary SQLite file, some 30 bytes each and their optional columns as JSON. If they came in order they
are read back as they lie; otherwise SQLite sorts them outside of memory. Either way one chunk is in memory at a time.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.traces.arrange import count_late
from scenarios.traces.columns import Columns, Kept
from scenarios.traces.content import BlockSizes
from scenarios.traces.read import twice
from simulator.errors import InputError

CHUNK_ROWS = 16_384
_CACHE_KIB = 16_384
_LISTS = ("block_hashes", "prompt_token_ids", "output_token_ids", "after_request_ids")


class RowStore:
    """Rows of a trace, filled once. A context: the file is gone at its end."""

    def __init__(self, columns_for: Callable[[], Columns], folder: Path | None = None) -> None:
        self._columns_for = columns_for
        self._folder = tempfile.TemporaryDirectory(prefix=".batchlab-", dir=folder, ignore_cleanup_errors=True)
        self._db = sqlite3.connect(Path(self._folder.name) / "rows", isolation_level=None)
        for setting in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{_CACHE_KIB}"):
            self._db.execute(f"PRAGMA {setting}")
        self._db.execute("CREATE TABLE rows (arrival, number, line, inputs, outputs, name, extra)")
        self.count = 0
        self.first = float("inf")
        self.late = 0
        self.moved = False  # whether a row lies elsewhere than at its number
        self.named = False
        self.followers = 0
        self.extra: set[str] = set()  # the optional columns that any row has
        self.sizes = BlockSizes()

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._folder.cleanup()

    def fill(self, rows: Iterable[Kept], file: str) -> None:
        """Take in all rows. Raises InputError for a name that occurs twice, and for a full disk."""
        rows = iter(rows)
        latest: Any = None
        try:
            self._db.execute("BEGIN")
            while chunk := list(islice(rows, CHUNK_ROWS)):
                latest = self._add(chunk, latest)
            self._db.execute("COMMIT")
            if self.named:
                self._check_names(file)
        except sqlite3.Error as error:
            raise InputError(
                f"cannot keep the rows in a temporary file: {error}", file=file, hint="TMPDIR names the folder for it"
            ) from error

    def _add(self, chunk: list[Kept], latest: Any) -> Any:
        """Put rows in, and count them; returns the latest arrival so far."""
        self._db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", map(_as_stored, chunk))
        stamps = np.array([row[2] for row in chunk])
        if latest is not None:
            stamps = np.concatenate(([latest], stamps))
        self.late += count_late(stamps)
        self.first = min(self.first, stamps.min().item())
        numbers = np.fromiter((row[1] for row in chunk), dtype=np.int64, count=len(chunk))
        self.moved = self.moved or bool(np.any(numbers != np.arange(self.count, self.count + len(chunk))))
        self.count += len(chunk)
        extras = [row for row in chunk if row[5]]
        if extras:
            part = self._columns_for().fill(extras)
            self.extra.update(part.extra)
            self.named = self.named or "request_id" in part.extra
            for follows in ("after_request_id", "after_request_ids"):
                self.followers += sum(name is not None for name in part.extra.get(follows, ()))
            self.sizes.add_rows(part.inputs, part.extra)
        return stamps.max().item()

    def _check_names(self, file: str) -> None:
        """Rows without a name of their own are named by their number."""
        name = "coalesce(name, cast(number AS text))"
        again = self._db.execute(f"SELECT {name} FROM rows GROUP BY 1 HAVING count(*) > 1 LIMIT 1").fetchone()
        if again is not None:
            lines = self._db.execute(f"SELECT line FROM rows WHERE {name} = ? ORDER BY rowid LIMIT 2", again).fetchall()
            raise twice(again[0], lines[1][0], lines[0][0], file)

    def chunks(self) -> Iterator[Columns]:
        """All rows by arrival, ties in file order, as columns of at most CHUNK_ROWS."""
        order = "arrival, rowid" if self.late else "rowid"
        rows = self._db.execute(f"SELECT line, number, arrival, inputs, outputs, extra FROM rows ORDER BY {order}")
        while chunk := rows.fetchmany(CHUNK_ROWS):
            yield self._columns_for().fill(
                (*row, None if extra is None else _from_json(extra)) for *row, extra in chunk
            )


def _as_stored(row: Kept) -> tuple[Any, ...]:
    line, number, arrival, inputs, outputs, extra = row
    if not extra:
        return arrival, number, line, inputs, outputs, None, None
    return arrival, number, line, inputs, outputs, extra.get("request_id"), json.dumps(extra, separators=(",", ":"))


def _from_json(text: str) -> dict[str, Any]:
    extra: dict[str, Any] = json.loads(text)
    for name in _LISTS:
        if name in extra:
            extra[name] = tuple(extra[name])
    return extra
