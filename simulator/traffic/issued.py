"""The requests that have arrived, in order of arrival: the workload that a run turned out to have."""

from array import array
from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np

from simulator.request import Request
from simulator.results.records import CallColumns
from simulator.workload import Workload, requests_of_tasks

_COLUMNS = ("input_tokens", "output_tokens", "max_tokens", "priority", "class_index")


class Issued:
    """Collects arrivals; a request's row in the run is its place here."""

    def __init__(self) -> None:
        self._source = array("i")
        self._row = array("q")
        self._arrival_s = array("d")
        self._attempt = array("i")
        self._first = array("q")
        self._left_s = array("d")

    def __len__(self) -> int:
        return len(self._row)

    def add(self, source: int, row: int, attempt: int, first: int, arrival_s: float) -> int:
        """A request arrives: its row in the run. `first` is that of its first attempt, -1 for the first itself."""
        mine = len(self._row)
        self._source.append(source)
        self._row.append(row)
        self._arrival_s.append(arrival_s)
        self._attempt.append(attempt)
        self._first.append(mine if first < 0 else first)
        self._left_s.append(nan)
        return mine

    def leaves(self, row: int, at_s: float) -> None:
        """The client of a request lost its patience."""
        self._left_s[row] = at_s

    def calls(self) -> CallColumns:
        """Columns of the clients' side, for the records."""
        return CallColumns(
            attempt=np.array(self._attempt, dtype=np.int64),
            first_row=np.array(self._first, dtype=np.int64),
            left_s=np.array(self._left_s, dtype=np.float64),
        )

    def workload(self, sources: Sequence[Workload]) -> Workload:
        """The requests with their arrival times; `sources` are the workloads that they came from."""
        source, row = np.array(self._source, dtype=np.int64), np.array(self._row, dtype=np.int64)
        columns: dict[str, Any] = {name: np.zeros(len(row), dtype=np.int64) for name in _COLUMNS}
        names: list[str] = [""] * len(row)
        sessions: list[str | None] = [None] * len(row)
        turns = np.ones(len(row), dtype=np.int64)
        tasks: list[str | None] = [None] * len(row)
        task_requests = np.zeros(len(row), dtype=np.int64)
        for index, rows in enumerate(sources):
            mine = np.flatnonzero(source == index)
            for name in _COLUMNS:
                columns[name][mine] = getattr(rows, name)[row[mine]]
            turns[mine] = rows.session_turns()[row[mine]]
            for here in mine.tolist():
                there = row.item(here)
                names[here] = attempt_id(rows.request_id(there), self._attempt[here])
                if rows.session_ids is not None:
                    sessions[here] = rows.session_ids[there]
                if rows.task_ids is not None:
                    tasks[here] = rows.task_ids[there]
            if rows.task_ids is not None:
                task_requests[mine] = requests_of_tasks(rows.task_ids)[row[mine]]
        in_sessions = any(name is not None for name in sessions)
        return Workload(
            arrival_s=np.array(self._arrival_s, dtype=np.float64),
            **columns,
            class_names=sources[0].class_names,
            request_ids=names,
            session_ids=sessions if in_sessions else None,
            turns=turns if in_sessions else None,
            task_ids=tasks if task_requests.any() else None,
            task_requests=task_requests if task_requests.any() else None,
        )


def attempt_id(request_id: str, attempt: int) -> str:
    """The name of an attempt: the first has the request's name, the others add their number."""
    return request_id if attempt == 1 else f"{request_id}#{attempt}"


def issue(rows: Workload, there: int, here: int, arrival_s: float, attempt: int) -> Request:
    """The request of row `there` of a source, as row `here` of the run."""
    request = rows.request(there)
    return request._replace(row=here, arrival_s=arrival_s, request_id=attempt_id(request.request_id, attempt))
