"""A replica as routers see it: an object that does not lead to the length of any answer."""

from collections.abc import Callable, Collection, Mapping, Sized

from simulator.engine.state import ReplicaState
from simulator.request import ArrivingRequest


class ReplicaLoad:
    """A replica's load: what a router chooses by. `group` is the name of its group in the fleet.

    `max_num_seqs` are the slots of its batch, `num_blocks` its usable KV blocks, `max_loras` its slots for adapters.
    """

    __slots__ = (
        "_cached_tokens", "_loras", "_running", "_used_blocks", "_waiting", "expected", "group", "index", "max_loras",
        "max_num_seqs", "num_blocks",
    )  # fmt: skip

    def __init__(
        self, index: int, group: str, state: ReplicaState, cached_tokens: Callable[[ArrivingRequest], int]
    ) -> None:
        self.index = index
        self.group = group
        self.max_num_seqs = state.policy.max_num_seqs
        self.num_blocks = state.blocks.num_blocks
        adapters = state.adapters
        self.max_loras = 0 if adapters is None else adapters.max_loras
        self._loras: Mapping[str, int] = {} if adapters is None else adapters.unfinished
        self._waiting: Sized = state.waiting
        self._running: Sized = state.running
        self._cached_tokens = cached_tokens
        self.expected = 0  # requests that are still being prefilled for it elsewhere, or on their way

    def count_blocks(self, used_blocks: Callable[[], int]) -> None:
        """Let `used_blocks` say how many blocks are in use."""
        self._used_blocks = used_blocks

    def know_cached(self, cached_tokens: Callable[[ArrivingRequest], int]) -> None:
        """Let `cached_tokens` say how much of a prompt is cached."""
        self._cached_tokens = cached_tokens

    @property
    def num_waiting(self) -> int:
        """Requests waiting, those included that are still with another replica."""
        return len(self._waiting) + self.expected

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_unfinished(self) -> int:
        """Requests waiting or running."""
        return len(self._waiting) + len(self._running) + self.expected

    @property
    def loras(self) -> Collection[str]:
        """The adapters of the requests waiting or running, as vLLM's metric of them tells it."""
        return self._loras

    @property
    def used_blocks(self) -> int:
        """KV blocks in use; cached blocks that no request uses count as free."""
        return self._used_blocks()

    @property
    def kv_utilization(self) -> float:
        """Used / usable KV blocks."""
        return self.used_blocks / self.num_blocks

    def cached_tokens(self, request: ArrivingRequest) -> int:
        """Leading tokens of the prompt that the replica's prefix cache holds now; 0 without a prefix cache.

        For routers that say `reads_caches` only: otherwise blocks that running requests fill come to be known late.
        """
        return self._cached_tokens(request)
