"""Longest output first."""

from __future__ import annotations

from simulator.queues.order import OrderKind
from simulator.queues.ranked import Ranked
from simulator.request_state import RequestState


class Lof(Ranked):
    """The largest `max_tokens` first; of equals, the order stays as it was.

    `_sort_by_longest_output` in python/sglang/srt/managers/schedule_policy.py:493 (SGLang 0.5.23).
    """

    def rank(self, waiting: list[RequestState]) -> list[RequestState]:
        """These requests, the longest possible answer first."""
        return sorted(waiting, key=lambda live: -live.max_tokens)


ORDER = OrderKind(Lof)
