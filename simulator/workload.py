"""A workload in columns: what a trace or a generator hands to the engine.

Columns rather than objects, so that a million requests cost tens of megabytes; a `Request` is made when it
arrives and dropped when it has been served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.client import Client
from simulator.columns import Kept, joined
from simulator.request import PromptContent, Request

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_OF_THE_WHOLE = frozenset({"class_names", "loops", "clients", "until_s", "notes"})  # fields of a Workload
_PIECE = 4096  # rows turned into Python objects at a time


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A class whose `concurrency` users take requests from one pool, in order, each when its last one was answered.

    `draw(n)` gives at least the first n of the pool's chains, a request that follows none and those that follow it; a
    larger n changes nothing in the chains of a smaller. A chain is one user's. It begins the first request's `delay_s`
    (the think time) after the user's last chain has ended, at the start of the run after time 0. `requests` is the
    number of requests of a pool that ends; None for one without an end.
    """

    concurrency: int
    draw: Callable[[int], Workload]
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Workload(Kept):
    """Requests sorted by arrival (ties in file order), one row each.

    `arrival_s` counts from the first arrival of the source. `max_tokens` is the client's cap, which ends an answer
    that would have been longer: `output_tokens` is what the model would answer without it. Optional columns are None
    where the source has none; `request_ids` None means that a request is named by its row.
    `after_row` is -1 for a request that arrives at its own time; else it is the row, always an earlier one, of the
    request in this workload whose answer precedes it. `delay_s` is then the time between that answer and this request
    (think time, or a tool's duration), in seconds, and `arrival_s` the recorded time of an open replay.
    `turns` counts the requests of a conversation, from 1. A client leaves `patience_s` after its request's arrival, if
    it has not the whole answer by then. `loops` are classes whose requests are issued by users that
    wait for answers, beside the rows here. `clients` has one entry a class; empty where all wait for ever. No request
    is issued at `until_s` or later, except as another attempt.
    `notes` say, for a person, what was skipped, clipped or moved while reading, with counts.
    """

    arrival_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    max_tokens: Ints
    priority: Ints
    class_index: Ints
    class_names: tuple[str, ...] = ("default",)
    request_ids: Sequence[str] | None = None
    session_ids: Sequence[str | None] | None = None
    predicted_output_tokens: Ints | None = None  # -1: none
    deadline_s: Floats | None = None  # NaN: none
    content: Sequence[PromptContent | None] | None = None
    after_row: Ints | None = None  # -1: arrives at its own time
    delay_s: Floats | None = None  # 0 where after_row is -1
    turns: Ints | None = None
    patience_s: Floats | None = None  # NaN: waits for ever
    loops: tuple[ClosedLoop, ...] = ()
    clients: tuple[Client, ...] = ()
    until_s: float = inf
    notes: tuple[str, ...] = field(default=())

    @property
    def answers_back(self) -> bool:
        """Whether answers matter to clients: requests that follow others, closed loops, timeouts, retries."""
        patient = self.patience_s is None and all(client == Client() for client in self.clients)
        return self.after_row is not None or bool(self.loops) or not patient

    def session_turns(self) -> Ints:
        """Each request's place in its session, from 1: as the source says, or in order of arrival."""
        if self.turns is not None:
            return self.turns
        turns = np.ones(len(self), dtype=np.int64)
        seen: dict[str, int] = {}
        for row, name in enumerate(self.session_ids or ()):
            if name is not None:
                turns[row] = seen[name] = seen.get(name, 0) + 1
        return turns

    def __len__(self) -> int:
        return len(self.arrival_s)

    def columns(self) -> dict[str, Any]:
        """The columns by name, an entry a request in each; those that the source does not have are left out."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _OF_THE_WHOLE}
        return {name: column for name, column in found.items() if column is not None}

    def in_files(self) -> Workload:
        """The same, with its columns in files where they are long (`simulator.columns`).

        As it is where answers matter: requests are then looked up one by one.
        """
        if self.answers_back:
            return self
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = {name: joined([found.pop(name)]) for name in list(found) if isinstance(found[name], np.ndarray)}
        if not any(column.in_file for column in columns.values()):
            return self
        return Workload.keep(columns, **found)

    def request_id(self, row: int) -> str:
        return str(row) if self.request_ids is None else self.request_ids[row]

    def request(self, row: int) -> Request:
        """One request; `requests` is for all of them."""
        plain = Request(
            row,
            self.request_id(row),
            self.arrival_s.item(row),
            self.input_tokens.item(row),
            min(self.output_tokens.item(row), self.max_tokens.item(row)),
            self.max_tokens.item(row),
            self.priority.item(row),
            self.class_names[self.class_index.item(row)],
        )
        return self._with_extras(plain)

    def requests(self) -> Iterator[Request]:
        """The requests in order of arrival, each made when asked for."""
        return self.requests_of(range(len(self)))

    def requests_of(self, rows: Sequence[int]) -> Iterator[Request]:
        """The requests of these rows, each made when asked for."""
        optional = (self.session_ids, self.predicted_output_tokens, self.deadline_s, self.content)
        extras = any(column is not None for column in optional)
        names = self.class_names
        # Piece by piece: a million rows as Python objects would be two hundred megabytes. Columns in files are mapped
        # anew for each, so that what was read does not stay in memory.
        for start in range(0, len(rows), _PIECE):
            columns = (
                self.arrival_s,
                self.input_tokens,
                self.output_tokens,
                self.max_tokens,
                self.priority,
                self.class_index,
            )
            here = rows[start : start + _PIECE]
            place = slice(here.start, here.stop) if isinstance(here, range) else np.asarray(here)
            piece = zip(here, *[column[place].tolist() for column in columns], strict=True)
            for row, arrival, inputs, outputs, cap, priority, index in piece:
                name = str(row) if self.request_ids is None else self.request_ids[row]
                answer = outputs if outputs < cap else cap
                plain = Request(row, name, arrival, inputs, answer, cap, priority, names[index])
                yield self._with_extras(plain) if extras else plain

    def _with_extras(self, plain: Request) -> Request:
        row = plain.row
        predicted = -1 if self.predicted_output_tokens is None else int(self.predicted_output_tokens[row])
        deadline = float("nan") if self.deadline_s is None else float(self.deadline_s[row])
        return Request(
            row,
            plain.request_id,
            plain.arrival_s,
            plain.input_tokens,
            plain.output_tokens,
            plain.max_tokens,
            plain.priority,
            plain.class_name,
            session_id=None if self.session_ids is None else self.session_ids[row],
            predicted_output_tokens=None if predicted < 0 else predicted,
            deadline_s=None if deadline != deadline else deadline,
            content=None if self.content is None else self.content[row],
        )
