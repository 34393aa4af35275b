"""TensorRT-LLM's two schedulers and the executor around them, told again in a page, step by step.

After tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py of NVIDIA/TensorRT-LLM (revision 002f3cc; the names in the
docstrings are its own), for one beam, without drafts, block reuse, LoRA, pipeline stages and sliding windows. Blocks
are counted as by `getNeededBlocksOneStep` and `getRemainingBlocksToCompletion` of
cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp; the loops are `_executor_loop` and `_executor_loop_overlap` of
py_executor.py. Nothing is shared with `simulator`: it is what the policy is held against.
"""

from collections import deque
from dataclasses import dataclass, field

from tests.parity.reference_cases import Clock, ReferenceCase, Told


@dataclass(slots=True, eq=False)
class Active:
    """An active request (`LlmRequest`). `prompt_len` grows by the answer so far where it is paused."""

    id: str
    prompt_len: int
    max_new_tokens: int
    answer: int  # tokens until it stops, of which the executor knows nothing
    position: int = 0  # of the prompt, computed
    generated: int = 0  # tokens known
    on_its_way: int = 0  # tokens of a step that is still running
    kv_tokens: int = 0
    orig_prompt_len: int = field(init=False)

    def __post_init__(self) -> None:
        self.orig_prompt_len = self.prompt_len

    @property
    def is_context(self) -> bool:
        return self.position < self.prompt_len

    @property
    def is_first_chunk(self) -> bool:
        return self.position == 0

    @property
    def remaining(self) -> int:
        return self.prompt_len - self.position

    @property
    def to_complete(self) -> bool:
        """GENERATION_TO_COMPLETE: its last token by `max_tokens` is on its way."""
        return self.on_its_way > 0 and self.generated + self.on_its_way >= self.max_new_tokens

    def pause(self) -> None:
        """`LlmRequest::pause`: the answer so far is prompt, and all is computed again."""
        self.prompt_len = self.orig_prompt_len + self.generated
        self.position = self.kv_tokens = 0


