"""The columns of the rows and gaps of a whole run, from what its replicas have packed."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate

import numpy as np

from simulator.columns import PIECE, Column
from simulator.results.buffers import Columns, ReplicaRecorder, Table
from simulator.results.records import GapColumns, Ints, RowColumns

Sinks = dict[str, Column]


def rows_and_gaps(replicas: Sequence[ReplicaRecorder], step_end_s: Column, streams: bool) -> tuple[Sinks, Sinks]:
    """The columns of the rows and those of the gaps, the derived ones too; gaps only where answers stream.

    `step_end_s` has the steps of all replicas. Rows stand replica by replica, and so do gaps: of each those that rows
    begin with, then those recorded as late. They are worked out a piece at a time.
    """
    rows: Sinks = {field.name: Column() for field in fields(RowColumns)}
    gaps: Sinks = {field.name: Column() for field in fields(GapColumns)}
    first = steps = 0
    while first < len(replicas):
        some = _Neighbours(replicas[first : _stop(replicas, first)], first, steps)
        for piece in some.rows(step_end_s):
            on_time = piece.pop("on_time")
            _append(rows, piece)
            if streams:
                begun = np.flatnonzero(on_time)
                end_s = step_end_s.open()[piece["first_step"][begun]]
                own = {"gap_s": end_s - piece["start_s"][begun], "count": on_time[begun], "end_s": end_s}
                _append(gaps, own if some.is_one else some.with_late(own, piece["replica"][begun]))
        if some.is_one:
            for late in some.late_gaps():
                _append(gaps, late)
        first, steps = first + len(some), some.stop_step
    return rows, gaps


def _stop(replicas: Sequence[ReplicaRecorder], first: int) -> int:
    """The replicas from `first` to before this have no more rows than a piece, unless it is one alone."""
    stop, rows = first + 1, replicas[first].num_rows
    while stop < len(replicas) and rows + replicas[stop].num_rows <= PIECE:
        rows += replicas[stop].num_rows
        stop += 1
    return stop


class _Neighbours:
    """Replicas next to one another, from number `first`: several that make one piece, or one of any length.

    `first_step` is the number of steps of the replicas before.
    """

    def __init__(self, replicas: Sequence[ReplicaRecorder], first: int, first_step: int) -> None:
        self._replicas = replicas
        self.is_one = len(replicas) == 1
        self._first = first
        steps = list(accumulate([replica.num_steps for replica in replicas], initial=first_step))
        rows = list(accumulate([replica.num_rows for replica in replicas], initial=0))
        self._first_steps, self.stop_step = np.array(steps[:-1]), steps[-1]
        self._row_stops, self._num_rows = np.array(rows[1:]), rows[-1]
        self._packed = Table.joined([replica.rows for replica in replicas])
        self._odd = Table.joined([replica.odd_rows for replica in replicas]).columns()
        self._odd["row"] += np.repeat(rows[:-1], [len(replica.odd_rows) for replica in replicas])

    def __len__(self) -> int:
        return len(self._replicas)

    def rows(self, step_end_s: Column) -> Iterator[Columns]:
        """The columns of the rows, piece by piece, and `on_time`: the decodes whose gap is the row's first step."""
        for start in range(0, max(self._num_rows, 1), PIECE):
            stop = min(start + PIECE, self._num_rows)
            owner = np.searchsorted(self._row_stops, np.arange(start, stop), side="right")
            part = self._packed.part(start, stop + 1)  # and the row after, where this one ends
            after = part["first_step"][stop - start :]
            part = {name: column[: stop - start] for name, column in part.items()}
            few = slice(*np.searchsorted(self._odd["row"], (start, stop)).tolist())
            part |= to_every_row({name: column[few] for name, column in self._odd.items()}, start, stop)
            part["replica"] = self._first + owner
            part["first_step"] += self._first_steps[owner]
            _derive(part, self._first_steps.item(0) + int(after[0]) if len(after) else self.stop_step, step_end_s)
            yield part

    def late_gaps(self) -> Iterator[Columns]:
        """Late gaps of one replica, piece by piece."""
        late = self._replicas[0].late_gaps
        for start in range(0, max(len(late), 1), PIECE):
            yield late.part(start, start + PIECE)

    def with_late(self, own: Columns, owners: Ints) -> Columns:
        """The gaps that rows begin with, of these `owners`, and those recorded as late, replica by replica."""
        late = Table.joined([replica.late_gaps for replica in self._replicas]).columns()
        counts = [len(replica.late_gaps) for replica in self._replicas]
        numbers = np.arange(self._first, self._first + len(self))
        order = np.argsort(np.concatenate([owners, np.repeat(numbers, counts)]), kind="stable")
        return {name: np.concatenate([own[name], late[name]])[order] for name in late}


def _derive(rows: Columns, stop_step: int, step_end_s: Column) -> None:
    """Work out the other columns of these rows, the last of which ends before `stop_step`."""
    first_step, held = rows["first_step"], rows["held"]
    # Held requests compute in every step that decodes.
    decoding = rows["decoding"] = rows.pop("decode_seqs") - np.where(rows["decode_context"] > 0, held, 0)
    padded = rows["padded_tokens"]
    padding = padded - np.where(rows["decode_context"] > 0, held, 0)
    rows["repeat"] = np.diff(first_step, append=stop_step)
    rows["end_s"] = step_end_s.open()[first_step + rows["repeat"] - 1]
    rows["prefilling"] = rows.pop("prefill_seqs")
    rows["running"] = decoding + rows["prefilling"] + held + rows.pop("idle_slots")
    rows["prefill_tokens"] -= padding
    rows["tokens"] = decoding + rows["prefill_tokens"] + padded + rows.pop("draft_tokens")
    rows["context_tokens"] = rows.pop("decode_context") + rows.pop("prefill_context")
    rows["on_time"] = decoding - rows.pop("late")


def to_every_row(few: Columns, start: int, stop: int) -> Columns:
    """Columns of the rows from `start` to before `stop`, from those of the few named in the column `row`; else zero."""
    place = few.pop("row") - start
    full = {}
    for name, values in few.items():
        column = np.zeros(stop - start, dtype=values.dtype)
        column[place] = values
        full[name] = column
    return full


def _append(sinks: Sinks, columns: Columns) -> None:
    for name, column in columns.items():
        sinks[name].add(column)
