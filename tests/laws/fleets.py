"""Random fleets for the laws: groups of unlike policies, memories and costs under every router."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from simulator.fleet.group import ReplicaGroup
from simulator.fleet.router import Router
from simulator.fleet.routers import built_in_routers, load_router, router_parameters
from simulator.memory.blocks import BlockLedger
from simulator.memory.ledger import PrefixLedger
from simulator.plan import Traits
from simulator.simulate import Run, simulate_fleet
from simulator.workload import Workload
from tests.laws.caching import caching_scenarios
from tests.laws.scenarios import POLICIES, Memory, Scenario, policies, scenarios, values

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "power_of_two": [{}, {"choices": 1}, {"choices": 3}],
    "session_affinity": [{"virtual_nodes": 3}],
    "prefix_affinity": [
        {"block_size": 1, "cache_threshold": 0.0},
        {"block_size": 4, "balance_abs_threshold": 1, "max_blocks": 5},
        {"knowledge": "exact", "cache_threshold": 0.1},
        {"knowledge": "exact", "cache_threshold": 0.0, "kv_event_lag_s": 0.05},
    ],
    "dynamo_kv": [
        {"block_size": 4, "kv_event_lag_s": 0.02},
        {"block_size": 2, "knowledge": "approximate", "ttl_s": 0.5},
        {"block_size": 4, "temperature": 0.5, "overlap_score_credit": 2.0, "decode_active_request_weight": 1.0},
        {"block_size": 2, "overlap_score_credit_decay": 3.0},
    ],
    "llm_d": [{"block_size": 2, "max_blocks": 9}, {"block_size": 4, "queue": 0.0, "kv": 0.0, "lora": 1.0}],
    "prefix_hash": [{"prefix_tokens": 2, "virtual_nodes": 3}, {"prefix_tokens": 4, "overflow": "ring"}],
    "ray_prefix_aware": [{"block_size": 2, "imbalanced_threshold": 1}, {"block_size": 1, "max_blocks": 9}],
    "sglang_bucket": [{"balance_abs_threshold": 9, "bucket_adjust_interval_secs": 1}],
    "sglang_cache_aware": [{"block_size": 1, "balance_abs_threshold": 1}, {"max_tree_size": 9, "block_size": 1}],
    "vllm_kv_aware": [{"chunk_size": 4, "kv_aware_threshold": 8}, {"chunk_size": 5, "kv_event_lag_s": 0.05}],
    "vllm_load_aware": [{"chunk_size": 4, "beta": 0.3}, {"chunk_size": 5, "named": "stored", "kv_event_lag_s": 0.05}],
    "vllm_prefix_aware": [{"block_size": 2, "prefix_min_match_length": 16}, {"block_size": 1, "max_blocks": 9}],
    "weighted": [
        {"block_size": 2, "queue": 1.0, "session": 0.5},
        {"kv": 3.0, "prefix": 0.0},
        {"knowledge": "exact", "prefix": 2.0},
    ],
}
"""Settings of routers that small fleets can tell from one another; other routers draw theirs from their limits."""


@dataclass(frozen=True)
class Fleet:
    """All that `simulate_fleet` needs; `groups` share requests. Each run makes a router of its own."""

    workload: Workload
    groups: list[ReplicaGroup]
    router: str
    options: dict[str, Any]
    signal_interval_s: float = 0.0

    def new_router(self) -> Router:
        return load_router(self.router, self.options)

    def run(self, *, router: Router | None = None, fast_forward: bool = True) -> Run:
        return simulate_fleet(
            self.workload,
            self.groups,
            router=router or self.new_router(),
            signal_interval_s=self.signal_interval_s,
            fast_forward=fast_forward,
            log_decisions=True,
        )


def _streams(name: str, policy: Any) -> bool:
    return bool(getattr(policy, "traits", Traits()).streams)


@st.composite
def groups(draw: st.DrawFn, scenario: Scenario, *, cached: bool) -> list[ReplicaGroup]:
    """One to three groups, the first as the scenario has it; answers stream everywhere, or nowhere."""
    found = [_group(draw, scenario, scenario.policy, cached, "a")]
    names = [name for name in POLICIES if not cached or name.startswith("chunked_prefill")]
    for name in "bc"[: draw(st.integers(0, 2))]:
        policy = draw(st.sampled_from(names).flatmap(policies))
        if _streams(name, policy) != _streams("a", scenario.policy):
            continue
        blocks = scenario.memory.num_gpu_blocks + draw(st.sampled_from([0, 0, 7, 100]))
        cost = replace(scenario.cost, base_s=scenario.cost.base_s * draw(st.sampled_from([0.5, 1.0, 3.0])))
        memory = Memory(blocks, scenario.memory.block_size, scenario.memory.num_host_blocks)
        found.append(_group(draw, replace(scenario, memory=memory, cost=cost), policy, cached, name))
    return found


def _group(draw: st.DrawFn, scenario: Scenario, policy: Any, cached: bool, name: str) -> ReplicaGroup:
    make_blocks = partial(PrefixLedger, block_size=scenario.memory.block_size) if cached else BlockLedger
    return ReplicaGroup(
        lambda: policy,
        scenario.memory,
        scenario.cost,
        scenario.swap_s_per_block,
        scenario.swap_overlap,
        make_blocks=make_blocks,
        replicas=draw(st.integers(1, 3)),
        name=name,
    )


@st.composite
def _options(draw: st.DrawFn, router: str) -> dict[str, Any]:
    return {key: draw(values(parameter)) for key, parameter in router_parameters(router).items()}


@st.composite
def fleets(draw: st.DrawFn, *, router: str | None = None, max_requests: int = 15, cached: bool | None = None) -> Fleet:
    """A fleet under a router, a third of them with prefix caches, or as `cached` says; sessions, signals of any age."""
    cached = draw(st.sampled_from([False, False, True])) if cached is None else cached
    if cached:
        scenario = draw(caching_scenarios(max_requests=max_requests))
    else:
        scenario = draw(st.sampled_from(POLICIES).flatmap(partial(scenarios, max_requests=max_requests)))
    count = len(scenario.workload)
    sessions = [draw(st.sampled_from([None, "a", "b", "c"])) for _ in range(count)]
    chosen = router or draw(st.sampled_from(built_in_routers()[::-1]))
    return Fleet(
        replace(scenario.workload, session_ids=sessions),
        draw(groups(scenario, cached=cached)),
        chosen,
        draw(st.sampled_from(OPTIONS[chosen]) if chosen in OPTIONS else _options(chosen)),
        draw(st.sampled_from([0.0, 0.0, 0.0037, 0.05, 1.0])),
    )


def total(columns: np.ndarray[Any, Any]) -> int:
    """The sum of a column."""
    return int(columns.sum())
