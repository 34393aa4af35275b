"""The slots of the batch over time: requests in them and their phases. The numbers behind the slot Gantt.

A request holds a slot from the moment it is scheduled until its slot comes free, but for the times it waited again
after a preemption. Each such stay is cut into prefill, decode and held (finished, but kept by its batch). Where
prompts are padded to the longest, padding takes its share of a prefill's time, at the end of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush

import numpy as np

from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records


class Phase(IntEnum):
    """The activity of a slot while a request holds it."""

    PREFILL = 0
    PADDING = 1
    DECODE = 2
    HELD = 3


@dataclass(frozen=True, slots=True)
class Stays:
    """One entry a stay in a slot, sorted by start, then row. Seconds; the three times in the middle cut it in four."""

    row: Ints
    start_s: Floats
    computed_s: Floats
    prefilled_s: Floats
    done_s: Floats
    end_s: Floats

    def __len__(self) -> int:
        return len(self.row)

    def bounds(self, phase: Phase) -> tuple[Floats, Floats]:
        """Start and end of that phase of every stay; equal where there is none."""
        edges = (self.start_s, self.computed_s, self.prefilled_s, self.done_s, self.end_s)
        return edges[phase], edges[phase + 1]

    def within(self, from_s: float, to_s: float) -> Stays:
        """The stays that touch the open interval."""
        return self.pick((self.start_s < to_s) & (self.end_s > from_s))

    def pick(self, which: Bools | Ints) -> Stays:
        return Stays(*(getattr(self, name)[which] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class _Steps:
    """The rows of one replica, and the end of every single step of it."""

    start_s: Floats
    end_s: Floats
    prefilling: Ints
    decoding: Ints
    running: Ints
    padding: Ints  # tokens of padding in prompts, cumulative, a leading 0
    prefill_tokens: Ints  # cumulative, a leading 0
    local: Ints  # index of a row's first step among the replica's steps
    step_end_s: Floats


def _steps(records: Records, replica: int) -> _Steps:
    rows = records.rows
    mine = np.flatnonzero(rows.replica == replica)
    repeat = rows.repeat[mine]
    local = np.concatenate(([0], np.cumsum(repeat)))
    index = np.repeat(rows.first_step[mine] - local[:-1], repeat) + np.arange(local[-1])
    prefilling, tokens = rows.prefilling[mine], rows.prefill_tokens[mine]
    padding = np.where((prefilling > 0) & (rows.decoding[mine] == 0), rows.padded_tokens[mine], 0)
    return _Steps(
        start_s=rows.start_s[mine],
        end_s=rows.end_s[mine],
        prefilling=prefilling,
        decoding=rows.decoding[mine],
        running=rows.running[mine],
        padding=np.concatenate(([0], np.cumsum(padding * repeat))),
        prefill_tokens=np.concatenate(([0], np.cumsum(tokens * repeat))),
        local=local,
        step_end_s=records.step_end_s[index],
    )


def stays(records: Records, replica: int = 0) -> Stays:
    """Every stay of every request in a slot of `replica`. An unfinished request stays to the end of the run.

    A request whose KV moved stays where it was prefilled up to its first token, and where it is decoded from the end of
    the transfer on.
    """
    stay, moved = _assigned(records, replica), records.transfers
    if moved is None:
        return stay
    came = np.full(len(records.requests.row), -np.inf)
    came[moved.row] = np.nan_to_num(moved.end_s, nan=np.inf)
    start = np.minimum(np.maximum(stay.start_s, came[stay.row]), stay.end_s)
    computed, prefilled, done = (np.maximum(edge, start) for edge in (stay.computed_s, stay.prefilled_s, stay.done_s))
    from_here = moved.from_replica == replica
    row, ready = moved.row[from_here], moved.ready_s[from_here]
    here = np.concatenate((stay.row, row)), np.concatenate((start, records.requests.scheduled_s[row]))
    edges = (np.concatenate((edge, ready)) for edge in (computed, prefilled, done, stay.end_s))
    both = Stays(*here, *edges)
    return both.pick(np.lexsort((both.row, both.start_s)))


def _assigned(records: Records, replica: int) -> Stays:
    """Every stay of the requests that `replica` is said to have served: of those whose KV moved, where they decode.

    A recomputation after a preemption counts as prefill until the replica has computed as many prompt tokens as the
    request's own prompt has. Where tokens reach the client only with the batch, the end of a request's computing is
    counted in steps: one token a step after the batch's prefill.
    """
    requests, again = records.requests, records.requeues
    steps = _steps(records, replica)
    end_of_run = float(records.step_end_s.max()) if records.num_steps else 0.0
    mine = np.flatnonzero((requests.replica == replica) & ~np.isnan(requests.scheduled_s))
    is_mine = np.zeros(len(requests.row), dtype=bool)
    is_mine[mine] = True
    pause = np.flatnonzero(is_mine[again.row])
    back = pause[~np.isnan(again.to_s[pause])]

    row = np.concatenate((mine, again.row[back]))
    start = np.concatenate((requests.scheduled_s[mine], again.to_s[back]))
    first = np.concatenate((np.ones(len(mine), dtype=bool), np.zeros(len(back), dtype=bool)))
    swapped = np.concatenate((np.zeros(len(mine), dtype=bool), again.swapped[back] > 0))
    order = np.lexsort((start, row))
    row, start, first, swapped = row[order], start[order], first[order], swapped[order]

    # A stay ends with the request's next pause, or with its release.
    paused = np.lexsort((again.from_s[pause], again.row[pause]))
    pause_row, pause_s = again.row[pause][paused], again.from_s[pause][paused]
    nth = np.arange(len(row)) - np.searchsorted(row, row)
    at = np.searchsorted(pause_row, row) + nth
    cut = at < np.searchsorted(pause_row, row, side="right")
    end = requests.released_s[row]
    end[cut] = pause_s[at[cut]]
    end = np.maximum(np.where(np.isnan(end), end_of_run, end), start)

    prefilled, done = _phases(records, steps, row, start, end, first, swapped)
    computed = start + _useful(records, steps, row, start, prefilled) * (prefilled - start)
    computed = np.where(computed < prefilled, computed, prefilled)
    order = np.lexsort((row, start))
    return Stays(row[order], start[order], computed[order], prefilled[order], done[order], end[order])


def _batches(row: Ints, start: Floats) -> tuple[Ints, Ints]:
    """Number the batch of each stay: stays of one batch began together. Also the stays in order of batch, then row."""
    batch = np.unique(start, return_inverse=True)[1]
    return batch, np.lexsort((row, batch))


def _prompts(records: Records, row: Ints, batch: Ints) -> tuple[Ints, Ints]:
    """The prompt's tokens of each stay, and those of the longest prompt of its batch."""
    tokens = records.requests.input_tokens[row]
    longest = np.zeros(int(batch.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(longest, batch, tokens)
    return tokens, longest[batch]


def _useful(records: Records, steps: _Steps, row: Ints, start: Floats, prefilled: Floats) -> Floats:
    """The prompt's share of what was computed for it: below 1 where it was padded to the longest of its batch."""
    tokens, longest = _prompts(records, row, _batches(row, start)[0])
    begin, end = np.searchsorted(steps.start_s, start), np.searchsorted(steps.start_s, prefilled)
    padded = steps.padding[end] > steps.padding[begin]
    return np.where(padded, tokens / np.maximum(longest, 1), 1.0)


def _unseen(records: Records, steps: _Steps, row: Ints, start: Floats) -> tuple[Floats, Floats]:
    """The ends of prefill and of computing, where the client only sees the whole batch return.

    Prompts are computed one after the other in the order of the batch; then each request computes a token a step.
    """
    batch, order = _batches(row, start)
    tokens, longest = _prompts(records, row, batch)
    at = np.searchsorted(steps.start_s, start)
    pure = np.append(np.flatnonzero(steps.prefilling == 0), len(steps.end_s))
    decodes = pure[np.searchsorted(pure, at)]  # the batch's first step without prefill
    padded = steps.padding[decodes] > steps.padding[at]
    upto = np.cumsum(np.where(padded, longest, tokens)[order])
    begins = np.searchsorted(batch[order], batch[order])
    before = np.concatenate(([0], upto))[begins]
    behind = np.empty(len(row), dtype=np.int64)
    behind[order] = upto - before  # tokens of the batch up to and including this prompt
    computed = steps.prefill_tokens + steps.padding
    reached = np.searchsorted(computed[1:], computed[at] + behind)
    prefilled = np.append(steps.end_s, np.inf)[reached]
    output = records.requests.output_tokens[row]
    last = np.append(steps.step_end_s, np.inf)[np.minimum(steps.local[decodes] + output - 2, len(steps.step_end_s))]
    return prefilled, np.where(output > 1, last, prefilled)


def _phases(
    records: Records, steps: _Steps, row: Ints, start: Floats, end: Floats, first: Bools, swapped: Bools
) -> tuple[Floats, Floats]:
    """The end of each stay's prefill, and the end of its computing."""
    requests = records.requests
    tokens = (requests.first_token_s[row], requests.last_token_s[row])
    # A token of a request that was aborted during its prompt never came.
    first_token, last_token = (np.where(np.isnan(times_s), np.inf, times_s) for times_s in tokens)
    released = requests.released_s[row]
    final = ~np.isnan(released) & (released <= end)
    last_token = np.where(final, last_token, np.inf)

    at = np.searchsorted(steps.start_s, start)  # the row that begins with this stay
    needed = steps.prefill_tokens[np.minimum(at, len(steps.end_s))] + requests.input_tokens[row]
    reached = np.searchsorted(steps.prefill_tokens[1:], needed)
    recomputed = steps.end_s[np.minimum(reached, len(steps.end_s) - 1)] if len(steps.end_s) else end
    prefilled = np.where(first, first_token, np.where(swapped, start, recomputed))
    prefilled = np.where(~first & (first_token > start) & np.isfinite(first_token), first_token, prefilled)

    if not records.streams:
        prefilled, last_token = _unseen(records, steps, row, start)
    prefilled = np.clip(prefilled, start, end)
    return prefilled, np.clip(last_token, prefilled, end)


def stalls(records: Records, from_s: float, to_s: float, replica: int = 0) -> tuple[Floats, Floats]:
    """The starts and ends of the times at which decodes stood still for a step of prompts alone, neighbours merged."""
    steps = _steps(records, replica)
    stalled = (steps.prefilling > 0) & (steps.decoding == 0) & (steps.running > steps.prefilling)
    which = np.flatnonzero(stalled & (steps.start_s < to_s) & (steps.end_s > from_s))
    start, end = steps.start_s[which], steps.end_s[which]
    new = np.ones(len(which), dtype=bool)
    new[1:] = start[1:] > end[:-1]
    last = np.append(new[1:], True) if len(which) else new
    return start[new], end[last]


def assign(stay: Stays) -> Ints:
    """A slot for each stay: the lowest that is free, in order of start."""
    slot = np.zeros(len(stay), dtype=np.int64)
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    count = 0
    for index, (start, end) in enumerate(zip(stay.start_s.tolist(), stay.end_s.tolist(), strict=True)):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            slot[index] = heappop(free)
        else:
            slot[index] = count
            count += 1
        heappush(busy, (end, int(slot[index])))
    return slot


def integral(start: Floats, end: Floats, at: Floats) -> Floats:
    """Slot-seconds spent in the intervals up to each time of `at`."""

    def since(edges: Floats) -> Floats:
        ordered = np.sort(edges)
        before = np.searchsorted(ordered, at)
        return before * at - np.concatenate(([0.0], np.cumsum(ordered)))[before]

    return since(start) - since(end)


def window(runs: Sequence[Stays], max_stays: int = 1500, candidates: int = 60) -> tuple[float, float]:
    """A stretch of time worth looking at, the same for all runs: (from_s, to_s).

    Not quite two of the longest typical stays long, so that one is seen whole, but with at most about `max_stays`
    stays a run; placed where even the idlest run is busy and most slots are held by finished requests. The earliest
    of equals.
    """
    filled = [run for run in runs if len(run)]
    if not filled:
        return 0.0, 1.0
    begin = min(float(run.start_s[0]) for run in filled)
    finish = max(float(run.end_s.max()) for run in filled)
    length = 1.7 * max(float(np.median(run.end_s - run.start_s)) for run in filled)
    for run in filled:
        span = float(run.end_s.max()) - float(run.start_s[0])
        length = min(length, span * max_stays / len(run)) if span > 0 else length
    length = min(max(length, 1e-3), max(finish - begin, 1e-3))
    at = np.linspace(begin, finish - length, candidates)
    busiest, waste = np.full(candidates, np.inf), np.zeros(candidates)
    for run in filled:
        peak = max(float(np.diff(integral(run.start_s, run.end_s, np.linspace(begin, finish, 400))).max()), 1e-12)
        scale = length * peak / ((finish - begin) / 399)
        busy = integral(run.start_s, run.end_s, at + length) - integral(run.start_s, run.end_s, at)
        start, end = run.bounds(Phase.HELD)
        held = integral(start, end, at + length) - integral(start, end, at)
        busiest = np.minimum(busiest, busy / max(scale, 1e-12))
        waste += held / max(scale, 1e-12)
    best = float(at[int(np.argmax((busiest + waste).round(6)))])
    return best, best + length
