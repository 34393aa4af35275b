"""The records of a run, in columns. Every metric, plot and table is computed from these and nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum, IntEnum
from itertools import accumulate
from typing import Annotated

import numpy as np
from annotated_types import Unit, doc
from numpy.typing import NDArray

from simulator.columns import PIECE, Column, StoredColumns
from simulator.results.buffers import Columns, ReplicaRecorder, Table

# The records of a run, in columns. Every metric, plot and table is computed from these and nothing else.
#
# Three grains:
#
# - `requests`: one entry a request, in workload order.
# - `rows`: one entry a step, or a run of equal pure-decode steps folded into one row with `repeat`.
# - per step: `step_end_s` and `step_used_blocks` hold one entry for every single step, in row order, so that a row
# covers `step_end_s[first_step : first_step + repeat]`.
#
# Long columns lie in files and are mapped where they are read (`simulator.columns`): nobody writes to a column.
#
# Folding is canonical: two neighbouring steps share a row if and only if both only decode, nothing joined, left or
# was paused between them, and the second starts when the first ends. It does not depend on how the engine got
# there.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Status(IntEnum):
    """Where a request ended: exactly one of these."""

    FINISHED = 0
    REJECTED = 1
    UNFINISHED = 2
    ABORTED = 3  # its client gave up; `FINISHED_ABORTED` in vLLM


class Cause(Enum):
    """Why a request was rejected; only one that could never be served is not worth another try."""

    TOO_LARGE = "too large"  # it could never be served here
    QUEUE_FULL = "the queue is full"
    TOKENS_FULL = "the queue is full of tokens"
    EXPIRED = "it waited too long at the gateway"


class Passage(IntEnum):
    """How a request left the gateway: to a replica, shed on arrival, expired, with its client, or not at all."""

    DISPATCHED = 0
    SHED = 1
    EXPIRED = 2
    LEFT = 3
    WAITS = 4


@dataclass(frozen=True, slots=True)
class RequestColumns(StoredColumns):
    """One entry a request, in workload order. Times in seconds on the run's clock; NaN where it never happened."""

    row: Ints
    replica: Annotated[Ints, doc("the number of the replica that served it; -1 for none")]
    status: Ints  # Status
    arrival_s: Annotated[Floats, doc("when it arrived")]
    scheduled_s: Annotated[Floats, doc("first time scheduled")]
    first_token_s: Annotated[Floats, doc("when the client had its first token")]
    last_token_s: Annotated[Floats, doc("when the client had its last token")]
    released_s: Annotated[Floats, doc("when its slot, KV or place in the queue was freed")]
    input_tokens: Annotated[Ints, doc("of its prompt")]
    output_tokens: Annotated[Ints, doc("generated")]
    max_tokens: Annotated[Ints, doc("largest number that it may generate")]
    priority: Annotated[Ints, doc("priority; a lower number is more important, as in vLLM")]
    class_index: Ints
    preemptions: Annotated[Ints, doc("how often it lost its place")]
    recomputed_tokens: Annotated[Ints, doc("whose KV a preemption dropped and that were computed again")]
    swapped_out_blocks: Annotated[Ints, doc("moved to the host")]
    swapped_in_blocks: Annotated[Ints, doc("moved back")]
    cached_tokens: Annotated[Ints, doc("of the prompt, found in the prefix cache, all admissions together")]
    requeued_s: Annotated[Floats, doc("spent waiting again after preemptions")]
    aborted_tokens: Annotated[Ints, doc("computed for it in vain, if it was aborted")]

    def part(self, some: slice) -> "RequestColumns":
        """The columns of some of the requests."""
        return RequestColumns(*[getattr(self, field.name)[some] for field in fields(self)])


@dataclass(frozen=True, slots=True)
class RowColumns(StoredColumns):
    """One entry a step, or a run of `repeat` equal decode steps. Counts are those of the row's first step."""

    replica: Annotated[Ints, doc("the number of the replica")]
    first_step: Annotated[Ints, doc("index of the row's first step among all steps")]
    repeat: Annotated[Ints, doc("steps that the row stands for: equal decode steps, one after the other")]
    start_s: Annotated[Floats, doc("when the first of them started")]
    end_s: Annotated[Floats, doc("when the last of them ended")]
    running: Annotated[Ints, doc("that hold a slot, finished ones included"), Unit("requests")]
    held: Annotated[Ints, doc("of these, finished: kept by their batch, or given a token too many"), Unit("requests")]
    waiting: Annotated[Ints, doc("in the queue after the decision"), Unit("requests")]
    swapped: Annotated[Ints, doc("of these, with their KV on the host"), Unit("requests")]
    decoding: Annotated[Ints, doc("that compute one decode token"), Unit("requests")]
    prefilling: Annotated[Ints, doc("with a prompt chunk"), Unit("requests")]
    tokens: Annotated[Ints, doc("computed in one step, padding included")]
    padded_tokens: Annotated[Ints, doc("of these, padding and tokens of held requests")]
    prefill_tokens: Annotated[Ints, doc("of these, prompt tokens")]
    context_tokens: Annotated[Ints, doc("in the KV cache after the step, over the requests of the step")]
    preempted: Annotated[Ints, doc("that lost their place for this step"), Unit("requests")]
    swapped_out_blocks: Annotated[Ints, doc("moved to the host")]
    swapped_in_blocks: Annotated[Ints, doc("moved back")]

    def of_replicas(self, first: int, end: int) -> "RowColumns":
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

    attempt: Annotated[
        Ints,
        doc("number of its client's attempt, from 1; the file has these three columns if clients react to answers"),
    ]
    first_row: Ints  # row of the first attempt: the attempts of one request have the same
    left_s: Annotated[Floats, doc("when the client left; empty if it stayed")]


