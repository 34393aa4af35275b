"""The records of a run, in columns. Every metric, plot and table is computed from these and nothing else.

Three grains:

- `requests`: one entry a request, in workload order.
- `rows`: one entry a step, or a run of equal pure-decode steps folded into one row with `repeat`.
- per step: `step_end_s` and `step_used_blocks` hold one entry for every single step, in row order, so that a row
  covers `step_end_s[first_step : first_step + repeat]`.

Long columns lie in files and are mapped where they are read (`simulator.columns`): nobody writes to a column.

Folding is canonical: two neighbouring steps share a row if and only if both only decode, nothing joined, left or
was paused between them, and the second starts when the first ends. It does not depend on how the engine got there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

from simulator.columns import StoredColumns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Status(IntEnum):
    """Where a request ended: exactly one of these."""

    FINISHED = 0
    REJECTED = 1
    UNFINISHED = 2
    ABORTED = 3  # its client gave up; `FINISHED_ABORTED` in vLLM


class Cause(Enum):
    """Why a request was rejected: of the two, only a full queue is worth another try."""

    TOO_LARGE = "too large"  # it could never be served here
    QUEUE_FULL = "the queue is full"


@dataclass(frozen=True, slots=True)
class RequestColumns(StoredColumns):
    """One entry a request, in workload order. Times in seconds on the run's clock; NaN where it never happened."""

    row: Ints
    replica: Ints  # -1: never given to one
    status: Ints  # Status
    arrival_s: Floats
    scheduled_s: Floats  # first time scheduled
    first_token_s: Floats
    last_token_s: Floats  # when the client has the last token
    released_s: Floats  # when slot, KV or place in the queue came free: may be later than last_token_s
    input_tokens: Ints
    output_tokens: Ints  # generated
    max_tokens: Ints
    priority: Ints
    class_index: Ints
    preemptions: Ints
    recomputed_tokens: Ints  # KV thrown away by preemption: tokens that had to be computed again
    swapped_out_blocks: Ints
    swapped_in_blocks: Ints
    cached_tokens: Ints  # prompt tokens found in the prefix cache, all admissions together
    requeued_s: Floats  # seconds spent waiting again after preemption
    aborted_tokens: Ints  # prompt and output tokens computed for a request that was aborted; 0 for any other

    def part(self, some: slice) -> RequestColumns:
        """The columns of some of the requests."""
        return RequestColumns(*[getattr(self, field.name)[some] for field in fields(self)])


@dataclass(frozen=True, slots=True)
class RowColumns(StoredColumns):
    """One entry a step, or a run of `repeat` equal decode steps. Counts are those of the row's first step."""

    replica: Ints
    first_step: Ints  # index into step_end_s / step_used_blocks
    repeat: Ints
    start_s: Floats
    end_s: Floats  # of the last step
    running: Ints  # requests that hold a slot, finished ones included
    held: Ints  # of these, finished: kept (static batching), or given a token too many (asynchronous scheduling)
    waiting: Ints  # in the queue after the decision
    swapped: Ints  # of these, with their KV on the host
    decoding: Ints  # requests computing one decode token (held ones not counted)
    prefilling: Ints  # requests with a prompt chunk in this step
    tokens: Ints  # computed in one step, padding included
    padded_tokens: Ints  # of these, padding and tokens of held requests
    prefill_tokens: Ints  # of these, prompt tokens (padding not counted)
    context_tokens: Ints  # KV tokens after the step, over the requests of the step
    preempted: Ints
    swapped_out_blocks: Ints
    swapped_in_blocks: Ints

    def of_replicas(self, first: int, end: int) -> RowColumns:
        """The rows of the replicas from `first` to before `end`: replicas' rows stand one after the other."""
        start, stop = np.searchsorted(self.replica, (first, end)).tolist()
        return RowColumns(*[getattr(self, field.name)[start:stop] for field in fields(self)])


@dataclass(frozen=True, slots=True)
class GapColumns(StoredColumns):
    """Gaps between neighbouring tokens of a request that are not inside a row, `count` requests having each.

    The gaps inside a row are the differences of its `step_end_s`, each with weight `decoding`. A token that an abort
    took back has no gap: an entry with a `count` of -1 cancels the one there. Where answers do not
    stream (`Records.streams`), there are no gaps, inside rows or here.
    """

    gap_s: Floats
    count: Ints
    end_s: Floats  # when it ended: the time of the later token


