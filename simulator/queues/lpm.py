"""Longest prefix match."""

from simulator.queues.order import OrderKind
from simulator.queues.sorted_queues import Ranked
from simulator.request_state import RequestState

MOST_COMPARED = 128
IN_BATCH_TOKENS = 32


class Lpm(Ranked):
    """The request with the longest cached prefix first; of equals, the order stays as it was.

    A request of which hardly anything is cached goes last if one before it in the queue begins with the same 32
    tokens: served after that one, it would find them. A preempted request waits anew. While more than 128 requests
    wait the order stays: comparing them all would take too long. This is `SchedulePolicy` in
    python/sglang/srt/managers/schedule_policy.py:329 (SGLang 0.5.23).
    """

    @property
    def reads_cache(self) -> bool:  # type: ignore[override] # depends on how many wait
        return len(self._queue) <= MOST_COMPARED

    def rank(self, waiting: list[RequestState]) -> list[RequestState]:
        prefixes = self.prefixes
        if prefixes is None:
            return waiting
        begun: set[bytes] = set()
        keys: dict[RequestState, float] = {}
        for live in waiting:
            hits = prefixes.hit_tokens(live)
            keys[live] = -min(hits, live.num_tokens - 1)
            if hits <= IN_BATCH_TOKENS and (leading := prefixes.leading(live, IN_BATCH_TOKENS)) is not None:
                if leading in begun:
                    keys[live] = float("inf")
                begun.add(leading)
        return sorted(waiting, key=keys.__getitem__)


ORDER = OrderKind(Lpm, needs_prefix_cache=True)
