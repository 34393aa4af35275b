"""The longest gap between two neighbouring tokens of each request.

Records keep the gaps pooled, without the requests that had them. But a decoding request gets a token from every step
of its replica that decodes at all, so that the first and the last token of a request and the steps between them say
when its tokens came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.usage import step_starts
from simulator.metrics.window import Bools
from simulator.results.records import Floats, Ints, Records, Status


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
    rows = records.rows
    replica_of_step = np.repeat(rows.replica, rows.repeat)
    decodes = np.repeat(rows.decoding > 0, rows.repeat)
    pauses = rows.running > rows.decoding + rows.prefilling + rows.held
    requeues = records.requeues
    starts = step_starts(records)
    for replica in range(records.replicas):
        here = replica_of_step == replica
        served = np.flatnonzero(measured & (requests.replica == replica))
        if len(served):
            own = rows.replica == replica
            left_s = requeues.from_s[requests.replica[requeues.row] == replica]
            overlaps = not np.isin(left_s, rows.start_s[own & (rows.preempted > 0)]).all()
            if rows.preempted[own].sum() < len(left_s):  # some left in steps that computed nothing and have no row
                overlaps = False
            steps = _Steps(starts[here], records.step_end_s[here], decodes[here], bool(pauses[own].any()), overlaps)
            found[served] = _of_replica(records, steps, served, returns[served])
    return found


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of one replica, in order."""

    start_s: Floats
    end_s: Floats
    decodes: Bools  # whether it gives a token to every decoding request
    pauses: bool  # whether a request ever held a slot without computing
    overlaps: bool  # whether preemptions were planned while the step before ran, which still gave the victims a token


def _of_replica(records: Records, steps: _Steps, served: Ints, returns: Bools) -> Floats:
    requests = records.requests
    delay_s = records.front_end_of(served)
    first = _nearest(steps.end_s, requests.first_token_s[served] - delay_s)
    last = _nearest(steps.end_s, requests.last_token_s[served] - delay_s)
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
        found[place] = _interrupted(records, steps, pauses, int(served[place]), int(first[place]), int(last[place]))
    return found


def _interrupted(records: Records, steps: _Steps, pauses: bool, row: int, first: int, last: int) -> float:
    """The longest gap of a request that was preempted or sat out some steps, whose first and last token these gave.

    Where it was recomputed after a preemption, a step of its prefill gave the next token. The steps that decoded
    without giving it one are counted, which says between which two of them that step lies.
    """
    ends, ticks, returns = _present(records, steps, row, first, last)
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


def _present(records: Records, steps: _Steps, row: int, first: int, last: int) -> tuple[Floats, Ints, Ints]:
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
