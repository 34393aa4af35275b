"""LoRA adapters of one replica: which of them running requests use, and which lie in the GPU's slots.

As in vLLM 0.33: the batch never uses more than `max_loras` adapters (`Scheduler.schedule`), and as many lie in device
memory. One that does not is copied there before the step that admits its request, in place of the one that was used
longest ago (`LRUCacheWorkerLoRAManager` in vllm/lora/worker_manager.py).

A request is shut out while it waits, its adapter is not among those in use, and these are `max_loras`. For each adapter
the time is counted in which requests for it would be shut out: so a wait costs nothing until it ends.
"""

from collections.abc import Sequence

from simulator.engine.clock import Clock
from simulator.request_state import RequestState, ScheduledChunk
from simulator.results.buffers import Table
from simulator.timing.cost import StepShape


class Adapters:
    """`running` counts the running requests of each adapter that any of them uses, `unfinished` those that wait too.

    `admissions` gets a row for each request with an adapter that enters the batch (`AdapterColumns`).
    """

    __slots__ = (
        "_admissions", "_clock", "_full_s", "_full_since_s", "_loaded", "_shut_out_s", "_slots", "_used",
        "_waits_from_s", "max_loras", "running", "unfinished",
    )  # fmt: skip

    def __init__(self, max_loras: int, clock: Clock, admissions: Table) -> None:
        self.max_loras = max_loras
        self.running: dict[str, int] = {}
        self.unfinished: dict[str, int] = {}
        self._admissions = admissions
        self._clock = clock
        self._full_s = 0.0  # time in which `max_loras` were in use, up to `_full_since_s` where they still are
        self._full_since_s = -1.0  # below 0: fewer are in use
        # Time in which requests for an adapter would be shut out. Of one that is not in use: less `_full_time_s()`.
        self._shut_out_s: dict[str, float] = {}
        self._waits_from_s: dict[int, float] = {}  # the same as a waiting request's wait began, by row
        self._slots: dict[str, None] = {}  # adapters in device memory; the unused ones in the order of their last use
        self._loaded = 0  # since the last step
        self._used = 0  # running requests that have an adapter

    def _full_time_s(self) -> float:
        """The time up to now in which `max_loras` adapters were in use."""
        since_s = self._full_since_s
        return self._full_s if since_s < 0 else self._full_s + (self._clock.now - since_s)

    def _time_shut_out_s(self, lora: str) -> float:
        """The time up to now in which requests for this adapter would be shut out."""
        counted_s = self._shut_out_s.get(lora, 0.0)
        return counted_s if lora in self.running else counted_s + self._full_time_s()

    def arrived(self, live: RequestState) -> None:
        """A request has come into the queue for the first time."""
        lora = live.lora
        if lora is not None:
            self.unfinished[lora] = self.unfinished.get(lora, 0) + 1
            self.waits(live)

    def waits(self, live: RequestState) -> None:
        """A request is in the queue from now on."""
        if live.lora is not None:
            self._waits_from_s[live.row] = self._time_shut_out_s(live.lora)

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
        shut_out_s = self._time_shut_out_s(lora)
        waited_s = shut_out_s - self._waits_from_s.pop(live.row)
        self._admissions.add((live.row, self._clock.now, int(lora not in self._slots), waited_s))
        self._used += 1
        if lora in self.running:
            self.running[lora] += 1
        else:
            self.running[lora] = 1
            self._shut_out_s[lora] = shut_out_s
            if len(self.running) == self.max_loras:
                self._full_since_s = self._clock.now
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
            self._shut_out_s[lora] -= self._full_time_s()
            if len(self.running) == self.max_loras:
                self._full_s = self._full_time_s()
                self._full_since_s = -1.0
            del self.running[lora]
            self._slots[lora] = self._slots.pop(lora)  # used last

    def counted(self, shape: StepShape, prefill: Sequence[ScheduledChunk]) -> StepShape:
        """The shape of the next step, which computes these chunks, with its adapters."""
        if not self.running and not self._loaded:
            return shape
        tokens, decodes = 0, self._used
        for live, n, _ in prefill:
            if live.lora is not None:
                tokens += n
                decodes -= 1
        loaded, self._loaded = self._loaded, 0
        if shape.decode_seqs:
            tokens += min(decodes, shape.decode_seqs)
        return shape._replace(loras=len(self.running), lora_tokens=tokens, loaded_loras=loaded)
