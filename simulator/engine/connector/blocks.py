"""KV blocks of a replica with a connector: a request that ends may have to leave its blocks for a while."""

from collections.abc import Callable

from simulator.engine.connector.request import ConnectedRequest
from simulator.hardware.kv_plan import KVPlan
from simulator.memory.grouped import GroupedBlocks
from simulator.memory.prefix_cache import PrefixCache
from simulator.request import Request


class ConnectedBlocks(PrefixCache):
    """A `PrefixCache`, or without `caches_prefixes` blocks in the same order that are never found again.

    `keeps` is asked of each request that ends, when its blocks would be freed, whether they stay until `release`.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int, *, caches_prefixes: bool = True) -> None:
        super().__init__(num_blocks, num_host_blocks, block_size)
        self.caches_prefixes = caches_prefixes
        self.keeps: Callable[[int], bool] = _never
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


class ConnectedGroups(GroupedBlocks):
    """`GroupedBlocks` for a connector, as `ConnectedBlocks` are. A step waits for copies of blocks that it takes."""

    keeps_order = True

    def __init__(self, plan: KVPlan, num_blocks: int, retention: int | None = 0) -> None:
        super().__init__(plan, num_blocks, retention)
        self.plan = plan
        self.caches_prefixes = self.keys is not None
        self.keeps: Callable[[int], bool] = _never
        self.kept: dict[int, None] = {}

    def free(self, row: int, num_blocks: int) -> None:
        if self.keeps(row):
            self.kept[row] = None
        else:
            super().free(row, num_blocks)

    def ends(self, live: ConnectedRequest) -> None:
        """A request ends: free what its windows have left, before the connector is told (scheduler.py:3369)."""
        self.drop(live.row, max(0, live.base_computed - live.in_flight_tokens))

    def release(self, row: int, *, fenced: bool = False) -> None:
        """See `ConnectedBlocks.release`. What was fenced comes free at once: the last group first."""
        self.kept.pop(row, None)
        if fenced:
            blocks = [block for table in reversed(self.tables) for block in reversed(table.tables.pop(row, ()))]
            self.pool.release(blocks)
        super().free(row, 0)


Connected = ConnectedBlocks | ConnectedGroups


def _never(row: int) -> bool:
    return False
