"""What a connector copies: KV blocks that may stay for a while as their request ends, and the queues of copies."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from simulator.engine.parts.connector import ConnectedGroups, Connector, never
from simulator.memory.prefix_cache import PrefixCache
from simulator.request import Request

STORE: Final = "store"
LOAD: Final = "load"
SYNC: Final = "sync"


class Copier:
    """Copies between the device and the host: one queue for each kind (vllm/v1/kv_offload/cpu/gpu_worker.py, 0.33).

    A copy starts when the device has done what it was given before it."""

    def __init__(self, block_bytes: float, bandwidth: float, latency_s: float) -> None:
        self._block_bytes = block_bytes
        self._bandwidth = bandwidth
        self._latency_s = latency_s
        self._queues: dict[str, deque[int]] = {kind: deque() for kind in (STORE, LOAD, SYNC)}
        self._last_s = dict.fromkeys(self._queues, 0.0)
        self._ends_s: dict[int, float] = {}

    def submit(self, job: int, kind: str, num_blocks: int, ready_s: float, busy_until_s: float) -> tuple[float, float]:
        """Begin a copy of so many blocks as soon as it may; returns when that is, and when it ends."""
        start_s = max(ready_s, busy_until_s, self._last_s[kind])
        end_s = start_s + self._latency_s + num_blocks * self._block_bytes / self._bandwidth
        self._last_s[kind] = self._ends_s[job] = end_s
        self._queues[kind].append(job)
        return start_s, end_s

    def wait(self, jobs: Iterable[int], from_s: float) -> float:
        """When these copies have ended, but not before `from_s`."""
        return max([from_s, *[self._ends_s[job] for job in jobs if job in self._ends_s]])

    def ended_by(self, now_s: float) -> list[int]:
        """Copies that have ended, and are told once."""
        found = []
        for queue in self._queues.values():
            while queue and self._ends_s[queue[0]] <= now_s:
                job = queue.popleft()
                del self._ends_s[job]
                found.append(job)
        return found


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
MakeConnector = Callable[[Connected, bool], Connector]
"""Makes a replica's connector of its blocks, and of whether its steps overlap."""
