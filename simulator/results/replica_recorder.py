"""Collects what one replica does while it runs: rows of steps, steps, gaps, requeues, and uses of adapters."""

from __future__ import annotations

from typing import Any

from simulator.results.buffers import CUT_ROWS, Series, Table
from simulator.timing.cost import StepShape

# Steps and rows that are Python objects until they are turned into arrays, of all replicas together; and the fewest
# of one replica that this is done for at a time.
_CUT_STEPS, _FEWEST_STEPS = 1 << 16, 1024
_FEWEST_ROWS = 256

# What the buffers hold of a row of steps. It lasts until the next begins; most other columns follow from the shape of
# its first step.
_COUNTS = StepShape._fields.index("prefill_pairs")
ROW = ("first_step", "start_s", "waiting", "late", *StepShape._fields[:_COUNTS])
# What few rows need besides.
ODD = ("row", "idle_slots", "held", "swapped", "padded_tokens", "preempted", "swapped_out_blocks", "swapped_in_blocks",
       "draft_tokens")  # fmt: skip
_GAP = ("gap_s", "count", "end_s")
_REQUEUE = ("row", "from_s", "to_s", "swapped")
_ADAPTER = ("row", "at_s", "loaded", "shut_out_s")


class ReplicaRecorder:
    """What one of `replicas` does: apart from the others, so that nothing depends on how they interleave."""

    def __init__(self, replicas: int) -> None:
        cut_rows = max(CUT_ROWS // replicas, _FEWEST_ROWS)
        self.rows = Table(ROW, cut_rows)
        self.odd_rows = Table(ODD, cut_rows)
        self.late_gaps = Table(_GAP, cut_rows)
        self.requeues = Table(_REQUEUE, cut_rows)
        self.adapters = Table(_ADAPTER, cut_rows)
        self.step_end_s = Series("d")
        self.step_used_blocks = Series("i")
        self._cut_steps = self._cut_at = max(_CUT_STEPS // replicas, _FEWEST_STEPS)
        self.num_rows = 0
        self.num_steps = 0
        self.end_s = -1.0  # of the last step

    def __reduce__(self) -> tuple[type[ReplicaRecorder], tuple[int], tuple[Any, ...]]:
        # Compiled, a class is made by its constructor alone.
        tables = self.rows, self.odd_rows, self.late_gaps, self.requeues, self.adapters
        steps = self.step_end_s, self.step_used_blocks, self._cut_steps, self._cut_at
        state = (*tables, *steps, self.num_rows, self.num_steps, self.end_s)
        return ReplicaRecorder, (1,), state

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.rows, self.odd_rows, self.late_gaps, self.requeues, self.adapters = state[:5]
        self.step_end_s, self.step_used_blocks, self._cut_steps, self._cut_at = state[5:9]
        self.num_rows, self.num_steps, self.end_s = state[9:]

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
        self.rows.add((self.num_steps, start_s, waiting, late, *shape[:_COUNTS]))

    def odd(self, *columns: int) -> None:
        """Record the rare columns of the row that has just begun: those of `ODD` but the first.

        `idle_slots` are requests in the batch that compute nothing: paused, or admitted for later.
        """
        if any(columns):
            self.odd_rows.add((self.num_rows - 1, *columns))

    def steps(self, ends_s: list[float], used_blocks: list[int]) -> None:
        """Steps of the row that has begun."""
        self.step_end_s.extend(ends_s)
        self.step_used_blocks.extend(used_blocks)
        self.num_steps += len(ends_s)
        self.end_s = ends_s[-1]
