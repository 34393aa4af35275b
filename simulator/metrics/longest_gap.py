"""The longest gap between two neighbouring tokens of each request, from the steps that gave it its tokens."""

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.decode_steps import DecodeSteps, decode_steps, present
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
        found[place] = _interrupted(records, steps, pauses, int(served[place]), int(first[place]), int(last[place]))
    return found


def _interrupted(records: Records, steps: DecodeSteps, pauses: bool, row: int, first: int, last: int) -> float:
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