@dataclass(slots=True)
class Executor:
    """Active requests in order of arrival, the queue before them, and the KV blocks."""

    case: ReferenceCase
    waiting: deque[Active] = field(default_factory=deque)
    active: list[Active] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = Clock(self.case)

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.case.block_size)

    @property
    def free_blocks(self) -> int:
        return self.case.num_blocks - sum(self.blocks(r.kv_tokens) for r in self.active)

    def to_completion(self, request: Active) -> int:
        """`getRemainingBlocksToCompletion`."""
        return self.blocks(request.orig_prompt_len + request.max_new_tokens) - self.blocks(request.kv_tokens)

    def one_step(self, request: Active) -> int:
        """`getNeededBlocksOneStep`: a prompt takes all its blocks with its first chunk, a decode one at a time."""
        if request.is_context:
            return self.blocks(request.prompt_len) if request.is_first_chunk else 0
        return self.blocks(request.kv_tokens + 1) - self.blocks(request.kv_tokens)

    # The capacity scheduler

    def no_evict(self, *, static_batch: bool) -> list[Active]:
        """`GuaranteedNoEvictPolicy.schedule` (capacityScheduler.cpp:194)."""
        scheduled = [r for r in self.active if not r.is_context]
        available = self.free_blocks - sum(map(self.to_completion, scheduled))
        if static_batch and scheduled:
            return scheduled
        for request in self.active:
            if request.is_context:
                needed = self.to_completion(request)
                if len(scheduled) >= self.case.config["max_batch_size"] or needed > available:
                    break
                available -= needed
                scheduled.append(request)
        return scheduled

    def max_utilization(self) -> tuple[list[Active], list[Active]]:
        """`MaxUtilizationPolicy.schedule` (capacityScheduler.cpp:341)."""
        free, taken = self.free_blocks, 0
        scheduled: list[Active] = []
        paused: list[Active] = []
        at, end = 0, len(self.active)
        while at < end:
            request = self.active[at]
            needed = self.one_step(request)
            if len(scheduled) < self.case.config["max_batch_size"] and taken + needed <= free:
                taken += needed
                scheduled.append(request)
                at += 1
                continue
            started = [i for i in range(at, end) if not (self.active[i].is_context and self.active[i].is_first_chunk)]
            if not started:
                break
            end = started[-1]
            paused.append(self.active[end])
            free += self.blocks(self.active[end].kv_tokens)  # `scheduling_remove_sequence`
        return scheduled, paused

    # The micro-batch scheduler

    def micro_batch(self, fitting: list[Active]) -> dict[Active, int]:
        """`PyMicroBatchScheduler.schedule`: the tokens of each request in this step."""
        config = self.case.config
        limit, chunking = config["max_num_tokens"], config["context_chunking_policy"]
        scheduled: dict[Active, int] = {}
        chunked: list[Active] = []
        tokens = seqs = 0
        for request in fitting:
            if request.to_complete:
                continue
            if request.is_context and chunking is not None:
                chunked.append(request)
            else:
                needed = request.remaining if request.is_context else 1
                if tokens + needed > limit:
                    break
                scheduled[request] = needed
                tokens += needed
            seqs += 1
            if seqs >= config["max_batch_size"]:
                break
        capacity = limit - tokens
        chunk_size = {request: request.remaining for request in chunked}
        if sum(chunk_size.values()) > capacity or any(size > limit for size in chunk_size.values()):
            unit = self.case.block_size
            (self.equal_progress if chunking == "equal_progress" else self.fcfs)(chunk_size, capacity, unit)
        return scheduled | {request: size for request, size in chunk_size.items() if size > 0}

    def fcfs(self, chunk_size: dict[Active, int], capacity: int, unit: int) -> None:
        """`_chunk_fcfs`."""
        for request in chunk_size:
            size = request.remaining
            if capacity < size:
                size = capacity
            size = min(size, self.case.config["max_num_tokens"])
            if size < request.remaining:
                size = size // unit * unit
            chunk_size[request] = size
            capacity -= size

    def equal_progress(self, chunk_size: dict[Active, int], capacity: int, unit: int) -> None:
        """`_chunk_equal_progress`."""
        chunk_size.update(dict.fromkeys(chunk_size, 0))
        total, in_this_loop = 0, 1
        while total < capacity and in_this_loop > 0:
            in_this_loop = 0
            for request, past in chunk_size.items():
                size = min(past + unit, request.remaining)
                if total + size - past > capacity or size > self.case.config["max_num_tokens"]:
                    continue
                chunk_size[request] = size
                total += size - past
                in_this_loop += size - past

    # The executor

    def fetch(self) -> None:
        """`_fetch_and_activate_new_requests`: as many are active as a batch holds."""
        while self.waiting and len(self.active) < self.case.config["max_batch_size"]:
            self.active.append(self.waiting.popleft())

    def schedule(self) -> tuple[dict[Active, int], list[Active]]:
        """`SimpleScheduler.schedule_request`; the paused lose their KV."""
        policy = self.case.config["capacity_scheduler_policy"]
        paused: list[Active] = []
        if policy == "MAX_UTILIZATION":
            fitting, paused = self.max_utilization()
        else:
            fitting = self.no_evict(static_batch=policy == "STATIC_BATCH")
        batch = self.micro_batch(fitting)
        for request in paused:
            request.pause()
        return batch, paused

    def launch(self, batch: dict[Active, int]) -> list[Active]:
        """`prepare_resources` and `_update_request_states`: blocks are taken, prompts advance; whose tokens come.

        A prompt takes all its blocks with its first chunk.
        """
        coming = []
        for request, tokens in batch.items():
            if request.is_context:
                request.kv_tokens = request.prompt_len
                request.position += tokens
            else:
                request.kv_tokens += 1
            if not request.is_context:
                request.on_its_way += 1
                coming.append(request)
        return coming

    def update(self, coming: list[Active]) -> list[str]:
        """`_update_requests` and `_handle_responses`: tokens are known, and those that have stopped leave."""
        finished = []
        for request in coming:
            request.on_its_way -= 1
            request.generated += 1
            if request.generated == request.answer:
                self.active.remove(request)
                finished.append(request.id)  # a token more may be on its way, and is thrown away
        return sorted(finished)

    def arrive(self, requests: object) -> None:
        self.waiting.extend(Active(*request) for request in requests)  # type: ignore[attr-defined] # an iterator of them

    def serve(self) -> list[Told]:
        """`_executor_loop`, until all requests have been answered."""
        unsaid: list[str] = []
        while True:
            self.arrive(self.clock.wait(idle=not self.active and not self.waiting))
            self.fetch()
            if not self.active:
                return self.told
            batch, paused = self.schedule()
            unsaid += [request.id for request in paused]
            if not batch:
                assert paused, "nothing can ever be scheduled"
                continue
            coming = self.launch(batch)
            start_s, used = self.clock.now_s, self.case.num_blocks - self.free_blocks
            finished = self.update(coming)
            self.arrive(self.clock.run(sum(batch.values())))
            self.told.append(Told(start_s, self.tokens(batch), unsaid, finished, [], used))
            unsaid = []

    def serve_overlapped(self) -> list[Told]:
        """`_executor_loop_overlap`: a step is launched before the results of the one before it are known.

        Where there is nothing to launch behind a running step, an empty one is told that takes no time.
        """
        running: list[Active] = []  # whose tokens come with the step before
        is_running, end_s = False, 0.0
        while True:
            self.arrive(self.clock.wait(idle=False))
            if is_running and not self.active and not self.waiting:
                # Our one difference: where all have stopped and only tokens to be thrown away are being computed, the
                # next request is planned for when they are. `_fetch_and_enqueue_requests` plans it as it arrives.
                self.clock.now_s = end_s
            self.arrive(self.clock.wait(idle=not self.active and not self.waiting))
            self.fetch()
            if not self.active:
                return self.told
            batch, _ = self.schedule()
            assert batch or is_running, "nothing can ever be scheduled"
            coming = self.launch(batch)
            if is_running:
                self.clock.now_s = max(self.clock.now_s, end_s)
                self.told[-1].finished.extend(self.update(running))
            self.told.append(Told(self.clock.now_s, self.tokens(batch), [], [], [], 0))
            running, is_running, end_s = coming, bool(batch), self.clock.end_of(sum(batch.values()))

    @staticmethod
    def tokens(batch: dict[Active, int]) -> dict[str, int]:
        return {request.id: tokens for request, tokens in batch.items()}
