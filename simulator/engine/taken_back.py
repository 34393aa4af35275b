"""Tokens that a step has given a request and that are never sent: it was aborted, or retracted, before they were."""

from collections.abc import Sequence
from math import nan

from simulator.engine.decode_batch import DecodeBatch
from simulator.request_state import DECODING, RequestState
from simulator.results.buffers import Table


def take_back(
    live: RequestState,
    from_s: float,
    ends_s: Sequence[float],
    batch: DecodeBatch,
    gaps: Table | None,
    *,
    late: bool,
) -> tuple[int, float]:
    """How many of its tokens are taken back, as they came at `from_s` or later, and when the one before them came.

    The gaps before them leave `gaps`, which is None where tokens are not sent one by one. `ends_s` are the ends of the
    last decode steps; `late` is whether results arrive after the next step has been planned. The request is still in
    the batch.
    """
    joined_s, ticks = live.last_token_s, 0
    if live.status is DECODING and not live.paused and not batch.is_overrun(live):
        ticks = batch.clock.ticks - live.join_tick
    elif not late:
        return 0, joined_s
    dropped = 0
    outputs = live.base_outputs + ticks
    while True:
        token_s = ends_s[-1 - dropped] if dropped < ticks else joined_s
        if dropped > ticks or not token_s >= from_s:
            return dropped, token_s
        dropped += 1
        if dropped == outputs:
            return dropped, nan
        if dropped < ticks:
            before_s = ends_s[-1 - dropped]
        elif dropped == ticks:
            before_s = joined_s
        else:
            before_s = live.before_s if live.before_s == live.before_s else _before(ends_s, joined_s)
            joined_s = before_s
        if gaps is not None:
            gaps.add((token_s - before_s, -1, token_s))


def _before(ends_s: Sequence[float], token_s: float) -> float:
    """The end of the decode step before that which gave a token."""
    return ends_s[len(ends_s) - 1 - ends_s[::-1].index(token_s) - 1]
