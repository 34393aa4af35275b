"""When each token of each request came, the latencies that follow, and the objectives (SLO) that limit them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.usage import STEPS_AT_ONCE, row_pieces, step_starts
from simulator.metrics.weighted import Distribution, describe
from simulator.metrics.window import Bools, Window
from simulator.results.records import Floats, Ints, Records, Status

# When each token of each request came: the steps that gave it, their times, and the longest gap between two.

# Which steps of its replica gave a request its tokens.
#
# Records keep the gaps between tokens pooled, without the requests that had them. But a decoding request gets a
# token from every step of its replica that decodes at all, so that the first and the last token of a request and
# the steps between them say when its tokens came.


@dataclass(frozen=True, slots=True)
class DecodeSteps:
    """The steps of one replica, in order."""

    start_s: Floats
    end_s: Floats
    decodes: Bools  # whether it gives a token to every decoding request
    pauses: bool  # whether a request ever held a slot without computing
    overlaps: bool  # whether preemptions were planned while the step before ran, which still gave the victims a token

    def of_tokens(self, records: Records, served: Ints) -> tuple[Ints, Ints]:
        """For each of these requests the steps of its first and of its last token."""
        requests, delay_s = records.requests, records.front_end_of(served)
        first = _nearest(self.end_s, requests.first_token_s[served] - delay_s)
        return first, _nearest(self.end_s, requests.last_token_s[served] - delay_s)


def decode_steps(records: Records, which: Bools) -> Iterator[tuple[DecodeSteps, Ints]]:
    """Each replica's steps, with the rows of those requests among `which` that it served; without any, left out."""
    requests, rows, requeues = records.requests, records.rows, records.requeues
    replica_of_step = np.repeat(rows.replica, rows.repeat)
    decodes = np.repeat(rows.decoding > 0, rows.repeat)
    pauses = rows.running > rows.decoding + rows.prefilling + rows.held
    starts = step_starts(records)
    for replica in range(records.replicas):
        here = replica_of_step == replica
        served = np.flatnonzero(which & (requests.replica == replica))
        if len(served):
            own = rows.replica == replica
            left_s = requeues.from_s[requests.replica[requeues.row] == replica]
            overlaps = not np.isin(left_s, rows.start_s[own & (rows.preempted > 0)]).all()
            if rows.preempted[own].sum() < len(left_s):  # some left in steps that computed nothing and have no row
                overlaps = False
            ends = records.step_end_s[here]
            yield DecodeSteps(starts[here], ends, decodes[here], bool(pauses[own].any()), overlaps), served


def present(records: Records, steps: DecodeSteps, row: int, first: int, last: int) -> tuple[Floats, Ints, Ints]:
    """The steps between two tokens of a request during which it was not preempted.

    Returns their ends, and as indices into these the steps that decode, and the first steps after each preemption
    that threw its KV away.
    """
    requeues = records.requeues
    mine = np.flatnonzero((requeues.row == row) & (requeues.to_s > steps.start_s[first]))
    start_s = steps.start_s[first + 1 : last + 1]
    here = np.ones(len(start_s), dtype=np.bool_)
    back = []
    for entry in mine.tolist():
        left = int(np.searchsorted(start_s, requeues.from_s[entry], "right" if steps.overlaps else "left"))
        came = int(np.searchsorted(start_s, requeues.to_s[entry]))
        here[left:came] = False
        if not requeues.swapped[entry] and came < len(here):
            back.append(came)
    place = np.maximum(np.cumsum(here) - 1, 0)
    ends = steps.end_s[first + 1 : last + 1][here]
    return ends, np.flatnonzero(steps.decodes[first + 1 : last + 1][here]), place[np.array(back, dtype=np.int64)]


def _nearest(rising: Floats, wanted: Floats) -> Ints:
    """Index of the value nearest to each wanted one."""
    middles = (rising[1:] + rising[:-1]) / 2
    return np.asarray(np.searchsorted(middles, wanted), dtype=np.int64)


# When each token of each request came, from the steps that gave it its tokens.