@dataclass(frozen=True, slots=True)
class RequeueColumns:
    """One entry a preemption: the request waited again from `from_s` until `to_s` (NaN: to its end or the run's)."""

    row: Ints
    from_s: Floats
    to_s: Floats
    swapped: Ints  # 1: its KV was moved to the host, 0: thrown away


@dataclass(frozen=True, slots=True)
class CallColumns:
    """One entry a request of traffic that answers back: an attempt of a client, and how long the client stayed."""

    attempt: Ints  # 1: the first
    first_row: Ints  # row of the first attempt: the attempts of one request have the same
    left_s: Floats  # when the client lost its patience; NaN: it stayed


@dataclass(frozen=True, slots=True)
class LifeColumns:
    """One entry a life of an autoscaled replica, by replica and start; NaN where it did not come to that."""

    replica: Ints
    start_s: Floats  # its GPUs are in use from here
    ready_s: Floats  # it takes requests from here
    drain_s: Floats  # to here
    end_s: Floats  # it is empty, and its GPUs are free; NaN: at the end of the run


@dataclass(frozen=True, slots=True)
class TransferColumns:
    """One entry a request whose KV moved from the replica that prefilled it to the one that decoded it."""

    row: Ints
    from_replica: Ints
    to_replica: Ints
    blocks: Ints  # of the prefilling replica
    bytes: Ints
    ready_s: Floats  # its first token
    start_s: Floats  # the link begins with it
    end_s: Floats  # all is there


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """A group of equal replicas, of each of which it says how large it is."""

    name: str
    replicas: int
    num_blocks: int  # usable KV blocks
    block_size: int
    max_num_seqs: int
    streams: bool = True


@dataclass(frozen=True, slots=True)
class Records(StoredColumns):
    """The whole result of a run."""

    requests: RequestColumns
    rows: RowColumns
    gaps: GapColumns
    requeues: RequeueColumns
    step_end_s: Floats
    step_used_blocks: Ints
    num_blocks: int  # usable KV blocks of one replica; as the next two, of the first group's where groups differ
    block_size: int
    max_num_seqs: int
    replicas: int
    reject_reasons: dict[int, str]  # row -> why
    class_names: tuple[str, ...]
    request_ids: tuple[str, ...] | None  # None: named by row
    streams: bool = True  # False: answers come whole, and there are no gaps between tokens
    calls: CallColumns | None = None  # None: nobody answers back, every request arrives at a time of its own
    session_ids: tuple[str | None, ...] | None = None  # None: no request is part of a session
    turns: Ints | None = None  # place of a request in its session, from 1; None like `session_ids`
    front_end_s: Floats | float = 0.0  # of each request, added to its first_token_s and last_token_s; 0.0: of none

    lives: LifeColumns | None = None  # None: all replicas are there all the time
    transfers: TransferColumns | None = None  # None: requests are prefilled and decoded by the same replica
    groups: tuple[GroupSizes, ...] = ()  # in the order of the replicas' numbers; none where all replicas are equal

    def front_end_of(self, rows: Ints) -> Floats | float:
        """Seconds between the engine and the clients of these requests."""
        return self.front_end_s if isinstance(self.front_end_s, float) else self.front_end_s[rows]

    def request_id(self, row: int) -> str:
        return str(row) if self.request_ids is None else self.request_ids[row]

    @property
    def sizes(self) -> tuple[GroupSizes, ...]:
        """The groups; a single one where all replicas are equal."""
        alike = GroupSizes("default", self.replicas, self.num_blocks, self.block_size, self.max_num_seqs, self.streams)
        return self.groups or (alike,)

    @property
    def slots(self) -> int:
        """Slots of all replicas together."""
        return sum(group.replicas * group.max_num_seqs for group in self.sizes)

    @property
    def all_blocks(self) -> int:
        """Usable KV blocks of all replicas together."""
        return sum(group.replicas * group.num_blocks for group in self.sizes)

    @property
    def num_steps(self) -> int:
        return len(self.step_end_s)
