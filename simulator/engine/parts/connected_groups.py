"""KV blocks of several groups for a connector."""

from collections.abc import Callable

from simulator.engine.itemized_step import DraftingRequest
from simulator.hardware.kv_plan import KVPlan
from simulator.memory.grouped import GroupedBlocks
from simulator.request import Request
from simulator.request_state import DecodeClock

# A request in service where a connector may have its KV.


class ConnectedRequest(DraftingRequest):
    """A request that may wait for a load. `base_computed` counts the tokens of a load from its beginning on.

    `is_loading`: the load is under way. `is_settled`: no load has ended that is not counted yet.
    """

    __slots__ = ("external_tokens", "is_loading", "is_settled", "load_failed")

    def __init__(self, request: Request, clock: DecodeClock) -> None:
        super().__init__(request, clock)
        self.is_loading = False
        self.is_settled = True
        self.load_failed = False
        self.external_tokens = 0  # of the present load


# KV blocks of several groups for a connector.


def never(row: int) -> bool:
    """No request leaves its blocks."""
    return False


class ConnectedGroups(GroupedBlocks):
    """`GroupedBlocks` for a connector, as `ConnectedBlocks` are. A step waits for copies of blocks that it takes."""

    keeps_order = True

    def __init__(self, plan: KVPlan, num_blocks: int, retention: int | None = 0) -> None:
        super().__init__(plan, num_blocks, retention)
        self.plan = plan
        self.caches_prefixes = self.keys is not None
        self.keeps: Callable[[int], bool] = never
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