def token_times_s(records: Records) -> Iterator[tuple[int, Floats]]:
    """The row of each finished request, and the times at which its client had its tokens; by replica, then by row.

    One time where the answer comes whole. Number, first and last are always exact. So are the others of requests that
    were never preempted, on a replica that pauses none, and of those preempted once, unless steps of prefill alone
    computed them again. For the others which of the steps gave no token is not recorded, only how many; they are taken
    to follow the last preemption, or to be spread evenly where there was none.
    """
    requests = records.requests
    done = requests.status == Status.FINISHED
    if not records.streams:
        for row in np.flatnonzero(done).tolist():
            yield row, requests.last_token_s[row : row + 1]
        return
    returns = np.zeros(len(done), dtype=np.bool_)
    returns[records.requeues.row] = True
    for steps, served in decode_steps(records, done):
        first, last = steps.of_tokens(records, served)
        decoding = np.flatnonzero(steps.decodes)
        token_s = steps.end_s[decoding]
        so_far = np.cumsum(steps.decodes, dtype=np.int64)
        delay_s = np.broadcast_to(records.front_end_of(served), served.shape)
        for place, row in enumerate(served.tolist()):
            begin, end = int(so_far[first[place]]), int(so_far[last[place]])
            if returns[row] or end - begin != requests.output_tokens[row] - 1:
                later = _interrupted_times(records, steps, row, int(first[place]), int(last[place]))
            else:
                later = token_s[begin:end]
            yield row, _exact_ends(records, row, later + delay_s[place])


def _exact_ends(records: Records, row: int, later_s: Floats) -> Floats:
    """With the first token in front, and the last as it is recorded."""
    requests = records.requests
    times = np.concatenate((requests.first_token_s[row : row + 1], later_s))
    times[-1] = requests.last_token_s[row]
    return np.maximum.accumulate(np.minimum(times, times[-1]))


def _interrupted_times(records: Records, steps: DecodeSteps, row: int, first: int, last: int) -> Floats:
    """The times after the first of a request that was preempted or sat out some steps.

    Where it was recomputed, a step of its prefill gave the next token: the last one before it decodes again.
    """
    ends, ticks, returns = present(records, steps, row, first, last)
    needed = int(records.requests.output_tokens[row]) - 1
    skipped = max(len(ticks) + len(returns) - needed, 0)
    kept, recomputed = ticks, []
    for place, back in enumerate(returns.tolist()):
        tick = int(np.searchsorted(kept, back))
        drop = skipped if place == len(returns) - 1 else 0
        bound = int(kept[tick + drop]) if tick + drop < len(kept) else len(ends)
        recomputed.append(max(bound - 1, back))
        kept = np.delete(kept, slice(tick, tick + drop))
    found = np.sort(np.concatenate((kept, np.array(recomputed, dtype=np.int64))))
    if needed and len(found) != needed:
        found = _spread(found if len(found) else np.array([len(ends) - 1]), needed)
    return np.asarray(ends[found] if needed else ends[:0])


def _spread(steps: Ints, needed: int) -> Ints:
    """So many of the steps, evenly; the last is among them."""
    return np.asarray(steps[np.linspace(0, len(steps), needed + 1)[1:].astype(np.int64) - 1])


# The longest gap between two neighbouring tokens of each request, from the steps that gave it its tokens.


def longest_gap_s(records: Records) -> Floats:
    """Seconds, one entry a request; NaN unless it finished with more than one token, which came one after the other.

    Exact for requests that were never preempted, on a replica that pauses none, and for those preempted once, unless
    steps of prefill alone computed them again. For the others it is an upper bound: which steps gave them no token is
    not recorded, only how many, and these are taken to be in one place. Where a policy both pauses and preempts a
    request, it is an estimate.
    """
    requests = records.requests
    found = np.full(len(requests.row), np.nan)
    if not records.streams:
        return found
    measured = (requests.status == Status.FINISHED) & (requests.output_tokens > 1)
    returns = np.zeros(len(found), dtype=np.bool_)
    returns[records.requeues.row] = True
    for steps, served in decode_steps(records, measured):
        found[served] = _of_replica(records, steps, served, returns[served])
    return found


