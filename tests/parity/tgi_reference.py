"""Text Generation Inference's router, told again in a page: what it prefills and decodes, step by step.

After backends/v3/src/backend.rs (`batching_task`), queue.rs (`State::next_batch`) and block_allocator.rs
(`SimpleAllocator`) of huggingface/text-generation-inference 3, for models without padding, window and speculation.
Lines are those of the revision that the policy cites. Nothing is shared with `simulator`: it is what the policy is
held against.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.parity.reference_cases import Clock, ReferenceCase, Told


@dataclass(slots=True, eq=False)
class Entry:
    """A request of the queue, or of the batch."""

    id: str
    input_length: int
    max_new_tokens: int
    answer: int  # tokens until it stops, of which the router knows nothing
    blocks: int = 0
    generated: int = 0
    cache_length: int = 0  # tokens computed
    chunk: int = 0  # tokens that it computes in the next forward pass

    @property
    def prefilling(self) -> bool:
        return self.cache_length < self.input_length


@dataclass(slots=True)
class Router:
    """The batching task, the queue's state and the block allocator in one."""

    case: ReferenceCase
    queue: deque[Entry] = field(default_factory=deque)
    told: list[Told] = field(default_factory=list)
    clock: Clock = field(init=False)
    num_blocks: int = field(init=False)
    free_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.case)
        # Block 0 is reserved for health checks (block_allocator.rs, `SimpleAllocator::new`).
        self.num_blocks = self.case.config["max_batch_total_tokens"] // self.case.block_size - 1
        self.free_blocks = self.num_blocks

    def next_batch(self, min_size: int | None, max_size: int | None, prefill_token_budget: int) -> list[Entry]:
        """queue.rs:241: the heads of the queue that fit; an empty list is its None."""
        if not self.queue or (min_size is not None and len(self.queue) < min_size) or max_size == 0:
            return []
        size = self.case.block_size
        prefill_token_budget = (prefill_token_budget + size - 1) // size * size  # :265
        batch: list[Entry] = []
        prefill_tokens = 0
        while self.queue:
            entry = self.queue.popleft()
            tokens = entry.input_length + entry.max_new_tokens - 1  # :316
            needed = (tokens + size - 1) // size
            is_cut = prefill_tokens + entry.input_length > prefill_token_budget
            chunk = max(0, prefill_token_budget - prefill_tokens) if is_cut else entry.input_length
            if needed > self.free_blocks or (is_cut and not (self.case.config["support_chunking"] and chunk)):
                self.queue.appendleft(entry)
                break
            entry.chunk = chunk
            self.free_blocks -= needed
            entry.blocks = needed
            prefill_tokens += entry.input_length
            batch.append(entry)
            if is_cut or len(batch) == max_size:
                break
        if min_size is not None and len(batch) < min_size:
            for entry in reversed(batch):
                self.free_blocks += entry.blocks
                self.queue.appendleft(entry)
            return []
        return batch

    def forward(self, batch: list[Entry]) -> list[Entry]:
        """`prefill` or `decode`: who has its prompt gets a token; those that have stopped leave, their blocks are free.

        The chunks of the next pass are those of `generate_token` (flash_causal_lm.py): the newest first.
        """
        scheduled = {entry.id: entry.chunk for entry in batch}
        used = self.num_blocks - self.free_blocks
        budget = self.case.config["max_batch_prefill_tokens"] - (len(batch) - 1)
        for entry in reversed(batch):
            entry.cache_length += entry.chunk
            entry.chunk = 1
            if entry.prefilling:
                entry.chunk = max(1, min(entry.input_length - entry.cache_length, budget))
                budget -= entry.chunk
            else:
                entry.generated += 1
        stopped = [entry for entry in batch if entry.generated == entry.answer]
        self.free_blocks += sum(entry.blocks for entry in stopped)
        waited = [entry.id for entry in self.queue]
        start_s = self.clock.now_s
        for arrived in self.clock.run(sum(scheduled.values())):
            self.queue.append(Entry(*arrived))
        self.told.append(Told(start_s, scheduled, [], sorted(entry.id for entry in stopped), waited, used))
        return [entry for entry in batch if entry.generated < entry.answer]

    def serve(self) -> list[Told]:
        """backend.rs:130, until all requests have been answered."""
        while True:
            for arrived in self.clock.wait(idle=not self.queue):
                self.queue.append(Entry(*arrived))
            if not self.queue:
                return self.told
            config = self.case.config
            while new := self.next_batch(None, config["max_batch_size"], config["max_batch_prefill_tokens"]):
                if config["support_chunking"]:
                    self.chunked(self.forward(new))
                else:
                    self.whole(self.forward(new))

    def whole(self, cached: list[Entry]) -> None:
        """The inner loop for models that compute prompts whole."""
        config: dict[str, Any] = self.case.config
        ratio, slots = np.float32(config["waiting_served_ratio"]), config["max_batch_size"]
        waiting_tokens = 1  # :160
        while cached:
            min_size = None
            if waiting_tokens < config["max_waiting_tokens"]:
                min_size = int(np.floor(np.float32(len(cached)) * ratio))  # :194
            concatenated = list(cached)
            if new := self.next_batch(min_size, max(0, slots - len(cached)), config["max_batch_prefill_tokens"]):
                concatenated += self.forward(new)
                waiting_tokens = 1  # :264
            cached = self.forward(concatenated)
            waiting_tokens += 1

    def chunked(self, cached: list[Entry]) -> None:
        """The inner loop for models that support chunks (:175): new prompts join the batch in its forward pass."""
        while cached:
            current_tokens = sum(entry.chunk for entry in cached)
            budget = max(0, self.case.config["max_batch_prefill_tokens"] - current_tokens)
            if new := self.next_batch(None, None, budget):
                cached = self.forward([*cached, *new])
                if not cached:
                    return
            cached = self.forward(cached)
