"""Random small scenarios for the laws: every policy, tight memory, ties, bursts, lulls, priorities, replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.plan import Policy
from simulator.policies import load_policy
from simulator.policies.fastserve import Fastserve
from simulator.policies.parts.preemption import MODES
from simulator.policies.parts.victims import VICTIMS
from simulator.policies.static import Static
from simulator.simulate import Run, simulate
from simulator.timing.linear import Linear
from simulator.workload import Workload

POLICIES = (
    "static",
    "continuous",
    "chunked_prefill",
    "chunked_prefill async",
    "preemptive",
    "orca",
    "vllm_v0",
    "sarathi",
    "fastgen",
    "tensorrt_llm",
    "tensorrt_llm max_utilization",
    "tensorrt_llm static_batch",
    "tgi",
    "fastserve",
    "sglang",
)
# Memory for prompt and max_tokens, from the start.
RESERVING = ("static", "orca", "tensorrt_llm", "tensorrt_llm static_batch", "tgi")
# Memory on demand, but who enters depends on what everybody's max_tokens may still come to.
RECKONING = ("sglang",)
# Who plans a step while the one before it runs: results count for the plan after the next.
OVERLAPPING = ("chunked_prefill async",)
# Who lets somebody wait though there are slot, memory and budget.
LEAVING_SLOTS = ("static", "tensorrt_llm static_batch", "tgi")


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of one replica."""

    num_gpu_blocks: int
    block_size: int
    num_host_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that `simulate` needs."""

    workload: Workload
    policy: Policy
    memory: Memory
    cost: Linear
    swap_s_per_block: float = 0.0
    swap_overlap: bool = False
    replicas: int = 1
    router: str = "round_robin"

    def new_policy(self) -> Policy:
        """A built-in policy remembers nothing: its file need not be read again."""
        return self.policy

    def on(self, workload: Workload) -> Scenario:
        """The same for other requests."""
        return replace(self, workload=workload)

    def run(
        self,
        *,
        fast_forward: bool = True,
        log_decisions: bool = False,
        make_blocks: Callable[[int, int], KVBlocks] = BlockLedger,
        make_policy: Callable[[], Policy] | None = None,
    ) -> Run:
        return simulate(
            self.workload,
            make_policy=make_policy or (lambda: self.policy),
            kv=self.memory,
            cost=self.cost,
            swap_s_per_block=self.swap_s_per_block,
            swap_overlap=self.swap_overlap,
            make_blocks=make_blocks,
            replicas=self.replicas,
            router=self.router,
            fast_forward=fast_forward,
            log_decisions=log_decisions,
        )


def make_workload(
    arrival_s: list[float],
    lengths: list[tuple[int, int]],
    *,
    priority: list[int] | None = None,
    max_tokens: int | None = None,
) -> Workload:
    """A workload of (input, output) lengths; the cap on the output is the largest unless given."""
    outputs = [output for _, output in lengths]
    count = len(lengths)
    cap = max(outputs, default=1) if max_tokens is None else max_tokens
    return Workload(
        arrival_s=np.array(arrival_s, dtype=np.float64),
        input_tokens=np.array([given for given, _ in lengths], dtype=np.int64),
        output_tokens=np.array(outputs, dtype=np.int64),
        max_tokens=np.full(count, cap, dtype=np.int64),
        priority=np.array(priority or [0] * count, dtype=np.int64),
        class_index=np.zeros(count, dtype=np.int64),
    )


def make_policy(name: str, seqs: int, budget: int, **options: Any) -> Policy:
    """A built-in policy with its two common parameters; a word after its name is the capacity policy, or `async`."""
    name, _, word = name.partition(" ")
    if word == "async":
        options["async_scheduling"] = True
    elif word:
        options["capacity_policy"] = word
    return load_policy(name, {"max_num_seqs": seqs, "max_num_batched_tokens": budget, **options})


@st.composite
def policies(draw: st.DrawFn, name: str) -> Policy:
    """A policy of that name with random parameters."""
    seqs = draw(st.sampled_from([1, 2, 3, 5, 8, 16]))
    budget = draw(st.sampled_from([4, 7, 16, 33, 64, 256]))
    options: dict[str, Any] = {}
    if name == "static":
        options["batch_timeout_s"] = draw(st.sampled_from([0.0, 0.01, 0.1]))
        options["stream"] = draw(st.booleans())
    elif name.startswith("chunked_prefill"):
        options["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 2, 9]))
        options["watermark"] = draw(st.sampled_from([0.0, 0.0, 0.1]))
        options["reserve_full_isl"] = draw(st.booleans())
        options["order"] = draw(st.sampled_from(["fcfs", "priority"]))
    elif name == "preemptive":
        options["preemption_mode"] = draw(st.sampled_from(MODES))
        if options["preemption_mode"] != "pause":
            options["victim"] = draw(st.sampled_from([None, *VICTIMS]))
    elif name in ("orca", "vllm_v0", "sarathi", "fastgen"):
        options["order"] = draw(st.sampled_from(["fcfs", "fcfs", "priority"]))
        if name in ("vllm_v0", "sarathi"):
            options["watermark"] = draw(st.sampled_from([0.0, 0.01, 0.05]))
        if name == "vllm_v0":
            options["preemption_mode"] = draw(st.sampled_from(["recompute", "swap", "auto"]))
            options["victim"] = draw(st.sampled_from([None, *VICTIMS]))
    elif name.startswith("tensorrt_llm"):
        options["order"] = draw(st.sampled_from(["fcfs", "fcfs", "priority"]))
    elif name == "tgi":
        options["order"] = draw(st.sampled_from(["fcfs", "fcfs", "priority"]))
        options["waiting_served_ratio"] = draw(st.sampled_from([0.0, 0.3, 1.0, 1.2]))
        options["max_waiting_tokens"] = draw(st.sampled_from([1, 2, 20]))
        options["max_batch_prefill_tokens"] = draw(st.sampled_from([None, 3, 20, 1000]))
    elif name == "sglang":
        options["order"] = draw(st.sampled_from(["fcfs", "fcfs", "priority"]))
        options["chunked_prefill_size"] = draw(st.sampled_from([None, None, -1, 3, 20, 1000]))
        options["max_prefill_tokens"] = draw(st.sampled_from([None, None, 10, 40]))
        options["enable_mixed_chunk"] = draw(st.booleans())
        options["schedule_conservativeness"] = draw(st.sampled_from([0.0, 0.3, 1.0, 1.5]))
    elif name == "fastserve":
        options["min_quantum_tokens"] = draw(st.sampled_from([1, 1, 2, 5]))
        options["prompt_tokens_per_quantum"] = draw(st.sampled_from([1, 4, 256]))
        options["starve_limit_s"] = draw(st.sampled_from([0.001, 0.01, 0.125, 3.0]))
    return make_policy(name, seqs, budget, **options)


@st.composite
def scenarios(draw: st.DrawFn, name: str, *, max_requests: int = 12) -> Scenario:
    """A scenario for the policy named; about a third of them are short of memory."""
    count = draw(st.integers(1, max_requests))
    longest = draw(st.sampled_from([(6, 3), (20, 12), (12, 40), (60, 30)]))
    lengths = [(draw(st.integers(1, longest[0])), draw(st.integers(1, longest[1]))) for _ in range(count)]
    gaps = [draw(st.sampled_from([0.0, 0.0, 0.001, 0.005, 0.0173, 0.1, 1.0])) for _ in range(count)]
    arrivals = np.cumsum(gaps).tolist()
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    cap = max(output for _, output in lengths)
    largest = max(-(-(given + cap) // block_size) for given, _ in lengths)
    total = sum(-(-(given + output) // block_size) for given, output in lengths)
    blocks = largest + int(draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0])) * total) - draw(st.sampled_from([0, 0, 1]))
    workload = make_workload(arrivals, lengths, priority=[draw(st.integers(0, 2)) for _ in range(count)])
    replicas = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return Scenario(
        workload=workload,
        policy=draw(policies(name)),
        memory=Memory(max(2, blocks + 1), block_size, draw(st.sampled_from([0, 3, 1000]))),
        cost=Linear(draw(st.sampled_from([0.005, 0.0011])), draw(st.sampled_from([0.0, 2e-5])), 5e-7),
        swap_s_per_block=draw(st.sampled_from([0.0, 1e-4])),
        swap_overlap=draw(st.booleans()),
        replicas=replicas,
        router=draw(st.sampled_from(["round_robin", "least_loaded"])),
    )


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """All costs and arrival times times `factor`: a power of two scales exactly."""
    cost = scenario.cost
    policy = scenario.policy
    if isinstance(policy, Static):
        policy = replace(policy, batch_timeout_s=policy.batch_timeout_s * factor)
    elif isinstance(policy, Fastserve):
        policy = replace(policy, starve_limit_s=policy.starve_limit_s * factor)
    return replace(
        scenario,
        workload=replace(scenario.workload, arrival_s=scenario.workload.arrival_s * factor),
        policy=policy,
        cost=Linear(cost.base_s * factor, cost.per_token_s * factor, cost.per_context_token_s * factor),
        swap_s_per_block=scenario.swap_s_per_block * factor,
    )