def _of_replica(records: Records, steps: DecodeSteps, served: Ints, returns: Bools) -> Floats:
    requests = records.requests
    first, last = steps.of_tokens(records, served)
    decoding = np.flatnonzero(steps.decodes)
    so_far = np.cumsum(steps.decodes, dtype=np.int64)
    begin, end = so_far[first], so_far[last]  # of `decoding`: the steps that gave the tokens after the first
    plain = ~returns & (end - begin == requests.output_tokens[served] - 1)
    found = np.empty(len(served))
    token_s = steps.end_s[decoding]
    b, e = begin[plain], end[plain]
    within = _range_max(np.diff(token_s), b, e - 1)
    found[plain] = np.maximum(token_s[b] - steps.end_s[first[plain]], within)
    # A request that was paused holds no slot under some policies: that it sat out steps then shows here alone.
    pauses = steps.pauses or bool((~plain & ~returns).any())
    for place in np.flatnonzero(~plain).tolist():
        found[place] = _longest_interrupted(
            records, steps, pauses, int(served[place]), int(first[place]), int(last[place])
        )
    return found


def _longest_interrupted(records: Records, steps: DecodeSteps, pauses: bool, row: int, first: int, last: int) -> float:
    """The longest gap of a request that was preempted or sat out some steps, whose first and last token these gave.

    Where it was recomputed after a preemption, a step of its prefill gave the next token. The steps that decoded
    without giving it one are counted, which says between which two of them that step lies.
    """
    ends, ticks, returns = present(records, steps, row, first, last)
    begin_s, tokens = float(steps.end_s[first]), int(records.requests.output_tokens[row])
    longest = 0.0
    if pauses:
        token_s = np.concatenate(([begin_s], ends))
        idle = max(len(token_s) - tokens, 0)
        longest = float((token_s[1 + idle :] - token_s[: len(token_s) - 1 - idle]).max(initial=0.0))
    skipped = max(1 + len(ticks) + len(returns) - tokens, 0)
    tick_s = np.concatenate(([begin_s], ends[ticks]))
    after = np.searchsorted(ticks, returns)  # of the ticks: the first at or after each return
    gaps = np.delete(np.diff(tick_s), after[after < len(ticks)])
    longest = max(longest, float(gaps.max(initial=0.0)))
    for back, tick in zip(returns.tolist(), after.tolist(), strict=True):
        bound = int(ticks[tick + skipped]) if tick + skipped < len(ticks) else len(ends)
        longest = max(longest, float(ends[max(bound - 1, back)] - tick_s[tick]))  # until its next token, at the latest
        earliest = tick + skipped if len(returns) == 1 else tick
        if earliest < len(ticks):  # from then on, at the earliest, to the token after
            since_s = ends[back] if earliest == tick else tick_s[earliest]
            longest = max(longest, float(tick_s[earliest + 1] - since_s))
    return longest


def _range_max(values: Floats, begin: Ints, end: Ints) -> Floats:
    """The largest of values[begin:end] for each pair; 0 where there is none. Values must not be negative.

    A sparse table, of which one level at a time is kept: maxima of 1, 2, 4, ... neighbours; two of them cover a range.
    """
    length = end - begin
    found = np.zeros(len(length))
    level: NDArray[np.float64] = values
    width = 1
    while len(level) and (width <= length).any():
        fits = (width <= length) & (length < 2 * width)
        found[fits] = np.maximum(level[begin[fits]], level[end[fits] - width])
        level = np.maximum(level[:-width], level[width:])
        width *= 2
    return found


# Latencies of requests and of all gaps between tokens, and the objectives (SLO) that limit them.

# Latencies: of each request, and of all gaps between tokens.
#
# Times: t0 arrival, tq first scheduled, t1 first token, tn last token; n output tokens.


def finished(records: Records) -> Bools:
    """One entry a request: whether it has all its tokens."""
    return np.asarray(records.requests.status == Status.FINISHED)


