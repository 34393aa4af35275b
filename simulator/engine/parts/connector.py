"""What a replica asks of its connector, and tells it, in the course of a step; and the KV groups that one copies."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from simulator.engine.itemized_step import ItemizedRequest
from simulator.hardware.kv_plan import KVPlan
from simulator.memory.grouped import GroupedBlocks
from simulator.request import Request
from simulator.speculative import Found, Loader


class Arrivals(NamedTuple):
    """Transfers that had ended when a step was launched: they are told with the results of that step.

    `loaded` and `failed` are rows of requests whose load has ended, `sent` of those whose blocks another server has.
    `jobs` are the connector's own.
    """

    loaded: Sequence[int] = ()
    failed: Sequence[int] = ()
    sent: Sequence[int] = ()
    jobs: Sequence[int] = ()


class Connector(Loader, Protocol):
    """A KV connector of one replica: its scheduler's side, and the transfers of its workers.

    Each step goes through it in the order of the methods. Times are seconds; `busy_until_s` is when the device has done
    the steps before.
    """

    is_fenced: bool  # blocks that a step in flight writes are not freed before that step has ended
    drops_late: bool  # tokens in flight of a preempted request are dropped, and not delivered
    fails_requests: bool  # a request whose load failed ends; otherwise it is computed here
    now_s: float  # of the plan that is being made

    def look(self, request: Request, live: ItemizedRequest, computed_tokens: int) -> Found | None:
        """See `ConnectorView.look`."""

    def admitted(self, request: Request, live: ItemizedRequest, found: Found, local_tokens: int) -> None:
        """A request has its blocks, those for what was found too, which is to be loaded if it is anything."""

    def planned(self, scheduled: Sequence[tuple[ItemizedRequest, int]], preempted: Sequence[ItemizedRequest]) -> None:
        """The plan is applied: it gives these requests so many tokens, which do not count as computed yet."""

    def before(self, now_s: float, busy_until_s: float) -> float:
        """The step is launched: begin what comes before it; returns when the workers are ready for it."""

    def after(self, ready_s: float, busy_until_s: float) -> Arrivals:
        """The step has been given to the device: begin what comes behind it, and see what has ended."""

    def arrived(self, arrivals: Arrivals) -> None:
        """The results of the step are there, and with them these."""

    def keeps(self, live: ItemizedRequest, now_s: float) -> bool:
        """A request has its last token: whether its blocks stay until they are sent."""

    def ended(self, row: int) -> None:
        """A request has left the replica."""

    def record(self, replica: int, copied: Callable[[tuple[float, ...]], None]) -> None:
        """Tell `copied` of each copy of this replica, if there is more of it than records tell anyway."""

    def told(self) -> dict[str, int]:
        """Counts of the last plan, for the decision log."""

    @property
    def has_work(self) -> bool:
        """Whether the engine has to go on stepping, though no request waits or runs."""


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

    def release(self, row: int, *, fenced: bool = False) -> None:
        """See `ConnectedBlocks.release`. What was fenced comes free at once: the last group first."""
        self.kept.pop(row, None)
        if fenced:
            blocks = [block for table in reversed(self.tables) for block in reversed(table.tables.pop(row, ()))]
            self.pool.release(blocks)
        super().free(row, 0)
