"""Collects a run's columns while it runs, cheaply: rows go into flat buffers that are cut into columns in bulk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from simulator.columns import PIECE, Column, joined
from simulator.request_state import RequestState, Setbacks
from simulator.results.buffers import CUT_ROWS, Columns, Series, Table
from simulator.results.records import (
    GapColumns,
    GroupSizes,
    LifeColumns,
    Records,
    RequestColumns,
    RequeueColumns,
    RowColumns,
    Status,
    TransferColumns,
)
from simulator.timing.cost import StepShape
from simulator.workload import Workload

Sinks = dict[str, Column]
Watch = Callable[[RequestState, int, Status], None]
"""Told of each request as it ends, with its replica and how it ended."""

# Steps and rows that are Python objects until they are turned into arrays, of all replicas together; and the fewest
# of one replica that this is done for at a time.
_CUT_STEPS, _FEWEST_STEPS = 1 << 16, 1024
_FEWEST_ROWS = 256
_TELL_EVERY = 256  # requests between two calls of `progress`


# What the buffers hold of a row of steps. It lasts until the next begins; most other columns follow from the shape of
# its first step.
_COUNTS = StepShape._fields.index("prefill_pairs")
_ROW = ("first_step", "start_s", "waiting", "late", *StepShape._fields[:_COUNTS])
# What few rows need besides.
_ODD = ("row", "idle_slots", "held", "swapped", "padded_tokens", "preempted", "swapped_out_blocks", "swapped_in_blocks")
# What the buffers hold of a request; the workload knows the rest.
_REQUEST = ("row", "replica", "status", "scheduled_s", "first_token_s", "last_token_s", "released_s", "output_tokens")
_SETBACKS = ("row", *(field.name for field in fields(Setbacks) if field.name not in ("left_s", "skipped_tokens")))


def _fields(columns: type) -> list[str]:
    return [field.name for field in fields(columns)]


class ReplicaRecorder:
    """Rows, steps, gaps and requeues of one of `replicas`: apart, so that nothing depends on how they interleave."""

    def __init__(self, replicas: int) -> None:
        cut_rows = max(CUT_ROWS // replicas, _FEWEST_ROWS)
        self._rows = Table(_ROW, cut_rows)
        self._odd = Table(_ODD, cut_rows)
        self.late_gaps = Table(_fields(GapColumns), cut_rows)
        self.requeues = Table(_fields(RequeueColumns), cut_rows)
        self.step_end_s = Series("d")
        self.step_used_blocks = Series("i")
        self._cut_steps = self._cut_at = max(_CUT_STEPS // replicas, _FEWEST_STEPS)
        self.num_rows = 0
        self.num_steps = 0
        self.end_s = -1.0  # of the last step

    def settle(self) -> None:
        """Turn what was added into arrays, which are quickly given to another process."""
        for part in (self._rows, self._odd, self.late_gaps, self.requeues, self.step_end_s, self.step_used_blocks):
            part.cut()

    def row(self, start_s: float, waiting: int, late: int, shape: StepShape) -> None:
        """A row begins at `start_s` with a step of this shape.

        `late` of the decoding requests got their last token before `start_s`: their gaps are in `late_gaps`. The gap
        of the others is the row's first step.
        """
        self.num_rows += 1
        if self.num_steps >= self._cut_at:
            self._cut_at = self.num_steps + self._cut_steps
            self.step_end_s.cut()
            self.step_used_blocks.cut()
        self._rows.add((self.num_steps, start_s, waiting, late, *shape[:_COUNTS]))

    def odd(self, *columns: int) -> None:
        """Record the rare columns of the row that has just begun: those of `_ODD` but the first.

        `idle_slots` are requests in the batch that compute nothing: paused, or admitted for later.
        """
        if any(columns):
            self._odd.add((self.num_rows - 1, *columns))

    def steps(self, ends_s: list[float], used_blocks: list[int]) -> None:
        """Steps of the row that has begun."""
        self.step_end_s.extend(ends_s)
        self.step_used_blocks.extend(used_blocks)
        self.num_steps += len(ends_s)
        self.end_s = ends_s[-1]

    def add_to(self, rows: Sinks, gaps: Sinks, replica: int, streams: bool, steps_before: int) -> None:
        """Append the columns of the rows and those of the gaps, the derived ones too, a piece at a time.

        `first_step` counts on from the `steps_before` of other replicas.
        """
        odd = self._odd.columns()
        for start in range(0, max(self.num_rows, 1), PIECE):
            stop = min(start + PIECE, self.num_rows)
            part = self._rows.part(start, stop + 1)  # and the row after, where this one ends
            after = part["first_step"][stop - start :]
            part = {name: column[: stop - start] for name, column in part.items()}
            few = slice(*np.searchsorted(odd["row"], (start, stop)).tolist())
            part |= _to_every_row({name: column[few] for name, column in odd.items()}, start, stop)
            self._derive(part, int(after[0]) if len(after) else self.num_steps, replica, gaps if streams else None)
            part["first_step"] += steps_before
            _append(rows, part)
        for start in range(0, max(len(self.late_gaps), 1), PIECE):
            _append(gaps, self.late_gaps.part(start, start + PIECE))

    def _derive(self, rows: Columns, steps: int, replica: int, gaps: Sinks | None) -> None:
        """Work out the other columns of these rows, which end with that many `steps`, and append their gaps."""
        first_step, start_s, held = rows["first_step"], rows["start_s"], rows["held"]
        step_end_s = self.step_end_s.column().open()
        # Held requests compute in every step that decodes.
        decoding = rows["decoding"] = rows.pop("decode_seqs") - np.where(rows["decode_context"] > 0, held, 0)
        padded = rows["padded_tokens"]
        padding = padded - np.where(rows["decode_context"] > 0, held, 0)
        rows["replica"] = np.full(len(first_step), replica)
        rows["repeat"] = np.diff(first_step, append=steps)
        rows["end_s"] = step_end_s[first_step + rows["repeat"] - 1]
        rows["prefilling"] = rows.pop("prefill_seqs")
        rows["running"] = decoding + rows["prefilling"] + held + rows.pop("idle_slots")
        rows["prefill_tokens"] -= padding
        rows["tokens"] = decoding + rows["prefill_tokens"] + padded
        rows["context_tokens"] = rows.pop("decode_context") + rows.pop("prefill_context")
        on_time = decoding - rows.pop("late")
        if gaps is not None:
            some = np.flatnonzero(on_time)
            end_s = step_end_s[first_step[some]]
            _append(gaps, {"gap_s": end_s - start_s[some], "count": on_time[some], "end_s": end_s})


def _append(sinks: Sinks, columns: Columns) -> None:
    for name, column in columns.items():
        sinks[name].add(column)


def _to_every_row(few: Columns, start: int, stop: int) -> Columns:
    """Columns of the rows from `start` to before `stop`, from those of the few named in the column `row`; else zero."""
    place = few.pop("row") - start
    full = {}
    for name, values in few.items():
        column = np.zeros(stop - start, dtype=values.dtype)
        column[place] = values
        full[name] = column
    return full


class Recorder:
    """What a whole run leaves behind: requests as they end, and what each replica did."""

    def __init__(self, replicas: int, progress: Callable[[int], None] | None = None) -> None:
        self.replicas = [ReplicaRecorder(replicas) for _ in range(replicas)]
        self._requests = Table(_REQUEST)
        self._setbacks = Table(_SETBACKS)
        self.reject_reasons: dict[int, str] = {}
        self.lives = Table(_fields(LifeColumns))
        self.transfers = Table(_fields(TransferColumns))
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
            self._setbacks.add((row, *[getattr(back, name) for name in _SETBACKS[1:]]))
        for watch in self._watching:
            watch(live, replica, status)
        self.ended += 1
        if self._progress is not None and self.ended % _TELL_EVERY == 0:
            self._progress(self.ended)

    def settle(self) -> None:
        """Turn what was added into arrays, which are quickly given to another process."""
        self._requests.cut()
        self._setbacks.cut()
        for replica in self.replicas:
            replica.settle()

    def take_over(self, other: Recorder, numbers: Sequence[int]) -> None:
        """What another recorder, which was settled, has of these replicas, and all requests that ended there."""
        for number in numbers:
            self.replicas[number] = other.replicas[number]
        self._requests.extend(other._requests)
        self._setbacks.extend(other._setbacks)
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
        lives, transfers = LifeColumns(**self.lives.columns()), TransferColumns(**self.transfers.columns())
        rows = {name: Column() for name in _fields(RowColumns)}
        gaps = {name: Column() for name in _fields(GapColumns)}
        steps = 0
        for index, replica in enumerate(self.replicas):
            replica.add_to(rows, gaps, index, first.streams, steps)
            steps += replica.num_steps
        return Records.keep(
            {
                "step_end_s": _one([replica.step_end_s.column() for replica in self.replicas]),
                "step_used_blocks": _one([replica.step_used_blocks.column() for replica in self.replicas]),
            },
            requests=RequestColumns.keep(self._request_columns(workload)),
            rows=RowColumns.keep(rows),
            gaps=GapColumns.keep(gaps),
            requeues=RequeueColumns(**_joined([replica.requeues.columns() for replica in self.replicas])),
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
            lives=lives if len(lives.replica) else None,
            transfers=transfers if len(transfers.row) else None,
        )

    def _request_columns(self, workload: Workload) -> Sinks:
        """One entry a request, in workload order."""
        order = np.argsort(self._requests.column("row"), kind="stable")
        sinks = {name: joined([self._requests.column(name)[order]]) for name in _REQUEST}
        for name, column in _to_every_row(self._setbacks.columns(), 0, len(workload)).items():
            sinks[name] = joined([column])
        for name in ("arrival_s", "input_tokens", "max_tokens", "priority", "class_index"):
            sinks[name] = joined([getattr(workload, name)])
        return sinks


def _sessions(workload: Workload) -> dict[str, Any]:
    """The session of each request, and its place there: as the workload says, or in order of arrival."""
    names = workload.session_ids
    if names is None or not any(name is not None for name in names):
        return {}
    return {"session_ids": tuple(names), "turns": workload.session_turns()}


def _joined(tables: list[Columns]) -> Columns:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _one(parts: list[Column]) -> Column:
    """The parts one after another; a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    return joined(piece for part in parts for piece in part.pieces())
