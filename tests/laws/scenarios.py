"""Random small scenarios for the laws: every policy, tight memory, ties, bursts, lulls, priorities, replicas."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.fleet.routers import built_in_routers
from simulator.memory.blocks import BlockLedger, KVBlocks
from simulator.parameters import Parameter
from simulator.plan import Policy, Traits
from simulator.policies import built_in_policies, load_policy, policy_class, policy_parameters
from simulator.request import Request
from simulator.simulate import Run, simulate
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.columns import workload_of

# Settings that make another kind of policy, with laws of its own: by name, what they set.
VARIANTS: dict[str, dict[str, Any]] = {
    "chunked_prefill async": {"async_scheduling": True},
    "chunked_prefill cadence": {"prefill_schedule_interval": 4},
    "sglang delayer": {"enable_prefill_delayer": True, "prefill_max_requests": 3},
    "sglang interval": {"scheduler_recv_interval": 3},
    "sglang sync": {"async_scheduling": False},
    "tensorrt_llm waiting": {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5},
    "tensorrt_llm async": {"async_scheduling": True},
    "tensorrt_llm max_utilization": {"capacity_policy": "max_utilization"},
    "tensorrt_llm static_batch": {"capacity_policy": "static_batch"},
    "tgi chunked": {"enable_chunked_prefill": True},
}
# Policies that leave a request waiting though there are slot, memory and budget.
LEAVING_SLOTS = (
    *("chunked_prefill cadence", "sglang delayer", "sglang interval", "static"),
    *("tensorrt_llm static_batch", "tensorrt_llm waiting", "tgi", "tgi chunked"),
)
# Policies that rest while a request waits, until a time of their own.
RESTING = ("static",)
# Memory on demand, but admissions depend on what the max_tokens of all may still come to.
RECKONING = ("sglang", "sglang delayer", "sglang interval", "sglang sync")
# Parameters left at their defaults: they refuse requests, or bound the batch below max_num_seqs, and the laws speak of
# what is served and of all slots. Their own tests vary them.
HELD = (
    *("enable_chunked_prefill", "max_batch_total_tokens", "max_num_active_seqs"),
    *("long_prefill_token_threshold_adaptive", "version", "max_loras", "max_image_embeddings"),
)


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
    inputs, outputs = [given for given, _ in lengths], [output for _, output in lengths]
    return workload_of(arrival_s, inputs, outputs, max_tokens, priority or 0)


def make_policy(name: str, seqs: int, budget: int, **options: Any) -> Policy:
    """A built-in policy, or one of `VARIANTS`, with its two common parameters and others."""
    common = {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
    return load_policy(kind(name), {**common, **VARIANTS.get(name, {}), **options})


def kind(name: str) -> str:
    """The built-in policy that a name of `POLICIES` stands for."""
    return name.partition(" ")[0]


def takes(name: str, parameter: str) -> bool:
    """Whether the policy has this parameter."""
    return parameter in policy_parameters(policy_class(kind(name)))


def _every_policy() -> tuple[str, ...]:
    """Every built-in policy but those that are another under a second name, and the variants."""
    classes = {name: policy_class(name) for name in built_in_policies()}
    others = [name for name, cls in classes.items() if not any(base in classes.values() for base in cls.__mro__[1:])]
    return (*others, *VARIANTS)


def _reserves(name: str) -> bool:
    """Whether the policy wants memory for prompt and max_tokens from the start: it refuses what can never get that."""
    refuses = getattr(make_policy(name, 4, 1000), "refuses", None)
    few, many = (Request(0, "0", 0.0, 1, 1, max_tokens) for max_tokens in (1, 500))
    return refuses is not None and refuses(few, 100, 1) is None and refuses(many, 100, 1) is not None


def _overlaps(name: str) -> bool:
    """Whether the policy plans a step while the one before runs: results count for the plan after the next."""
    return _traits(name).async_scheduling


def _traits(name: str) -> Traits:
    traits: Traits = getattr(make_policy(name, 4, 1000), "traits", Traits())
    return traits


def _swaps(name: str) -> bool:
    """Whether the policy may move KV to the host."""
    return bool(getattr(policy_class(kind(name)), "swaps", False))


POLICIES = _every_policy()
SWAPPING = tuple(name for name in POLICIES if _swaps(name))
RESERVING = tuple(name for name in POLICIES if _reserves(name))
OVERLAPPING = tuple(name for name in POLICIES if _overlaps(name))
# The blocks of the whole prompt from the start; blocks of who has finished come free so many plans later.
WHOLE_PROMPT = tuple(name for name in POLICIES if _traits(name).takes_whole_prompt)
FREEING_LATE = tuple(name for name in POLICIES if _traits(name).frees_late)

# Values for parameters of every type; a parameter draws from those within its limits. Fractions are small: a share of
# the memory that is kept free refuses requests where it comes to a block of a small memory.
_VALUES = (None, False, True, -1, 0, 1, 2, 3, 5, 9, 20, 40, 256, 1000, 0.001, 0.01, 0.05, 1.2, 3.0)


def values(parameter: Parameter) -> st.SearchStrategy[Any]:
    """Small values within the parameter's limits, the default among them."""
    if parameter.name == "order":
        return st.sampled_from(["fcfs", "fcfs", "priority"])
    found = [value for value in (*_VALUES, *parameter.words) if parameter.refusal(value) is None]
    return st.sampled_from([parameter.default, *found])


@st.composite
def policies(draw: st.DrawFn, name: str) -> Policy:
    """A policy of that name; its random parameters are those that its fields declare."""
    seqs = draw(st.sampled_from([1, 2, 3, 5, 8, 16]))
    budget = draw(st.sampled_from([4, 7, 16, 33, 64, 256]))
    fixed = {"max_num_seqs", "max_num_batched_tokens", *HELD}
    fixed.update(key for variant, setting in VARIANTS.items() if kind(variant) == kind(name) for key in setting)
    policy = make_policy(name, seqs, budget)
    options: dict[str, Any] = {}
    for key, parameter in policy_parameters(policy_class(kind(name))).items():
        if key not in fixed:
            more = {**options, key: draw(values(parameter))}
            with suppress(InputError):  # does not go with those before
                policy, options = make_policy(name, seqs, budget, **more), more
    return policy


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
    if hasattr(policy_class(kind(name)), "caps"):
        blocks += 4  # enough for the longest answer: it would be cut short, and the laws speak of whole ones
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
        router=draw(st.sampled_from(built_in_routers()[::-1])),  # round_robin first: the plainest
    )


def scaled(scenario: Scenario, factor: float) -> Scenario:
    """All costs and arrival times times `factor`: a power of two scales exactly."""
    cost, policy = scenario.cost, scenario.policy
    given = {key: getattr(policy, key) for key in policy_parameters(type(policy)) if key.endswith(("_s", "_ms"))}
    times: Any = {key: value * factor for key, value in given.items() if value is not None}
    return replace(
        scenario,
        workload=replace(scenario.workload, arrival_s=scenario.workload.arrival_s * factor),
        policy=replace(policy, **times),  # type: ignore[type-var] # policies are dataclasses
        cost=Linear(cost.base_s * factor, cost.per_token_s * factor, cost.per_context_token_s * factor),
        swap_s_per_block=scenario.swap_s_per_block * factor,
    )
