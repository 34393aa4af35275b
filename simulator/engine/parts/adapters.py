"""LoRA adapters of one replica: which of them running requests use, and which lie in the GPU's slots.

As in vLLM 0.33: the batch never uses more than `max_loras` adapters (`Scheduler.schedule`), and as many lie in device
memory. One that does not is copied there before the step that admits its request, in place of the one that was used
longest ago (`LRUCacheWorkerLoRAManager` in vllm/lora/worker_manager.py).

A request is shut out while it waits, its adapter is not among those in use, and these are `max_loras`. For each adapter
the time is counted in which requests for it would be shut out: so a wait costs nothing until it ends. A replica may see
an arrival late, behind changes of the same moment: what these replaced is kept until the next.
"""

from collections.abc import Sequence
from math import inf

from simulator.engine.clock import Clock
from simulator.request_state import RequestState, ScheduledChunk
from simulator.results.buffers import Table
from simulator.timing.cost import StepShape

# LoRA adapters of one replica: which of them running requests use, and which lie in the GPU's slots.
# As in vLLM 0.33: the batch never uses more than `max_loras` adapters (`Scheduler.schedule`), and as many lie in
# device memory. One that does not is copied there before the step that admits its request, in place of the one that
# was used longest ago (`LRUCacheWorkerLoRAManager` in vllm/lora/worker_manager.py).
# A request is shut out while it waits, its adapter is not among those in use, and these are `max_loras`. For each
# adapter the time is counted in which requests for it would be shut out: so a wait costs nothing until it ends. A
# replica may see an arrival late, behind changes of the same moment: what these replaced is kept until the next.


class Adapters:
    """`running` counts the running requests of each adapter that any of them uses, `unfinished` those that wait too.

    `admissions` gets a row for each request with an adapter that enters the batch (`AdapterColumns`).
    """

    __slots__ = (
        "_admissions", "_before", "_changed_s", "_clock", "_full", "_full_before", "_loaded", "_shut_out_s", "_slots",
        "_used", "_waits_from_s", "max_loras", "running", "unfinished",
    )  # fmt: skip

    def __init__(self, max_loras: int, clock: Clock, admissions: Table) -> None:
        self.max_loras = max_loras
        self.running: dict[str, int] = {}
        self.unfinished: dict[str, int] = {}
        self._admissions = admissions
        self._clock = clock
        self._full = (0.0, inf)  # time in which `max_loras` were in use, and since when they are
        # Time in which requests for an adapter would be shut out. Of one that is not in use: less the time of `_full`.
        self._shut_out_s: dict[str, float] = {}
        self._changed_s = 0.0  # the last change of what is in use, before which these held:
        self._full_before = self._full
        self._before: dict[str, tuple[bool, float]] = {}  # of what changed: whether it was in use, and its time
        self._waits_from_s: dict[int, float] = {}  # the same as a waiting request's wait began, by row
        self._slots: dict[str, None] = {}  # adapters in device memory; the unused ones in the order of their last use
        self._loaded = 0  # since the last step
        self._used = 0  # running requests that have an adapter

    def _time_shut_out_s(self, lora: str, until_s: float) -> float:
        """The time, until now or just before it, in which requests for this adapter would be shut out."""
        full, found = self._full, None
        if until_s < self._changed_s:
            full, found = self._full_before, self._before.get(lora)
        in_use, counted_s = found or (lora in self.running, self._shut_out_s.get(lora, 0.0))
        return counted_s if in_use else counted_s + full_time_s(full, until_s)

    def _changes(self, lora: str) -> None:
        """This adapter comes into use, or is in use no longer."""
        if self._clock.now != self._changed_s:
            self._changed_s, self._full_before = self._clock.now, self._full
            self._before.clear()
        if lora not in self._before:
            self._before[lora] = lora in self.running, self._shut_out_s.get(lora, 0.0)

    def arrived(self, live: RequestState) -> None:
        """A request has come into the queue for the first time."""
        lora = live.lora
        if lora is not None:
            self.unfinished[lora] = self.unfinished.get(lora, 0) + 1
            self.waits(live, live.arrival_s)

    def waits(self, live: RequestState, since_s: float) -> None:
        """A request is in the queue."""
        if live.lora is not None:
            self._waits_from_s[live.row] = self._time_shut_out_s(live.lora, since_s)

    def ended(self, live: RequestState) -> None:
        """A request that had arrived leaves the engine, wherever it was."""
        lora = live.lora
        if lora is not None:
            self._waits_from_s.pop(live.row, None)
            self.unfinished[lora] -= 1
            if not self.unfinished[lora]:
                del self.unfinished[lora]

    def entered(self, live: RequestState) -> bool:
        """A request enters the batch; returns whether its adapter fits in."""
        lora = live.lora
        if lora is None:
            return True
        now_s = self._clock.now
        shut_out_s = self._time_shut_out_s(lora, now_s)
        waited_s = shut_out_s - self._waits_from_s.pop(live.row)
        self._admissions.add((live.row, now_s, int(lora not in self._slots), waited_s))
        self._used += 1
        if lora in self.running:
            self.running[lora] += 1
        else:
            self._changes(lora)
            self.running[lora] = 1
            self._shut_out_s[lora] = shut_out_s
            if len(self.running) == self.max_loras:
                self._full = self._full[0], now_s
        if lora not in self._slots:
            if len(self._slots) >= self.max_loras:
                for other in self._slots:
                    if other not in self.running:
                        del self._slots[other]
                        break
            self._slots[lora] = None
            self._loaded += 1
        return len(self.running) <= self.max_loras

    def left(self, live: RequestState) -> None:
        """A request has left the batch."""
        lora = live.lora
        if lora is None:
            return
        self._used -= 1
        self.running[lora] -= 1
        if not self.running[lora]:
            self._changes(lora)
            full_s = full_time_s(self._full, self._clock.now)
            self._shut_out_s[lora] -= full_s
            self._full = full_s, inf
            del self.running[lora]
            self._slots[lora] = self._slots.pop(lora)  # used last

    def preempted(self, live: RequestState, now_s: float) -> None:
        """A request has gone from the batch back to the queue."""
        self.left(live)
        self.waits(live, now_s)

    def counted(self, shape: StepShape, prefill: Sequence[ScheduledChunk]) -> StepShape:
        """The shape of the next step, which computes these chunks, with its adapters."""
        if not self.running and not self._loaded:
            return shape
        tokens, decodes = 0, self._used
        for live, n, _ in prefill:
            if live.lora is not None:
                tokens += n
                decodes -= 1
        if shape.decode_seqs:
            tokens += min(decodes, shape.decode_seqs)
        return self.with_tokens(shape, len(self.running), tokens)

    def with_tokens(self, shape: StepShape, loras: int, tokens: int) -> StepShape:
        """The shape of the next step, in which so many adapters compute so many tokens."""
        loaded, self._loaded = self._loaded, 0
        return shape._replace(loras=loras, lora_tokens=tokens, loaded_loras=loaded)


def full_time_s(full: tuple[float, float], until_s: float) -> float:
    """The time in which all slots were in use, of a time before and of that since they are; infinity: they are not."""
    before_s, since_s = full
    return before_s if since_s == inf else before_s + (until_s - since_s)
