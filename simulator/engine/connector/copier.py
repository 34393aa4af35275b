"""Copies between the device and the host (vllm/v1/kv_offload/cpu/gpu_worker.py, 0.33)."""

from collections import deque
from collections.abc import Iterable
from typing import Final

STORE: Final = "store"
LOAD: Final = "load"
SYNC: Final = "sync"


class Copier:
    """One queue for each kind of copy. A copy starts when the device has done what it was given before it."""

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
