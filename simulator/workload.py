"""A workload in columns, which a trace or a generator hands to the engine, and how its clients behave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain, repeat
from math import inf
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from simulator.columns import StoredColumns, joined
from simulator.request import Image, PromptContent, Request

# How a client behaves that does not wait for ever: timeouts, and retries with backoff.

MOST_ATTEMPTS = 1000

_MASK = (1 << 64) - 1


def leaves_s(arrival_s: float, patience_s: float, front_end_s: float) -> float:
    """When the engine hears of a client that waits `patience_s` from its request's arrival: seen from the engine, all
    of the delay between the two lies behind it."""
    return max(arrival_s, arrival_s + patience_s - front_end_s)


@dataclass(frozen=True, slots=True)
class Client:
    """The patience of the clients of a class. The default waits for ever and takes no for an answer.

    A client leaves when `ttft_timeout_s` have passed without a first token, or `timeout_s` without the whole answer,
    both counted from the arrival of the attempt. Leaving cancels the request at the server, unless `cancels` is False:
    such a server computes on for a client that has gone. After a timeout, and after a rejection that another attempt
    may escape, the client tries again, up to `max_attempts` in all; attempt k + 1 comes `backoff(request, k)` later.
    """

    ttft_timeout_s: float = inf
    timeout_s: float = inf
    cancels: bool = True
    max_attempts: int = 1
    backoff_s: float = 1.0
    backoff_factor: float = 2.0
    max_backoff_s: float = inf
    jitter: float = 0.0
    stream: int = 0  # key of the random numbers that the jitter takes

    def backoff(self, request: int, attempt: int) -> float:
        """Seconds from the end of this attempt (1: the first) to the next, for the class's request of this number.

        Exponential: backoff_s x backoff_factor ** (attempt - 1), at most max_backoff_s, of which a uniform share of up
        to `jitter` is taken off: 0 keeps it, 1 is the 'full jitter' of Brooker, Exponential Backoff And Jitter (AWS
        Architecture Blog, 2015). The share belongs to request and attempt, whatever happened before.
        """
        try:
            whole = self.backoff_s * self.backoff_factor ** (attempt - 1)
        except OverflowError:
            whole = inf
        whole = min(whole, self.max_backoff_s)
        return whole * (1.0 - self.jitter * uniform(self.stream, request * MOST_ATTEMPTS + attempt))


def uniform(stream: int, index: int) -> float:
    """The number at this index, in [0, 1), of a stream of random numbers: SplitMix64 with `stream` as its seed.

    Steele, Lea and Flood, Fast splittable pseudorandom number generators (OOPSLA 2014). Its state is seed + index x
    constant, so any number can be had without those before it.
    """
    z = (stream + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


# A workload in columns: what a trace or a generator hands to the engine.
#
# Columns rather than objects, so that a million requests cost tens of megabytes; a `Request` is made when it
# arrives and dropped when it has been served.

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
class Workload(StoredColumns):
    """Requests sorted by arrival (ties in file order), one row each.

    `arrival_s` counts from the first arrival of the source. `max_tokens` is the client's cap, which ends an answer
    that would have been longer: `output_tokens` is what the model would answer without it. Optional columns are None
    where the source has none; `request_ids` None means that a request is named by its row.
    `after_row` is -1 for a request that arrives at its own time; else it is the row, always an earlier one, of the
    request in this workload whose answer precedes it. `delay_s` is then the time between that answer and this request
    (think time, or a tool's duration), in seconds, and `arrival_s` the recorded time of an open replay. `also_after`
    are further earlier rows that a request waits for: it comes `delay_s` after the last of their answers (a join).
    `task_ids` name the task of an agent that a request is part of, and `task_requests` count that task's requests.
    `lora`, `images` and `accepted_drafts` are those of `Request`. `turns` counts the requests of a conversation, from
    1. A client leaves `patience_s` after its request's arrival, if it has not the whole answer by then. `loops` are
    classes whose requests are issued by users that wait for answers, beside the rows here. `clients` has one entry a
    class; empty where all wait for ever. No request is issued at `until_s` or later, except as another attempt.
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
    data_parallel_rank: Ints | None = None  # -1: any
    content: Sequence[PromptContent | None] | None = None
    lora: Sequence[str | None] | None = None
    images: Sequence[tuple[Image, ...]] | None = None
    accepted_drafts: Sequence[tuple[int, ...] | None] | None = None
    after_row: Ints | None = None  # -1: arrives at its own time
    delay_s: Floats | None = None  # 0 where after_row is -1
    also_after: Sequence[tuple[int, ...]] | None = None  # () where it waits for no more than after_row
    task_ids: Sequence[str | None] | None = None
    task_requests: Ints | None = None  # None: as many as have the task's name here
    turns: Ints | None = None
    patience_s: Floats | None = None  # NaN: waits for ever
    loops: tuple[ClosedLoop, ...] = ()
    clients: tuple[Client, ...] = ()
    until_s: float = inf
    notes: tuple[str, ...] = field(default=())

    @property
    def answers_back(self) -> bool:
        """True if what clients do depends on answers: requests that follow others, closed loops, timeouts, retries."""
        return self.follows_answers or self.patience_s is not None

    @property
    def follows_answers(self) -> bool:
        """The same without the patience that a trace records, for which no request comes or stays away."""
        return self.after_row is not None or bool(self.loops) or any(client != Client() for client in self.clients)

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
        """A copy with its columns in files where they are long (`simulator.columns`).

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
        return next(self._piece(range(row, row + 1)))

    def requests(self) -> Iterator[Request]:
        """The requests in order of arrival, each made when asked for."""
        return self.requests_of(range(len(self)))

    def requests_of(self, rows: Sequence[int]) -> Iterator[Request]:
        """The requests of these rows, each made when asked for."""
        # Piece by piece: a million rows as Python objects would be two hundred megabytes; and what is mapped of a
        # long column does not stay in memory.
        return chain.from_iterable(self._piece(rows[at : at + _PIECE]) for at in range(0, len(rows), _PIECE))

    def _piece(self, rows: Sequence[int]) -> Iterator[Request]:
        place = slice(rows.start, rows.stop) if isinstance(rows, range) else np.asarray(rows)
        predicted, deadline_s, ranks = self.predicted_output_tokens, self.deadline_s, self.data_parallel_rank
        columns: tuple[Iterable[object], ...] = (
            rows,
            map(str, rows) if self.request_ids is None else _entries(self.request_ids, rows),
            self.arrival_s[place].tolist(),
            self.input_tokens[place].tolist(),
            np.minimum(self.output_tokens[place], self.max_tokens[place]).tolist(),
            self.max_tokens[place].tolist(),
            self.priority[place].tolist(),
            map(self.class_names.__getitem__, self.class_index[place].tolist()),
            _entries(self.session_ids, rows),
            _NO_ENTRIES if predicted is None else [None if n < 0 else n for n in predicted[place].tolist()],
            _NO_ENTRIES if deadline_s is None else [None if s != s else s for s in deadline_s[place].tolist()],
            _entries(self.content, rows),
            _NO_ENTRIES if ranks is None else [None if n < 0 else n for n in ranks[place].tolist()],
            _entries(self.lora, rows),
            _NO_IMAGES if self.images is None else map(self.images.__getitem__, rows),
            _entries(self.accepted_drafts, rows),
        )
        return map(_made, zip(*columns, strict=False))


def requests_of_tasks(task_ids: Sequence[str | None]) -> Ints:
    """For each request, the number of those of its task; 0 where it is of none."""
    counts = Counter(task_ids)
    counts[None] = 0
    return np.array([counts[name] for name in task_ids], dtype=np.int64)


def _entries(column: Sequence[object] | None, rows: Sequence[int]) -> Iterable[object]:
    """The entries of these rows; None for each, where there is no such column."""
    return _NO_ENTRIES if column is None else map(column.__getitem__, rows)


_NO_ENTRIES = repeat(None)  # as many as are asked for
_NO_IMAGES: Iterable[object] = repeat(())
_made = cast("Callable[[tuple[object, ...]], Request]", partial(tuple.__new__, Request))
"""A request of its fields in their order, made without a call of Python."""
