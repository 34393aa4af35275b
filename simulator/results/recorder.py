"""Collects a run's columns while it runs, cheaply: rows go into flat buffers that are cut into columns in bulk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from simulator.columns import Column, joined
from simulator.request_state import RequestState
from simulator.results.buffers import ReplicaRecorder, Table
from simulator.results.records import (
    AdapterColumns,
    CopyColumns,
    DraftColumns,
    GapColumns,
    GroupSizes,
    LifeColumns,
    PassageColumns,
    Records,
    RegretColumns,
    RequestColumns,
    RequeueColumns,
    RowColumns,
    Sinks,
    Status,
    TransferColumns,
    rows_and_gaps,
    to_every_row,
)
from simulator.workload import Workload, requests_of_tasks

T = TypeVar("T")
Watch = Callable[[RequestState, int, Status], None]
"""Told of each request as it ends, with its replica and how it ended."""

_TELL_EVERY = 256  # requests between two calls of `progress`


# What the buffers hold of a request; the workload knows the rest.
_REQUEST = ("row", "replica", "status", "scheduled_s", "first_token_s", "last_token_s", "released_s", "output_tokens")
_SETBACKS = (
    "row", "preemptions", "recomputed_tokens", "swapped_out_blocks", "swapped_in_blocks", "cached_tokens", "requeued_s",
    "aborted_tokens",
)  # fmt: skip
_of_setbacks = attrgetter(*_SETBACKS[1:])
_FOUND = ("row", "cached_tokens")  # of requests without setbacks


def _fields(columns: type) -> list[str]:
    return [field.name for field in fields(columns)]


class Recorder:
    """Records a whole run: requests as they end, and what each replica did."""

    def __init__(self, replicas: int, progress: Callable[[int], None] | None = None) -> None:
        self.replicas = [ReplicaRecorder(replicas) for _ in range(replicas)]
        self._requests = Table(_REQUEST)
        self._setbacks = Table(_SETBACKS)
        self._found = Table(_FOUND)
        self.reject_reasons: dict[int, str] = {}
        self.lives = Table(_fields(LifeColumns))
        self.transfers = Table(_fields(TransferColumns))
        self._drafts = Table(_fields(DraftColumns))
        self.copies = Table(_fields(CopyColumns))
        self.regrets = Table(_fields(RegretColumns))  # of runs in one process
        self.passages = Table(_fields(PassageColumns))  # likewise
        self._watching: tuple[Watch, ...] = ()
        self.ended = 0
        self._progress = progress

    def request(self, live: RequestState, replica: int, status: Status, released_s: float) -> None:
        """A request has ended, one way or another; its counts are settled."""
        row = live.row
        outputs = live.base_outputs
        self._requests.add(
            (row, replica, status, live.scheduled_s, live.first_token_s, live.last_token_s, released_s, outputs)
        )
        back = live.setbacks
        if back is not None:
            self._setbacks.add((row, *_of_setbacks(back)))
        elif live.found_tokens:
            self._found.add((row, live.found_tokens))
        counts = live.draft_counts
        if counts is not None:
            for (drafts, accepted), steps in counts.items():
                self._drafts.add((row, drafts, accepted, steps))
        for watch in self._watching:
            watch(live, replica, status)
        self.ended += 1
        if self._progress is not None and self.ended % _TELL_EVERY == 0:
            self._progress(self.ended)

    def __reduce__(self) -> tuple[type[Recorder], tuple[int], tuple[Any, ...]]:
        tables = self._requests, self._setbacks, self._found, self.lives, self.transfers, self._drafts, self.copies
        return Recorder, (0,), (self.replicas, *tables, self.reject_reasons, self.ended)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.replicas, self._requests, self._setbacks, self._found, self.lives, self.transfers, self._drafts = state[:7]
        self.copies, self.reject_reasons, self.ended = state[7:]
        self.regrets, self.passages = Table(_fields(RegretColumns)), Table(_fields(PassageColumns))
        self._watching = ()
        self._progress = None

    def take_over(self, other: Recorder, numbers: Sequence[int]) -> None:
        """Take over another recorder's rows of these replicas, and all requests that ended there."""
        for number in numbers:
            self.replicas[number] = other.replicas[number]
        self._requests.extend(other._requests)
        self._setbacks.extend(other._setbacks)
        self._found.extend(other._found)
        self._drafts.extend(other._drafts)
        self.copies.extend(other.copies)
        self.reject_reasons |= other.reject_reasons

    def tell(self, ended: int) -> None:
        """So many requests have ended, in other processes."""
        self.ended = ended
        if self._progress is not None:
            self._progress(ended)

    def watch(self, watch: Watch) -> None:
        """Tell `watch` of each request, after those that were told so far."""
        self._watching = (*self._watching, watch)

    def end_s(self) -> float:
        """The end of the last step."""
        return max(replica.end_s for replica in self.replicas)

    def records(self, workload: Workload, groups: Sequence[GroupSizes]) -> Records:
        """Everything collected, as `Records`; the recorder is empty afterwards. All groups stream answers, or none."""
        first = groups[0]
        adapters = Table.joined([replica.adapters for replica in self.replicas])
        step_end_s = _one([replica.step_end_s.column() for replica in self.replicas])
        rows, gaps = rows_and_gaps(self.replicas, step_end_s, first.streams)
        return Records.keep(
            {
                "step_end_s": step_end_s,
                "step_used_blocks": _one([replica.step_used_blocks.column() for replica in self.replicas]),
            },
            requests=RequestColumns.keep(self._request_columns(workload)),
            rows=RowColumns.keep(rows),
            gaps=GapColumns.keep(gaps),
            requeues=RequeueColumns(**Table.joined([replica.requeues for replica in self.replicas]).columns()),
            num_blocks=first.num_blocks,
            block_size=first.block_size,
            max_num_seqs=first.max_num_seqs,
            replicas=len(self.replicas),
            reject_reasons=dict(sorted(self.reject_reasons.items())),
            class_names=workload.class_names,
            streams=first.streams,
            request_ids=None if workload.request_ids is None else tuple(workload.request_ids),
            **_sessions(workload),
            groups=tuple(groups) if len(groups) > 1 else (),
            lives=_rare(LifeColumns, self.lives),
            transfers=_rare(TransferColumns, self.transfers),
            drafts=_rare(DraftColumns, self._drafts, "row", "drafts", "accepted"),
            copies=_rare(CopyColumns, self.copies, "replica", "start_s", "stored"),
            adapters=_rare(AdapterColumns, adapters, "row", "at_s"),
            regrets=_rare(RegretColumns, self.regrets),
            passages=_rare(PassageColumns, self.passages),
        )

    def _request_columns(self, workload: Workload) -> Sinks:
        """One entry a request, in workload order."""
        order = np.argsort(self._requests.column("row"), kind="stable")
        sinks = {name: joined([self._requests.column(name)[order]]) for name in _REQUEST}
        of_setbacks = to_every_row(self._setbacks.columns(), 0, len(workload))
        of_setbacks["cached_tokens"] += to_every_row(self._found.columns(), 0, len(workload))["cached_tokens"]
        for name, column in of_setbacks.items():
            sinks[name] = joined([column])
        for name in ("arrival_s", "input_tokens", "max_tokens", "priority", "class_index"):
            sinks[name] = joined([getattr(workload, name)])
        return sinks


def _rare(kind: Callable[..., T], table: Table, *by: str) -> T | None:
    """The columns of a table that few runs have, in the order of these columns; None without a row."""
    if not len(table):
        return None
    columns = table.columns()
    order = np.lexsort([columns[name] for name in reversed(by)]) if by else slice(None)
    return kind(**{name: column[order] for name, column in columns.items()})


def _sessions(workload: Workload) -> dict[str, Any]:
    """The session of each request, and its place there: as the workload says, or in order of arrival; its task."""
    found: dict[str, Any] = {}
    names, tasks, of_task = workload.session_ids, workload.task_ids, workload.task_requests
    if names is not None and any(name is not None for name in names):
        found |= {"session_ids": tuple(names), "turns": workload.session_turns()}
    if tasks is not None and any(name is not None for name in tasks):
        found |= {"task_ids": tuple(tasks), "task_requests": requests_of_tasks(tasks) if of_task is None else of_task}
    return found


def _one(parts: list[Column]) -> Column:
    """The parts one after another; a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    return joined(piece for part in parts for piece in part.pieces())
