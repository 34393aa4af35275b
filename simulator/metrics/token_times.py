"""When each token of each request came, from the steps that gave it its tokens."""

from collections.abc import Iterator

import numpy as np

from simulator.metrics.decode_steps import DecodeSteps, decode_steps, present
from simulator.results.records import Floats, Ints, Records, Status


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
                later = _interrupted(records, steps, row, int(first[place]), int(last[place]))
            else:
                later = token_s[begin:end]
            yield row, _exact_ends(records, row, later + delay_s[place])


def _exact_ends(records: Records, row: int, later_s: Floats) -> Floats:
    """With the first token in front, and the last as it is recorded."""
    requests = records.requests
    times = np.concatenate((requests.first_token_s[row : row + 1], later_s))
    times[-1] = requests.last_token_s[row]
    return np.maximum.accumulate(np.minimum(times, times[-1]))


def _interrupted(records: Records, steps: DecodeSteps, row: int, first: int, last: int) -> Floats:
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
