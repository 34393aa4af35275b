"""A second engine, written to be obvious: every request, every block and every token walked at every step.

It takes the same policies and keeps no sums, no heaps and no runs of steps, so that it shares no shortcut with
`simulator.engine.replica`. What it leaves behind is a list of steps and a list of requests with the time of every
token.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from simulator.division import cdiv
from simulator.plan import BatchView, Policy, PrefixMatches, StepPlan, Traits, WaitingView
from simulator.request import Request, RequestView
from simulator.timing.cost import StepShape
from tests.laws.naive_orders import NaiveOrder
from tests.laws.naive_request import NaiveRequest
from tests.laws.scenarios import Scenario


class NaiveQueue(NaiveOrder):
    """The waiting requests as the policy sees them."""

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[RequestView]:
        return iter(self.ordered())

    @property
    def head(self) -> RequestView:
        head: RequestView = self.ordered()[0]
        return head


class NaiveReplica:
    """One replica; as a `View` it is what the policy sees."""

    def __init__(self, scenario: Scenario, policy: Policy, index: int) -> None:
        self.scenario = scenario
        self.policy = policy
        self.index = index
        self.traits: Traits = getattr(policy, "traits", Traits())
        self.block_size = scenario.memory.block_size
        self.num_blocks = scenario.memory.num_gpu_blocks - 1
        self.batch: list[NaiveRequest] = []  # in order of admission
        self.held: list[NaiveRequest] = []
        self.paused: list[NaiveRequest] = []
        self.requests: list[NaiveRequest] = []
        self.queue = NaiveQueue(self.traits.order, self.requests)
        self.steps: list[dict[str, Any]] = []
        self.changed_before = False  # by plans that computed nothing, since the last step
        self.victims_before: list[str] = []  # theirs
        self.now_s = 0.0

    # The view

    @property
    def waiting(self) -> WaitingView:
        return self.queue

    @property
    def running(self) -> BatchView:
        return list(self.batch)

    @property
    def prefilling(self) -> BatchView:
        return [r for r in self.batch if r.state == "prefilling"]

    @property
    def num_decoding(self) -> int:
        return sum(r.state == "decoding" for r in self.batch)

    @property
    def decode_steps(self) -> int:
        return sum(bool(step["decoders"]) for step in self.steps)

    @property
    def executed_steps(self) -> int:
        return sum(bool(step["tokens"]) for step in self.steps)

    @property
    def running_loras(self) -> Mapping[str, int]:
        return Counter(request.lora for request in self.batch if request.lora is not None)

    @property
    def prefills_throttled(self) -> None:
        return None

    @property
    def decode_steps_since_admission(self) -> int:
        decodes = 0
        for step in reversed(self.steps):
            if step["admitted"] or step["swapped_in"]:
                break
            decodes += bool(step["decoders"])
        return decodes

    @property
    def num_swapped(self) -> int:
        return sum(r.state == "swapped" for r in self.requests)

    @property
    def num_free_blocks(self) -> int:
        return self.num_blocks - sum(r.num_blocks for r in self.requests)

    @property
    def num_free_host_blocks(self) -> int:
        on_host = (r for r in self.requests if r.state == "swapped")
        return self.scenario.memory.num_host_blocks - sum(cdiv(r.num_computed_tokens, self.block_size) for r in on_host)

    step_tokens = None
    note: object = None
    caches_prefixes = False
    drafting = None
    groups = None

    def decoding_last_first(self) -> None:
        """No list is kept: a policy sorts."""

    def block_takers(self) -> list[RequestView]:
        return [request for request in self.batch if request.state == "decoding" and self.grows(request) > 0]

    def blocks_freed(self, requests: Sequence[RequestView]) -> int:
        return sum(request.num_blocks for request in requests)

    @property
    def late_blocks(self) -> tuple[int, ...]:
        ahead = range(1, self.traits.frees_late + 1)
        return tuple(sum(r.num_blocks for r in self.requests if r.plans_to_free == n) for n in ahead)

    def recompute_s(self, request: RequestView, *, mixed: bool = True) -> float | None:
        decodes = self.going_on() if mixed else StepShape(0, 0)
        tokens = request.num_tokens
        both = StepShape(*decodes[:2], 1, tokens, tokens)
        return self.scenario.cost.step_s(both) - self.scenario.cost.step_s(decodes)

    def swap_s(self, request: RequestView) -> float | None:
        alone_s = self.scenario.cost.step_s(self.going_on())
        return 2 * (self.with_swap(alone_s, request.num_blocks) - alone_s)

    def going_on(self) -> StepShape:
        decoding = [r for r in self.batch if r.state == "decoding" and r not in self.paused]
        context = sum(r.num_computed_tokens + 1 for r in decoding)
        held = sum(r.num_computed_tokens + 1 + r.extra_context for r in self.held)
        return StepShape(len(decoding) + len(self.held), context + held)

    def with_swap(self, seconds: float, blocks: int) -> float:
        moving_s = blocks * self.scenario.swap_s_per_block
        return max(seconds, moving_s) if self.scenario.swap_overlap else seconds + moving_s

    def known_outputs(self, request: RequestView) -> int:
        return len(cast("NaiveRequest", request).token_s)

    def prefix_matches(self) -> PrefixMatches:
        raise NotImplementedError("without a prefix cache")

    def prefix_hits(self, request: RequestView) -> tuple[int, int]:
        return 0, 0

    @property
    def decode_blocks_needed(self) -> int:
        return sum(self.grows(r) for r in self.batch if r.state == "decoding")

    def grows(self, request: NaiveRequest) -> int:
        """Blocks that one token more takes."""
        after = cdiv(max(request.num_computed_tokens + 1, request.reserved_tokens), self.block_size)
        return after - request.num_blocks

    # Serving

    def serve(self, arrivals: list[Request]) -> None:
        """All of it, from the first arrival to the last token."""
        coming = list(arrivals)
        while True:
            while coming and coming[0].arrival_s <= self.now_s:
                self.arrive(coming.pop(0))
            for request in self.requests:
                request.plans_to_free = max(0, request.plans_to_free - 1)
            self.queue.look(self.now_s)
            plan = self.policy.plan(self)
            self.note = plan.note
            if self.takes_no_time(step := self.apply(plan)):
                self.changed_before |= step is not None
                self.victims_before += [] if step is None else step["preempted"]
                continue
            if step is not None:
                if self.victims_before:
                    step["preempted_before"], self.victims_before = self.victims_before, []
                step["changed_before"], self.changed_before = self.changed_before, False
            if step is None:
                wakes = [r.arrival_s for r in coming[:1]]
                wakes += [] if plan.wait_until_s is None else [plan.wait_until_s]
                if not wakes:
                    return
                self.now_s = min(wakes)
                continue
            end_s = self.now_s + self.seconds(step)
            while coming and coming[0].arrival_s <= end_s:
                self.arrive(coming.pop(0))
            self.commit(step, end_s)
            self.now_s = end_s

    def takes_no_time(self, step: dict[str, Any] | None) -> bool:
        """Whether the next is planned at once."""
        if step is None:
            return any(r.plans_to_free for r in self.requests)
        does_nothing = not any(step[key] for key in ("tokens", "swapped_out_blocks", "swapped_in_blocks"))
        return self.traits.skips_empty_steps and does_nothing

    def arrive(self, request: Request) -> None:
        naive = NaiveRequest(request, self.block_size)
        self.requests.append(naive)
        largest = naive.input_tokens + naive.true_output_tokens - 1
        refuses = getattr(self.policy, "refuses", None)
        if cdiv(largest, self.block_size) > self.num_blocks:
            naive.reason = "memory"
        elif refuses is not None:
            naive.reason = refuses(naive, self.num_blocks, self.block_size)
        if naive.reason is not None:
            naive.state = "rejected"
        else:
            self.queue.push(naive)

    def apply(self, plan: StepPlan) -> dict[str, Any] | None:
        """The step that the plan makes, as what is known of it before it runs; None if there is nothing to do."""
        out = back = 0
        paused_before = [r for r in self.batch if r in self.paused]
        for preemption in plan.preempt:
            out += self.leave(cast("NaiveRequest", preemption.request), swap=preemption.swap)
        self.paused = [cast("NaiveRequest", view) for view in plan.paused]
        repaused = [r for r in paused_before if r.state == "decoding"] != self.paused
        for view in plan.resume:
            back += self.come_back(cast("NaiveRequest", view))
        chunks: list[tuple[NaiveRequest, int, int]] = []
        admitted = []
        for chunk in plan.prefill:
            request = cast("NaiveRequest", chunk.request)
            if request.state == "waiting":
                admitted.append(request)
                self.enter(request, chunk.reserve_tokens, chunk.padding_tokens)
            padded = min(chunk.num_tokens, max(0, request.padding_tokens - request.num_computed_tokens))
            chunks.append((request, chunk.num_tokens, padded))
        for view in plan.to_end:
            self.batch.remove(cast("NaiveRequest", view))
            self.batch.append(cast("NaiveRequest", view))
        if plan.requeue is not None:
            self.queue.requeue(list(plan.requeue))
        decoding = [r for r in self.batch if r.state == "decoding" and r not in self.paused] if plan.decode else []
        changes = plan.preempt or plan.resume or plan.prefill or repaused or decoding
        if not changes and (self.traits.overlap_scheduling or not self.traits.async_scheduling):
            return None
        computed = {r: (n - p) for r, n, p in chunks if n > p} | dict.fromkeys(decoding, 1)
        held = list(self.held) if decoding else []
        return {
            "t_start_s": self.now_s,
            "chunks": chunks,
            "decoding": decoding,
            "held": held,
            "slots": min(len(self.batch) + len(self.held), self.policy.max_num_seqs),
            "num_held": len(self.held),
            "scheduled": {r.request_id: computed[r] for r in self.batch if r in computed},
            "admitted": {r.request_id: 0 for r in admitted},
            "preempted": [p.request.request_id for p in plan.preempt],
            "swapped_out": [p.request.request_id for p in plan.preempt if p.swap],
            "swapped_in": [view.request_id for view in plan.resume],
            "running": [r.request_id for r in self.batch],
            "waiting": [r.request_id for r in self.queue.ordered()],
            "swapped": sum(r.state == "swapped" for r in self.queue.waiting),
            "swapped_out_blocks": out,
            "swapped_in_blocks": back,
            "tokens": len(decoding) + len(held) + sum(n for _, n, _ in chunks),
            "padded_tokens": len(held) + sum(p for _, _, p in chunks),
            "context": sum(r.num_computed_tokens + 1 + r.extra_context for r in decoding + held)
            + sum(r.num_computed_tokens + n for r, n, _ in chunks if n),
        }

    def leave(self, request: NaiveRequest, *, swap: bool) -> int:
        assert request in self.batch
        blocks = request.num_blocks
        self.batch.remove(request)
        request.num_preemptions += 1
        request.left_s = self.now_s
        if swap:
            assert request.state == "decoding"
            assert request.num_blocks <= self.num_free_host_blocks
            request.state = "swapped"
            request.swapped_out_blocks += blocks
        else:
            request.recomputed_tokens += max(0, request.num_computed_tokens - request.padding_tokens)
            request.num_computed_tokens = request.reserved_tokens = request.padding_tokens = 0
            request.state = "waiting"
        self.queue.push(request, front=not self.traits.victims_last)
        return blocks if swap else 0

    def come_back(self, request: NaiveRequest) -> int:
        self.queue.remove(request)
        self.batch.append(request)
        request.state = "decoding"
        request.waits.append((request.left_s, self.now_s, True))
        request.swapped_in_blocks += request.num_blocks
        return request.num_blocks

    def enter(self, request: NaiveRequest, reserve: int, padding: int) -> None:
        self.queue.remove(request)
        self.batch.append(request)
        request.state = "prefilling"
        request.reserved_tokens, request.padding_tokens = reserve, padding
        if self.traits.takes_whole_prompt:
            request.reserved_tokens = request.num_tokens
        if request.scheduled_s != request.scheduled_s:
            request.scheduled_s = self.now_s
        else:
            request.waits.append((request.left_s, self.now_s, False))

    def seconds(self, step: dict[str, Any]) -> float:
        decodes = step["decoding"] + step["held"]
        chunks = [(r, n) for r, n, _ in step["chunks"] if n]
        contexts = [r.num_computed_tokens + 1 + r.extra_context for r in decodes]
        shape = StepShape(
            len(decodes),
            sum(contexts),
            len(chunks),
            sum(n for _, n in chunks),
            sum(r.num_computed_tokens + n for r, n in chunks),
            sum(n * r.num_computed_tokens + n * (n + 1) // 2 for r, n in chunks),
            max(contexts, default=0),
            sum(context * context for context in contexts),
            max((r.num_computed_tokens + n for r, n in chunks), default=0),
        )
        swapped = step["swapped_out_blocks"] + step["swapped_in_blocks"]
        seconds = self.scenario.cost.step_s(shape)
        return self.with_swap(seconds, swapped) if swapped else seconds

    def commit(self, step: dict[str, Any], end_s: float) -> None:
        for request in step["decoding"]:
            request.num_computed_tokens += 1
            request.token_s.append(end_s)
        for request in step["held"]:
            request.extra_context += 1
        for request, n, _ in step["chunks"]:
            request.num_computed_tokens += n
        used = self.num_blocks - self.num_free_blocks
        assert 0 <= used <= self.num_blocks
        for request, _, _ in step["chunks"]:
            if request.num_tokens_to_compute == 0:
                request.token_s.append(end_s)
                request.state = "decoding"
                if self.traits.takes_whole_prompt:
                    request.reserved_tokens = 0
        done = [r for r in self.batch if len(r.token_s) == r.true_output_tokens]
        for request in done:
            self.batch.remove(request)
            self.held.append(request)
            request.state = "finished"
        if self.held and not (self.traits.keeps_finished and self.batch):
            for request in self.held:
                request.released_s = end_s
                request.plans_to_free = self.traits.frees_late and self.traits.frees_late + 1
            self.held.clear()
        self.steps.append(
            {key: value for key, value in step.items() if key not in ("chunks", "decoding", "held")}
            | {
                "replica": self.index,
                "step": len(self.steps),
                "t_end_s": end_s,
                "decoders": [r.row for r in step["decoding"]],
                "prefilling": sum(n > 0 for _, n, _ in step["chunks"]),
                "only_decodes": not step["chunks"],
                "finished": [r.request_id for r in done],
                "num_free_blocks": self.num_blocks - used,
                "num_free_blocks_end": self.num_free_blocks,
            }
        )


def serve(scenario: Scenario) -> list[NaiveReplica]:
    """The whole scenario, dealt out in turn where there are several replicas."""
    assert scenario.replicas == 1 or scenario.router == "round_robin"
    from tests.laws.naive_async import NaiveAsyncReplica, NaiveOverlapReplica

    traits: Traits = getattr(scenario.policy, "traits", Traits())
    make = NaiveAsyncReplica if traits.async_scheduling else NaiveReplica
    if traits.overlap_scheduling:
        make = NaiveOverlapReplica
    requests = list(scenario.workload.requests())
    replicas = []
    for index in range(scenario.replicas):
        replica = make(scenario, scenario.policy, index)
        replica.serve(requests[index :: scenario.replicas])
        replicas.append(replica)
    return replicas