@dataclass(frozen=True, slots=True)
class LifeColumns:
    """One entry a life of an autoscaled replica, by replica and start; NaN where it did not come to that."""

    replica: Annotated[Ints, doc("its number")]
    start_s: Annotated[Floats, doc("its GPUs are in use from then on")]
    ready_s: Annotated[Floats, doc("it takes requests from then on")]
    drain_s: Annotated[Floats, doc("it takes requests until then")]
    end_s: Annotated[
        Floats, doc("its last request ended, and its GPUs are free; empty: it ran until the end of the run")
    ]


@dataclass(frozen=True, slots=True)
class TransferColumns:
    """One entry a request whose KV moved from the replica that prefilled it to the one that decoded it."""

    row: Annotated[Ints, doc("of requests.csv.gz, from 0")]
    from_replica: Annotated[Ints, doc("that computed the prompt")]
    to_replica: Annotated[Ints, doc("that decodes")]
    blocks: Annotated[Ints, doc("of the replica that computed the prompt")]
    bytes: Annotated[Ints, doc("moved")]
    ready_s: Annotated[Floats, doc("its first token is there")]
    start_s: Annotated[Floats, doc("the link begins with it")]
    end_s: Annotated[Floats, doc("the whole transfer has arrived")]


@dataclass(frozen=True, slots=True)
class CopyColumns:
    """One entry a copy of KV between a replica's GPUs and its host, or its host and a further tier.

    By replica and start.
    """

    row: Annotated[Ints, doc("of requests.csv.gz, from 0")]
    replica: Annotated[Ints, doc("the number of the replica")]
    tier: Annotated[Ints, doc("0: between GPUs and host, 1, 2: between host and this further tier")]
    stored: Annotated[Ints, doc("1: away from the GPUs, 0: towards them")]
    tokens: Annotated[Ints, doc("whose KV it is")]
    bytes: Annotated[Ints, doc("copied, over all GPUs")]
    start_s: Annotated[Floats, doc("the link begins with it")]
    end_s: Annotated[Floats, doc("all of it has arrived")]


@dataclass(frozen=True, slots=True)
class RegretColumns:
    """One entry a request that a router gave to a replica, where its regret is asked for: as it chose."""

    row: Ints
    cached_tokens: Annotated[Ints, doc("of the prompt, in the prefix cache of the chosen replica")]
    most_cached_tokens: Annotated[Ints, doc("of the prompt, in the prefix cache that had the most of it")]
    unfinished: Annotated[Ints, doc("waiting or running on the chosen replica"), Unit("requests")]
    fewest_unfinished: Annotated[Ints, doc("waiting or running on the replica with the fewest"), Unit("requests")]


@dataclass(frozen=True, slots=True)
class PassageColumns:
    """One entry a request that came to a gateway with flow control, as it left."""

    row: Annotated[Ints, doc("of requests.csv.gz, from 0")]
    at_s: Annotated[Floats, doc("when it left")]
    wait_s: Annotated[Floats, doc("spent in the gateway's queue before")]
    passage: Annotated[Ints, doc("0: to a replica, 1: shed on arrival, 2: expired, 3: its client left, 4: none")]


@dataclass(frozen=True, slots=True)
class AdapterColumns:
    """One entry an admission of a request with an adapter, by request and time."""

    row: Annotated[Ints, doc("of requests.csv.gz, from 0")]
    at_s: Annotated[Floats, doc("when it entered the batch")]
    loaded: Annotated[Ints, doc("1: its adapter was copied to the GPU for it, 0: it lay there")]
    shut_out_s: Annotated[Floats, doc("of its wait, with all slots taken by other adapters")]


@dataclass(frozen=True, slots=True)
class DraftColumns:
    """One entry a request, number of drafts and number of accepted ones: its verify steps with these."""

    row: Annotated[Ints, doc("of requests.csv.gz, from 0")]
    drafts: Annotated[Ints, doc("verified in one step, the padding of an admission too")]
    accepted: Annotated[Ints, doc("of these")]
    steps: Annotated[Ints, doc("with so many drafts and accepted ones")]


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
    task_ids: tuple[str | None, ...] | None = None  # None: no request is part of an agent's task
    task_requests: Ints | None = None  # requests of its task, arrived or not; None like `task_ids`
    front_end_s: Floats | float = 0.0  # of each request, added to its first_token_s and last_token_s; 0.0: of none

    lives: LifeColumns | None = None  # None: all replicas are there all the time
    transfers: TransferColumns | None = None  # None: requests are prefilled and decoded by the same replica
    drafts: DraftColumns | None = None  # None: nothing is drafted
    copies: CopyColumns | None = None  # None: nothing is stored on a host
    adapters: AdapterColumns | None = None  # None: no request has an adapter
    regrets: RegretColumns | None = None  # None: the router's regret was not asked for
    passages: PassageColumns | None = None  # None: no gateway with flow control
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


# The columns of the rows and gaps of a whole run, from what its replicas have packed.

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
