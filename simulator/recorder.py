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

_CUT_ROWS = 4096  # rows of Python objects that are turned into arrays at a time


class Table:
    """Rows of numbers in, columns out: those of a dataclass of columns, but for the ones that are `derived`."""

    def __init__(self, columns: type, derived: tuple[str, ...] = ()) -> None:
        self._types = [np.float64 if f.type == "Floats" else np.int64 for f in fields(columns) if f.name not in derived]
        self._rows: list[tuple[float, ...]] = []
        self._chunks: list[list[NDArray[Any]]] = []

    def add(self, row: tuple[float, ...]) -> None:
        """Append a row, its values in the order of the columns."""
        self._rows.append(row)
        if len(self._rows) == _CUT_ROWS:
            self._cut()

    def _cut(self) -> None:
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(self._types)
        self._chunks.append([np.array(c, dtype) for c, dtype in zip(columns, self._types, strict=True)])
        self._rows.clear()

    def columns(self) -> list[NDArray[Any]]:
        """The columns, in their order; the table is empty afterwards."""
        self._cut()
        whole = []
        for i in range(len(self._types)):
            whole.append(np.concatenate([chunk[i] for chunk in self._chunks]))
            for chunk in self._chunks:
                chunk[i] = np.empty(0)
        self._chunks = []
        return whole


class ReplicaRecorder:
    """Rows, steps, gaps and requeues of one replica: apart, so that nothing depends on how replicas interleave."""

    def __init__(self) -> None:
        # A row lasts until the next one begins: how many steps it has and when it ends need not be kept.
        self.rows = Table(RowColumns, derived=("repeat", "end_s"))
        self.gaps = Table(GapColumns)
        self.requeues = Table(RequeueColumns)
        self.step_end_s = array("d")
        self.step_used_blocks = array("i")
        self.num_steps = 0
        self.end_s = -1.0  # of the last step

    def steps(self, ends_s: list[float], used_blocks: list[int]) -> None:
        """Steps of the row that was added last."""
        if len(ends_s) == 1:
            self.step_end_s.append(ends_s[0])
            self.step_used_blocks.append(used_blocks[0])
        else:
            self.step_end_s.extend(ends_s)
            self.step_used_blocks.extend(used_blocks)
        self.num_steps += len(ends_s)
        self.end_s = ends_s[-1]

    def row_columns(self) -> list[NDArray[Any]]:
        """All columns of the rows, the derived ones too."""
        replica, first_step, start_s, *others = self.rows.columns()
        repeat = np.diff(first_step, append=self.num_steps)
        end_s = np.frombuffer(self.step_end_s, dtype=np.float64)[first_step + repeat - 1]
        return [replica, first_step, repeat, start_s, end_s, *others]


class Recorder:
    """What a whole run leaves behind: requests as they end, and what each replica did."""

    def __init__(self, replicas: int) -> None:
        self.replicas = [ReplicaRecorder() for _ in range(replicas)]
        self.requests = Table(RequestColumns)
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

    def records(
        self, workload: Workload, *, num_blocks: int, block_size: int, max_num_seqs: int, streams: bool
    ) -> Records:
        """Everything collected, as `Records`; the recorder is empty afterwards."""
        requests = _sorted_by_first(self.requests.columns())
        rows, ends, used = _joined(self.replicas)
        return Records(
            requests=RequestColumns(*requests),
            rows=RowColumns(*rows),
            gaps=GapColumns(*_one_after_another([replica.gaps.columns() for replica in self.replicas])),
            requeues=RequeueColumns(*_one_after_another([replica.requeues.columns() for replica in self.replicas])),
            step_end_s=ends,
            step_used_blocks=used,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            replicas=len(self.replicas),
            reject_reasons=dict(sorted(self.reject_reasons.items())),
            class_names=workload.class_names,
            streams=streams,
            request_ids=None if workload.request_ids is None else tuple(workload.request_ids),
        )


def _joined(replicas: list[ReplicaRecorder]) -> tuple[list[NDArray[Any]], Floats, Ints]:
    """The replicas' rows and steps one after the other, `first_step` counting through."""
    ends = _one([np.frombuffer(r.step_end_s, dtype=np.float64) for r in replicas])
    used = _one([np.frombuffer(r.step_used_blocks, dtype=np.int32) for r in replicas])
    tables = []
    offset = 0
    for replica in replicas:
        columns = replica.row_columns()
        columns[1] += offset
        offset += replica.num_steps
        tables.append(columns)
    return _one_after_another(tables), ends, used


def _one_after_another(tables: list[list[NDArray[Any]]]) -> list[NDArray[Any]]:
    return [_one(list(parts)) for parts in zip(*tables, strict=True)]


def _one(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The parts one after another; a single part as it is, without a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _sorted_by_first(columns: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """The columns in the order of the first one, each old column dropped when its new one is there."""
    order = np.argsort(columns[0], kind="stable")
    for i in range(len(columns)):
        columns[i] = columns[i][order]
    return columns