def ttft_s(records: Records) -> Floats:
    """t1 - t0 of each request; NaN without a first token."""
    return records.requests.first_token_s - records.requests.arrival_s


def e2el_s(records: Records) -> Floats:
    """tn - t0 of each request; NaN unless finished. Where answers come whole, tn is when they come."""
    return np.where(finished(records), records.requests.last_token_s - records.requests.arrival_s, np.nan)


def queue_s(records: Records) -> Floats:
    """tq - t0 of each request; NaN where it was never scheduled. Waits after a preemption do not count here."""
    return records.requests.scheduled_s - records.requests.arrival_s


def streamed(records: Records) -> Bools:
    """One entry a request: finished, of more than one token, which came one after the other."""
    return finished(records) & (records.requests.output_tokens > 1) & records.streams


def tpot_s(records: Records) -> Floats:
    """(tn - t1) / (n - 1) of each request; NaN for one token, an unfinished one, or an answer that came whole."""
    requests, known = records.requests, streamed(records)
    tpot = np.full(len(known), np.nan)
    np.divide(requests.last_token_s - requests.first_token_s, requests.output_tokens - 1, out=tpot, where=known)
    return tpot


@dataclass(frozen=True, slots=True)
class RequestLatencies:
    """Milliseconds, one entry a request; NaN where undefined."""

    ttft_ms: Floats
    tpot_ms: Floats
    e2el_ms: Floats
    queue_time_ms: Floats


