"""KV blocks of a replica with a connector: a request that ends may have to leave its blocks for a while."""

from collections.abc import Callable

from simulator.engine.parts.connected_groups import ConnectedGroups, never
from simulator.memory.prefix_cache import PrefixCache
from simulator.request import Request

# KV blocks of a replica with a connector: a request that ends may have to leave its blocks for a while.


class ConnectedBlocks(PrefixCache):
    """A `PrefixCache`, or without `caches_prefixes` blocks in the same order that are never found again.

    `keeps` is asked of each request that ends, when its blocks would be freed, whether they stay until `release`.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, *, caches_prefixes: bool = True) -> None:
        super().__init__(num_blocks, num_host_blocks, block_size)
        self.caches_prefixes = caches_prefixes
        self.keeps: Callable[[int], bool] = never
        self.kept: dict[int, None] = {}  # rows whose blocks stay

    def hits(self, request: Request, num_tokens: int) -> tuple[int, int]:
        return super().hits(request, num_tokens) if self.caches_prefixes else (0, 0)

    def enter(self, request: Request, full_blocks: int) -> None:
        if self.caches_prefixes:
            super().enter(request, full_blocks)

    def free(self, row: int, num_blocks: int) -> None:
        if self.keeps(row):
            self.kept[row] = None
        else:
            super().free(row, num_blocks)

    def lose(self, row: int, num_blocks: int) -> None:
        super().free(row, num_blocks)

    def release(self, row: int, *, fenced: bool = False) -> None:
        """Free the blocks that a request left; `fenced`: since a step in flight wrote them."""
        self.kept.pop(row, None)
        super().free(row, 0)


Connected = ConnectedBlocks | ConnectedGroups
