"""A run in its long form: every token of every request written out, and the same folded into `Records`.

A `Story` is a list of steps with the requests in each, and a list of token times and of stretches of waiting for each
request. Naive metrics are read off it.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from simulator.results.records import (
    GapColumns,
    Records,
    RequestColumns,
    RequeueColumns,
    RowColumns,
    Status,
)
from tests.columns import as_floats, as_ints

NAN = float("nan")


@dataclass
class Told:
    """One request, token by token."""

    row: int
    arrival_s: float
    input_tokens: int
    output_tokens: int
    class_index: int = 0
    replica: int = 0
    status: Status = Status.UNFINISHED
    to_compute: int = 0  # prompt (and, after a preemption, outputs) still to be prefilled
    scheduled_s: float = NAN
    released_s: float = NAN
    token_s: list[float] = field(default_factory=list)
    delivered_s: float = NAN  # where results come with the batch
    token_step: list[int] = field(default_factory=list)  # index of the step that gave it
    waits: list[list[float]] = field(default_factory=list)  # from, to (NaN: to the end), swapped
    recomputed: int = 0
    swapped_out: int = 0
    swapped_in: int = 0
    cached: int = 0
    aborted_tokens: int = 0
    dropped: list[tuple[float, int]] = field(default_factory=list)  # time and step of the token that an abort dropped

    @property
    def preemptions(self) -> int:
        return len(self.waits) - 1


@dataclass
class ToldStep:
    """One engine step, with who was in it."""

    replica: int
    start_s: float
    end_s: float
    running: list[int]
    held: list[int]
    decoding: list[int]
    prefilling: list[int]
    waiting: int
    padded_tokens: int
    prefill_tokens: int
    used_blocks: int
    preempted: int
    row: int = -1

    @property
    def tokens(self) -> int:
        return len(self.decoding) + self.prefill_tokens + self.padded_tokens


@dataclass
class Story:
    """A whole run in its long form."""

    requests: list[Told]
    steps: list[ToldStep]
    num_blocks: int
    max_num_seqs: int
    replicas: int
    classes: int
    streams: bool

    def end_s(self) -> float:
        return max([s.end_s for s in self.steps] + [r.arrival_s for r in self.requests], default=0.0)

    def left_s(self, told: Told) -> float:
        """When a request that still waits at its end leaves the queue."""
        return told.released_s if told.status is Status.ABORTED else self.end_s()

    def records(self) -> Records:
        rows = self._rows()
        ordered = [step for row in rows for step in row]
        counts = np.cumsum([0] + [len(row) for row in rows])
        heads = [row[0] for row in rows]
        none = as_ints(np.zeros(len(rows)))
        return Records(
            requests=self._request_columns(),
            rows=RowColumns(
                replica=as_ints([s.replica for s in heads]),
                first_step=as_ints(counts[:-1]),
                repeat=as_ints([len(row) for row in rows]),
                start_s=as_floats([s.start_s for s in heads]),
                end_s=as_floats([row[-1].end_s for row in rows]),
                running=as_ints([len(s.running) for s in heads]),
                held=as_ints([len(s.held) for s in heads]),
                waiting=as_ints([s.waiting for s in heads]),
                swapped=none,
                decoding=as_ints([len(s.decoding) for s in heads]),
                prefilling=as_ints([len(s.prefilling) for s in heads]),
                tokens=as_ints([s.tokens for s in heads]),
                padded_tokens=as_ints([s.padded_tokens for s in heads]),
                prefill_tokens=as_ints([s.prefill_tokens for s in heads]),
                context_tokens=none,
                preempted=as_ints([s.preempted for s in heads]),
                swapped_out_blocks=none,
                swapped_in_blocks=none,
            ),
            gaps=self._gap_columns(),
            requeues=self._requeue_columns(),
            step_end_s=as_floats([s.end_s for s in ordered]),
            step_used_blocks=np.array([s.used_blocks for s in ordered], dtype=np.int32).astype(np.int64),
            num_blocks=self.num_blocks,
            block_size=16,
            max_num_seqs=self.max_num_seqs,
            replicas=self.replicas,
            reject_reasons={r.row: "too large" for r in self.requests if r.status is Status.REJECTED},
            class_names=tuple(f"class {i}" for i in range(self.classes)),
            request_ids=None,
            streams=self.streams,
        )

    def _rows(self) -> list[list[ToldStep]]:
        """Steps folded into rows, replica by replica; tells each step its row."""
        rows: list[list[ToldStep]] = []
        for step in (s for replica in range(self.replicas) for s in self.steps if s.replica == replica):
            last = rows[-1][-1] if rows else None
            if last is None or not _continues(last, step):
                rows.append([])
            rows[-1].append(step)
            step.row = len(rows) - 1
        return rows

    def _gap_columns(self) -> GapColumns:
        if not self.streams:
            return GapColumns(as_floats([]), as_ints([]), as_floats([]))
        gaps: Counter[tuple[float, float]] = Counter()
        for request in self.requests:
            for i in range(1, len(request.token_s)):
                if self.steps[request.token_step[i - 1]].row != self.steps[request.token_step[i]].row:
                    gaps[request.token_s[i] - request.token_s[i - 1], request.token_s[i]] += 1
            for token_s, step in request.dropped:
                if request.token_s and self.steps[request.token_step[-1]].row == self.steps[step].row:
                    gaps[token_s - request.token_s[-1], token_s] -= 1  # the row counts it
        gap_s, end_s = as_floats([gap for gap, _ in gaps]), as_floats([end for _, end in gaps])
        return GapColumns(gap_s, as_ints(list(gaps.values())), end_s)

    def _requeue_columns(self) -> RequeueColumns:
        entries = [(r.row, *wait) for r in self.requests for wait in r.waits[1:]]
        row, start, end, swapped = zip(*entries, strict=True) if entries else ((), (), (), ())
        return RequeueColumns(as_ints(row), as_floats(start), as_floats(end), as_ints(swapped))

    def _request_columns(self) -> RequestColumns:
        told = self.requests
        zero = as_ints(np.zeros(len(told)))
        first = [r.token_s[0] if r.token_s else NAN for r in told]
        last = [r.token_s[-1] if r.token_s and r.status is not Status.UNFINISHED else NAN for r in told]
        if not self.streams:
            first = last = [r.delivered_s for r in told]
        return RequestColumns(
            row=as_ints([r.row for r in told]),
            replica=as_ints([-1 if r.status is Status.REJECTED else r.replica for r in told]),
            status=as_ints([int(r.status) for r in told]),
            arrival_s=as_floats([r.arrival_s for r in told]),
            scheduled_s=as_floats([r.scheduled_s for r in told]),
            first_token_s=as_floats(first),
            last_token_s=as_floats(last),
            released_s=as_floats([r.released_s for r in told]),
            input_tokens=as_ints([r.input_tokens for r in told]),
            output_tokens=as_ints([len(r.token_s) for r in told]),
            max_tokens=as_ints([r.output_tokens for r in told]),
            priority=zero,
            class_index=as_ints([r.class_index for r in told]),
            preemptions=as_ints([max(r.preemptions, 0) for r in told]),
            recomputed_tokens=as_ints([r.recomputed for r in told]),
            swapped_out_blocks=as_ints([r.swapped_out for r in told]),
            swapped_in_blocks=as_ints([r.swapped_in for r in told]),
            cached_tokens=as_ints([r.cached for r in told]),
            requeued_s=as_floats([sum((b if b == b else self.left_s(r)) - a for a, b, _ in r.waits[1:]) for r in told]),
            aborted_tokens=as_ints([r.aborted_tokens for r in told]),
        )


def _continues(last: ToldStep, step: ToldStep) -> bool:
    return (
        last.replica == step.replica
        and last.end_s == step.start_s
        and last.running == step.running
        and last.held == step.held
        and last.decoding == step.decoding
        and bool(step.decoding)
        and not (last.prefilling or step.prefilling or step.preempted)
    )
