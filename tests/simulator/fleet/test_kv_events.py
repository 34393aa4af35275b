"""Routers that hear of the prefix caches by events, some time late."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

import scenarios
from simulator.errors import InputError
from simulator.fleet.group import ReplicaGroup
from simulator.fleet.routers import load_router
from simulator.fleet.signals import HeardCache
from simulator.memory.ledger import PrefixLedger
from simulator.memory.radix_cache import RadixCache
from simulator.policies import load_policy
from simulator.simulate import Run, simulate_fleet
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import Memory
from tests.laws.test_late_fills import SIZE, telling
from tests.scenarios.runs.test_runner import small

SPACING_S = 0.125


def served(router: Any, seed: int = 0, *, num_blocks: int = 60, policy: str = "chunked_prefill", **options: Any) -> Run:
    """Requests of which answers too are found by others, one every `SPACING_S`, on two small caches."""
    workload = telling(np.random.default_rng(seed), 60)
    workload = replace(workload, arrival_s=np.linspace(0.0, 59 * SPACING_S, 60))
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64} if policy == "chunked_prefill" else {}
    kind = PrefixLedger if policy == "chunked_prefill" else RadixCache
    group = ReplicaGroup(
        lambda: load_policy(policy, limits),
        Memory(num_blocks + 1, SIZE),
        Linear(0.011, 2e-4, 1e-6),
        make_blocks=partial(kind, block_size=SIZE),
        replicas=2,
    )
    return simulate_fleet(workload, [group], router=router, log_decisions=True, **options)


def there(cache: Any) -> set[int]:
    """The names of all blocks that are cached; of a radix tree none."""
    if not isinstance(cache, PrefixLedger):
        return set()
    return {run.text + run.start + at for run in cache._serving.checked() for at in range(run.size)}


class Hearing:
    """Takes replicas in turn, and notes what it has heard of each cache and what is there."""

    reads_caches: ClassVar = True
    hears_caches: ClassVar = True

    def __init__(self, lag_s: float) -> None:
        self.kv_event_lag_s = lag_s
        self.caches: Mapping[int, HeardCache] = {}
        self.heard: list[list[set[Any]]] = []
        self.there: list[list[set[Any]]] = []

    def listen(self, caches: Mapping[int, HeardCache]) -> None:
        self.caches = caches

    def choose(self, request: Any, replicas: Any) -> Any:
        told = [cache.cached_tokens(request) for cache in self.caches.values()]
        assert told == [load.cached_tokens(request) for load in replicas]
        if not self.kv_event_lag_s:
            assert told == [cache._state.cached_tokens(request) for cache in self.caches.values()]
        self.heard.append([set(cache._copies) for cache in self.caches.values()])
        self.there.append([there(cache._cache) for cache in self.caches.values()])
        return replicas[request.row % 2]


@pytest.mark.parametrize("seed", range(3))
def test_what_is_heard_is_what_was_there(seed: int) -> None:
    """With a lag of four arrivals and a little, all that was there before the fourth last arrival."""
    at_once, late = Hearing(0.0), Hearing(4 * SPACING_S + 1e-6)
    for router in (at_once, late):
        served(router, seed)
    assert at_once.heard == at_once.there
    assert late.there == at_once.there
    assert late.heard[4:] == late.there[:-4]
    assert late.heard[3] == [set(), set()]
    assert any(now - before and before - now for (now, _), (before, _) in zip(late.there, late.heard, strict=True))


@pytest.mark.parametrize("name", ["prefix_affinity", "weighted", "dynamo_kv"])
def test_a_lag_longer_than_the_run_is_no_knowledge_at_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choices(lag_s: float, **options: Any) -> list[int]:
        router = load_router(name, {"knowledge": "exact", "kv_event_lag_s": lag_s})
        return list(served(router, **options).records.requests.replica)

    at_once, late, never = choices(0.0), choices(1.0), choices(1e6)
    assert at_once != late != never
    assert choices(1e-9) == at_once
    assert choices(1.0, fast_forward=False) == late
    monkeypatch.setattr("simulator.engine.admission.ReplicaLoad.cached_tokens", lambda *_: 0)
    assert choices(0.0) == never


def test_without_events_nothing_is_told() -> None:
    approximate = {"kind": "dynamo_kv", "knowledge": "approximate", "kv_event_lag_s": 1.0}
    with pytest.raises(InputError, match="kv_event_lag_s is of knowledge: exact"):
        scenarios.load(small(replicas=2, router=approximate))


@pytest.mark.parametrize("num_blocks", [60, 400])
def test_a_radix_tree_tells_its_pages(num_blocks: int) -> None:
    """At once the index has what the tree has; with a lag what it had."""
    at_once, late = Hearing(0.0), Hearing(4 * SPACING_S + 1e-6)
    for router in (at_once, late):
        served(router, num_blocks=num_blocks, policy="sglang")
    assert any(any(heard) for heard in at_once.heard)
    assert late.heard[4:] == at_once.heard[:-4]


def test_kv_aware_goes_where_a_conversation_began() -> None:
    router = load_router("vllm_kv_aware", {"chunk_size": SIZE, "kv_aware_threshold": 24})
    run = served(router, num_blocks=400)
    requests = run.records.requests
    blind = served("round_robin", num_blocks=400).records.requests
    assert requests.cached_tokens.sum() > 1.1 * blind.cached_tokens.sum()
    assert run.decisions == served(load_router("vllm_kv_aware", {"chunk_size": SIZE, "kv_aware_threshold": 24}),
                                   num_blocks=400, fast_forward=False).decisions  # fmt: skip


def test_a_chunk_smaller_than_a_block_is_not_there() -> None:
    """Its end lies in a block that is not full yet, so a router that asks chunk by chunk finds nothing."""
    small_chunks, fewest = (served(load_router("vllm_kv_aware", {"chunk_size": size, "kv_aware_threshold": 24}),
                                   num_blocks=400).decisions for size in (SIZE // 2, 65_536))  # fmt: skip
    assert small_chunks == fewest
