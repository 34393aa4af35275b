"""Collects a run's columns while it runs, cheaply: rows go into flat buffers that are cut into columns in bulk."""

from __future__ import annotations

from array import array
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.live import LiveRequest
from simulator.records import Floats, GapColumns, Ints, Records, RequestColumns, RequeueColumns, RowColumns, Status
from simulator.workload import Workload

_FLUSH_ROWS = 1 << 15


class Table:
    """Rows of numbers in, columns out. Doubles hold every count exactly up to 2**53."""

    def __init__(self, columns: type) -> None:
        self._columns = columns
        self._names = [f.name for f in fields(columns)]
        self._is_float = [f.type == "Floats" for f in fields(columns)]
        self.width = len(self._names)
        self._limit = _FLUSH_ROWS * self.width
        self._flat = array("d")
        self._chunks: list[list[NDArray[Any]]] = []

    def __len__(self) -> int:
        return sum(len(chunk[0]) for chunk in self._chunks) + len(self._flat) // self.width

    def add(self, row: tuple[float, ...]) -> None:
        """Append a row, its values in the order of the columns' fields."""
        if len(self._flat) >= self._limit:
            self._cut()
        self._flat.extend(row)

    @property
    def last(self) -> array[float]:
        """The flat buffer; its last `width` values are the row added last."""
        return self._flat

    def _cut(self) -> None:
        rows = np.frombuffer(self._flat, dtype=np.float64).reshape(-1, self.width)
        self._chunks.append([rows[:, i].astype(np.float64 if f else np.int64) for i, f in enumerate(self._is_float)])
        self._flat = array("d")

    def columns(self) -> list[NDArray[Any]]:
        """The columns, in the order of the fields; the table is empty afterwards."""
        self._cut()
        whole = []
        for i in range(self.width):
            whole.append(np.concatenate([chunk[i] for chunk in self._chunks]))
            for chunk in self._chunks:
                chunk[i] = np.empty(0)
        self._chunks = []
        return whole


class ReplicaRecorder:
    """Rows and steps of one replica."""

    def __init__(self, replica: int) -> None:
        self.replica = replica
        self.rows = Table(RowColumns)
        self.step_end_s = array("d")
        self.step_used_blocks = array("i")
        self._end_s = -1.0

    def steps(self, ends_s: list[float], used_blocks: list[int], row: tuple[float, ...], fold: bool) -> None:
        """One step, or a run of equal ones, of which `row` holds the columns after `end_s`.

        With `fold` they continue the row before, if they follow it without a pause: `row` begins with the start.
        """
        if fold and row[0] == self._end_s:
            flat = self.rows.last
            width = self.rows.width
            flat[2 - width] += len(ends_s)
            flat[4 - width] = ends_s[-1]
        else:
            self.rows.add((self.replica, len(self.step_end_s), len(ends_s), row[0], ends_s[-1], *row[1:]))
        self.step_end_s.extend(ends_s)
        self.step_used_blocks.extend(used_blocks)
        self._end_s = ends_s[-1]


class Recorder:
    """What a whole run leaves behind: requests as they end, gaps, and each replica's steps."""

    def __init__(self, replicas: int) -> None:
        self.replicas = [ReplicaRecorder(index) for index in range(replicas)]
        self.requests = Table(RequestColumns)
        self.gaps = Table(GapColumns)
        self.requeues = Table(RequeueColumns)
        self.reject_reasons: dict[int, str] = {}
        self.finished = 0

    def request(self, live: LiveRequest, class_index: int, replica: int, status: Status, released_s: float) -> None:
        """A request has ended, one way or another."""
        setbacks = live.setbacks
        self.requests.add(
            (
                live.row,
                replica,
                status,
                live.arrival_s,
                live.scheduled_s,
                live.first_token_s,
                live.last_token_s,
                released_s,
                live.input_tokens,
                live.output_tokens_so_far,
                live.max_tokens,
                live.priority,
                class_index,
                *(
                    (0, 0, 0, 0, 0, 0.0)
                    if setbacks is None
                    else (
                        setbacks.preemptions,
                        setbacks.recomputed_tokens,
                        setbacks.swapped_out_blocks,
                        setbacks.swapped_in_blocks,
                        0,
                        setbacks.requeued_s,
                    )
                ),
            )
        )
        self.finished += 1

    def records(self, workload: Workload, *, num_blocks: int, block_size: int, max_num_seqs: int) -> Records:
        """Everything collected, as `Records`; the recorder is empty afterwards."""
        requests = self.requests.columns()
        order = np.argsort(requests[0], kind="stable")
        rows, ends, used = _joined(self.replicas)
        return Records(
            requests=RequestColumns(*(column[order] for column in requests)),
            rows=RowColumns(*rows),
            gaps=GapColumns(*self.gaps.columns()),
            requeues=RequeueColumns(*self.requeues.columns()),
            step_end_s=ends,
            step_used_blocks=used,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            replicas=len(self.replicas),
            reject_reasons=dict(sorted(self.reject_reasons.items())),
            class_names=workload.class_names,
            request_ids=None if workload.request_ids is None else tuple(workload.request_ids),
        )


def _joined(replicas: list[ReplicaRecorder]) -> tuple[list[NDArray[Any]], Floats, Ints]:
    """The replicas' rows and steps one after the other, `first_step` counting through."""
    ends = np.concatenate([np.frombuffer(r.step_end_s, dtype=np.float64) for r in replicas])
    used = np.concatenate([np.frombuffer(r.step_used_blocks, dtype=np.int32) for r in replicas])
    tables = []
    offset = 0
    for replica in replicas:
        columns = replica.rows.columns()
        columns[1] += offset
        offset += len(replica.step_end_s)
        tables.append(columns)
    if len(tables) == 1:
        return tables[0], ends, used
    return [np.concatenate(parts) for parts in zip(*tables, strict=True)], ends, used
