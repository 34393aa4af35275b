"""The load of a server in an open loop, and what steps that take longer or shorter do to it.

A step takes a fixed time, a time for each decode and one for each prompt token: `Load` fits the three to a run's steps.
With so many requests a second, the work of all is a share `busy` of the time; the fixed part is needed as often as a
full batch would need it. Where steps take f times as long, a batch grows until it is served again: decodes take
f (1 - busy) / (1 - f busy) times as long, at most as long as in a full batch: of as many requests as have slots, and as
the KV cache holds. Above f busy = 1 the queue grows.
"""

from dataclasses import dataclass

import numpy as np

from simulator.results.records import Ints, Records

MOST_ROWS = 20_000  # of a run's steps: evenly spaced ones stand for more
FULL = 0.98  # a server that is busy so long serves no more


@dataclass(frozen=True, slots=True)
class Load:
    """Share of the time that the requests' work takes; seconds of arrivals; slots; requests a second; seconds for which
    a request decodes alone."""

    busy: float
    arrivals_s: float
    slots: int
    rate: float
    alone_s: float

    def decodes(self, factor: float, decode_s: float) -> float:
        """Return how many times as long a request decodes, of `decode_s` now, if steps take `factor` times as long."""
        if decode_s <= 0.0:
            return factor
        full = factor * self.slots * self.busy / (self.rate * decode_s)
        grown = factor * self.busy
        if grown >= FULL:
            return max(factor, full) if self.busy < FULL else factor
        unloaded = 1.0 - self.busy if self.busy < FULL else self.alone_s / decode_s
        return min(max(min(factor, 1.0), full), factor * unloaded / (1.0 - grown))

    def queue_s(self, factor: float, queue_s: float) -> float:
        """Return the mean wait, of `queue_s` now, if steps take `factor` times as long."""
        grown = factor * self.busy
        backlog_s = max(0.0, grown - max(1.0, self.busy)) * self.arrivals_s / 2.0
        if max(grown, self.busy) < FULL:
            return queue_s * factor * (1.0 - self.busy) / (1.0 - grown)
        relief_s = max(0.0, self.busy - max(1.0, grown)) * self.arrivals_s / 2.0
        return max(0.0, max(queue_s, factor * queue_s if factor < 1.0 else queue_s) + backlog_s - relief_s)


def load_of(records: Records, slots: int) -> Load | None:
    """Return the load of a run in an open loop; None where it has too few steps or arrivals to say."""
    rows, arrival_s = records.rows, records.requests.arrival_s
    some = np.unique(np.linspace(0, len(rows.repeat) - 1, min(len(rows.repeat), MOST_ROWS)).astype(int))
    span_s = float(np.ptp(arrival_s)) if len(arrival_s) > 1 else 0.0
    if len(some) < 3 or span_s <= 0.0:
        return None
    repeat = rows.repeat[some].astype(float)
    step_s = (rows.end_s[some] - rows.start_s[some]) / repeat
    work = np.column_stack([np.ones(len(some)), rows.decoding[some], rows.prefill_tokens[some]]).astype(float)
    slots = _most_at_once(records, some, slots)
    weight = np.sqrt(repeat)
    found, *_ = np.linalg.lstsq(work * weight[:, None], step_s * weight, rcond=None)
    fixed_s, decode_s, token_s = np.maximum(found, 0.0).tolist()
    decodes = float((rows.decoding * rows.repeat).sum())
    tokens = float((rows.prefill_tokens * rows.repeat).sum())
    needed_s = decodes * (decode_s + fixed_s / slots) + tokens * token_s
    rate = len(arrival_s) / span_s
    alone_s = fixed_s * decodes / len(arrival_s)
    return Load(needed_s / (span_s * records.replicas), span_s, slots * records.replicas, rate, alone_s)


def _most_at_once(records: Records, some: Ints, slots: int) -> int:
    """Return how many requests like those of the fullest of `some` steps one replica holds: by slots and KV blocks."""
    rows = records.rows
    used = records.step_used_blocks[rows.first_step[some] + rows.repeat[some] - 1]
    fullest = (used >= 0.9 * used.max()) & (used > 0)
    if not fullest.any():
        return slots
    held = np.median(rows.running[some][fullest] * (records.num_blocks / used[fullest]))
    return max(1, min(slots, int(held)))