def request_latencies(records: Records) -> RequestLatencies:
    """The four latencies of each request, as tables show them."""
    return RequestLatencies(*(seconds(records) * 1e3 for seconds in (ttft_s, tpot_s, e2el_s, queue_s)))


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency as summaries, reports and SLOs know it.

    `of_request_s` is what a limit of a request is held against, in seconds, one entry a request: NaN where the request
    cannot meet one, 0 where nothing could take time.
    """

    title: str
    words: str
    definition: str
    remark: str
    of_request_s: Callable[[Records], Floats]


LATENCIES: Mapping[str, Latency] = {
    "ttft": Latency("TTFT", "time to first token", "t1 - t0", "the wait in the queue included", ttft_s),
    "tpot": Latency(
        "TPOT",
        "time per output token",
        "(tn - t1) / (n - 1)",
        "left out for n = 1 and where a batch hands all tokens over at once; there it counts as 0 in goodput",
        lambda records: np.nan_to_num(tpot_s(records)),
    ),
    "itl": Latency(
        "ITL",
        "inter-token latency",
        "gaps between neighbouring tokens",
        "pooled over requests: each gap is one sample; an SLO's `itl_ms` limits the longest gap of a request",
        lambda records: np.nan_to_num(longest_gap_s(records)),
    ),
    "e2el": Latency("E2E", "end-to-end latency", "tn - t0", "without streaming, tn is when the batch returns", e2el_s),
    "queue_time": Latency(
        "queue time", "time in the queue", "tq - t0", "waits after a preemption are not in it", queue_s
    ),
}
"""By the name that the keys of summary.json have, in their order."""


def itl(records: Records, q: Sequence[float], window: Window | None = None) -> Distribution | None:
    """All gaps between neighbouring tokens of a request, in seconds, pooled, and their percentiles `q`.

    Each gap is a sample: those of `records.gaps`, and those inside rows, the differences of `step_end_s` with the
    row's `decoding` as weight; entries of `records.gaps` take back those of tokens that an abort dropped. They are not
    kept by request: those of aborted requests count, and of a `window` that was cut, all gaps that end in it. None
    where there is no gap, as in a run that does not stream.
    """
    if not records.streams:
        return None
    if window is None or window.whole:
        return describe(lambda: _gaps(records), q)
    return describe(lambda: _gaps_inside(records, window), q)


def _gaps(records: Records) -> Iterator[tuple[Floats, Ints]]:
    for gaps, counts, _ in _gaps_with_ends(records):
        yield gaps, counts


def _gaps_inside(records: Records, window: Window) -> Iterator[tuple[Floats, Ints]]:
    for gaps, counts, ends in _gaps_with_ends(records):
        yield gaps, np.where((ends >= window.start_s) & (ends <= window.end_s), counts, 0)


def _gaps_with_ends(records: Records) -> Iterator[tuple[Floats, Ints, Floats]]:
    for first in range(0, len(records.gaps.count), STEPS_AT_ONCE):
        piece = slice(first, first + STEPS_AT_ONCE)
        yield records.gaps.gap_s[piece], records.gaps.count[piece], records.gaps.end_s[piece]
    rows = records.rows
    for some, steps in row_pieces(records):
        gaps = np.diff(records.step_end_s[steps])
        counts = np.repeat(rows.decoding[some], rows.repeat[some])
        counts[rows.first_step[some] - steps.start] = 0  # what comes before a row's first step is in records.gaps
        yield gaps, counts[1:], records.step_end_s[steps][1:]


# Service-level objectives: limits of a request, targets on the distribution, and the requests within their limits.


@dataclass(frozen=True, slots=True)
class Slo:
    """A service's limits. Latencies in milliseconds; a value equal to its limit meets it; None: no limit.

    `ttft_ms` to `queue_time_ms` are limits of each request; `itl_ms` holds for every gap between its tokens, and so
    for its longest. `targets` limit keys of summary.json (`p99_ttft_ms`), `attainment` is the share of the requests,
    0 to 1, that must meet their limits.

    `classes` are the SLOs of classes by name. A class that states any limit of a request has these instead of the
    default ones; its targets and its attainment are over its own requests.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None
    itl_ms: float | None = None
    queue_time_ms: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    attainment: float | None = None
    classes: Mapping[str, Slo] = field(default_factory=dict)

    @property
    def limits(self) -> bool:
        """True if any request has a limit."""
        return bool(self.per_request()) or any(own.limits for own in self.classes.values())

    @property
    def has_targets(self) -> bool:
        """True if a distribution or an attainment has a target, over all requests or over a class."""
        own = bool(self.targets) or self.attainment is not None
        return own or any(each.has_targets for each in self.classes.values())

    def per_request(self, class_name: str | None = None) -> dict[str, float]:
        """The limits of a request of this class, in ms by name of the latency; of no class: the default ones."""
        if class_name is not None and (own := self.classes.get(class_name)) is not None and own.limits:
            return own.per_request()
        found = {name: getattr(self, f"{name}_ms") for name in LATENCIES}
        return {name: limit_ms for name, limit_ms in found.items() if limit_ms is not None}


def meets_slo(records: Records, slo: Slo) -> Bools:
    """One entry a request: finished within every limit of its class.

    A TPOT that is undefined counts as 0, as in vLLM, and so does an undefined gap between tokens.
    """
    good = finished(records)
    groups = limited_requests(records, slo)
    for latency, found in LATENCIES.items():
        limited = [(requests, limits[latency]) for _, requests, limits in groups if latency in limits]
        if not limited:
            continue
        seconds = found.of_request_s(records)
        for requests, limit_ms in limited:
            good = good & (~requests | (seconds <= limit_ms / 1e3))  # NaN is not within a limit
    return good


class LimitedRequests(NamedTuple):
    """The requests that share their limits: of a class with limits of its own, or all others."""

    class_name: str | None  # None: the classes without limits of their own
    requests: Bools  # one entry a request
    limits: Mapping[str, float]  # milliseconds by name of the latency


def limited_requests(records: Records, slo: Slo) -> list[LimitedRequests]:
    """All requests by the limits that hold for them: the default ones first, then class by class."""
    index = records.requests.class_index
    own = {i: name for i, name in enumerate(records.class_names) if name in slo.classes and slo.classes[name].limits}
    groups = [LimitedRequests(None, ~np.isin(index, list(own)), slo.per_request())]
    return groups + [LimitedRequests(name, index == i, slo.per_request(name)) for i, name in own.items()]
