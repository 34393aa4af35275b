"""Depth first through the radix tree, the subtree first in which most requests wait."""

from simulator.queues.order import OrderKind
from simulator.queues.sorted_queues import Ranked
from simulator.request_state import RequestState


class DfsWeight(Ranked):
    """Requests that share a prefix one after the other, the most wanted subtree first, and in it the longest prefix.

    `_dfs_weight_order` in python/sglang/srt/mem_cache/base_prefix_cache.py:347 (SGLang 0.5.23).
    """

    reads_cache = True

    def rank(self, waiting: list[RequestState]) -> list[RequestState]:
        return waiting if self.prefixes is None else self.prefixes.by_subtree(waiting)


ORDER = OrderKind(DfsWeight, needs_prefix_cache=True, needs_radix_tree=True)
