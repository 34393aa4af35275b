"""Prefill and decode apart: what a decoding server asks of requests that another has prefilled."""

from typing import NamedTuple


class TakesOver(NamedTuple):
    """How a server decodes requests that another has prefilled.

    `reserves`: a request takes memory for all of its `max_tokens` at once. `reserved_tokens` of memory are left for
    each request that is here or on its way, and found free for the next. At most `max_num_seqs` and `extra_slots` are
    here or on their way; None: any number. `sends_first`: a request's first token is sent from here, as it begins to
    decode. `room_first`, which needs that: its prompt is computed elsewhere once there is room for it here.
    """

    reserves: bool = False
    reserved_tokens: int = 0
    extra_slots: int | None = None
    sends_first: bool = False
    room_first: bool = False
