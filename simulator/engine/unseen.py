"""Tokens that a plan of SGLang's overlap scheduling does not know yet: the running step computes them."""

from simulator.request_state import DECODING, RequestState


class Unseen:
    """Whose token is on its way while a plan is made.

    `decodes`: all requests that decoded with the running step. `prompts` are those whose prompt it completes, and
    `last` those whose last token it computes. It ends at `end_s`; `decode_ends_s` are the ends of the last decode
    steps, its own among them.
    """

    __slots__ = ("decode_ends_s", "decodes", "end_s", "last", "prompts")

    def __init__(self) -> None:
        self.end_s = 0.0
        self.decode_ends_s: list[float] = []
        self.decodes = False
        self.prompts: dict[RequestState, None] = {}
        self.last: dict[RequestState, None] = {}

    def count(self, live: RequestState) -> int:
        """Its tokens on the way: 0 or 1."""
        if live in self.last or live in self.prompts:
            return 1
        return int(self.decodes and live.status is DECODING and live.join_tick < live.clock.ticks)

    def drop(self, live: RequestState) -> int:
        """`live` is retracted, and its token is thrown away when it comes; returns how many are.

        `process_batch_result_decode` passes over a retracted request (batch_result_processor.py:1017, SGLang 0.5.23).
        """
        count = self.count(live)
        self.last.pop(live, None)
        self.prompts.pop(live, None)
        return count
