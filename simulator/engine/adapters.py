"""LoRA adapters of one replica: which of them running requests use, and which lie in the GPU's slots.

As in vLLM 0.33: the batch never uses more than `max_loras` adapters (`Scheduler.schedule`), and as many lie in device
memory. One that does not is copied there before the step that admits its request, in place of the one that was used
longest ago (`LRUCacheWorkerLoRAManager` in vllm/lora/worker_manager.py).
"""

from collections.abc import Sequence

from simulator.request_state import RequestState, ScheduledChunk
from simulator.timing.cost import StepShape


class Adapters:
    """`running` counts the running requests of each adapter that any of them uses."""

    __slots__ = ("_loaded", "_slots", "_used", "max_loras", "running")

    def __init__(self, max_loras: int) -> None:
        self.max_loras = max_loras
        self.running: dict[str, int] = {}
        self._slots: dict[str, None] = {}  # adapters in device memory; the unused ones in the order of their last use
        self._loaded = 0  # since the last step
        self._used = 0  # running requests that have an adapter

    def entered(self, live: RequestState) -> bool:
        """A request enters the batch; returns whether its adapter fits in."""
        lora = live.lora
        if lora is None:
            return True
        self._used += 1
        self.running[lora] = self.running.get(lora, 0) + 1
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
