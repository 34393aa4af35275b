"""A GPU's queue with a host that launches slowly: every torch operator is a kernel with a price, executed for real.

The host's clock moves with each launch and waits where the queue is full; the device takes kernels one after another,
each when it has been launched and the one before is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from gpu_backend.attention.torch_attention import Prepared, TorchAttention
from gpu_backend.device import Cpu, Launches, Timed
from gpu_backend.work import StepArrays

KERNEL_S = 2e-6
LAUNCH_S = 2e-5


class Queue:
    """A `gpu_backend.device.Stream`. `depth`: launches that the device keeps waiting at most."""

    def __init__(self, depth: int = 1024) -> None:
        self._host_s = self._free_s = 0.0
        self._depth = depth
        self._ends: deque[float] = deque()

    def launch(self, seconds: float) -> None:
        """One kernel of so many seconds."""
        self._host_s += LAUNCH_S
        while self._ends and self._ends[0] <= self._host_s:
            self._ends.popleft()
        if len(self._ends) >= self._depth:
            self._host_s = max(self._host_s, self._ends.popleft())
        self._free_s = max(self._free_s, self._host_s) + seconds
        self._ends.append(self._free_s)

    def synchronize(self) -> None:
        self._host_s = max(self._host_s, self._free_s)

    wait = launch

    def mark(self) -> float:
        return max(self._host_s, self._free_s)

    def between(self, first: float, last: float) -> float:
        self.synchronize()
        return last - first

    def clock(self) -> float:
        return self._host_s


class _Launching(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Each operator is a kernel of the device; views are none."""

    def __init__(self, device: QueuedGpu) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and self._device.takes is not None:
            self._device.takes(KERNEL_S)
        return func(*args, **(kwargs or {}))


class QueuedGpu(Cpu):
    """A device over that queue. `can_capture`: graphs are made of work that does not fit into the queue."""

    def __init__(self, depth: int = 1024, *, can_capture: bool = True) -> None:
        super().__init__(1)
        self.queue = Queue(depth)
        self.takes: Callable[[float], None] | None = None  # what becomes of a kernel
        self._can_capture = can_capture
        self._launches = Launches(self.queue, self._graph)

    def seconds(self, work: Callable[[], object], kind: str = "") -> float:
        found = self.timed(work, kind)
        self.launch_s, self.is_hidden = found.launch_s, found.is_hidden
        return found.seconds

    def timed(self, work: Callable[[], object], kind: str = "") -> Timed:
        """The same with all that is told of it."""
        return self._launches.timed(lambda: self._sent(work, self.takes or self.queue.launch), kind)

    def host_s(self) -> float:
        return self.queue.clock()

    def capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """A graph: one launch, which takes what its kernels take together."""

        def replay() -> Any:
            kernels: list[float] = []
            made = self._sent(work, kernels.append)
            self.queue.launch(sum(kernels))
            return made

        return replay

    def _graph(self, work: Callable[[], object]) -> Callable[[], object]:
        if not self._can_capture:
            raise RuntimeError("operation not permitted when stream is capturing")
        return self.capture(work)

    def _sent(self, work: Callable[[], Any], takes: Callable[[float], None]) -> Any:
        """Do the work, whose kernels go to `takes`."""
        before, self.takes = self.takes, takes
        try:
            with _Launching(self) if before is None else nullcontext():
                return work()
        finally:
            self.takes = before


class Reserving(TorchAttention):
    """torch's attention with a place that graphs read from, which each step fills anew."""

    def prepare(self, rows: StepArrays, into: Any = None) -> Any:
        found = super().prepare(rows)
        if into is None:
            return found
        into[:] = [found]
        return into

    def reserve(self, seqs: int, max_context: int, *, cache_tokens: int | None = None) -> list[Prepared]:
        del seqs, max_context, cache_tokens
        return []

    def attend(self, query: Any, key: Any, value: Any, kv: Any, prepared: Any, **more: Any) -> Any:
        return super().attend(query, key, value, kv, prepared[0] if isinstance(prepared, list) else prepared, **more)
