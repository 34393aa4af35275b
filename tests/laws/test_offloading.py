"""Laws of KV on the host: requests, blocks and chunks are conserved, and no block is written under a copy."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from simulator import is_compiled
from simulator.engine.itemized_step import ItemizedRequest
from simulator.engine.parts.connected_memory import LOAD, STORE, ConnectedBlocks
from simulator.engine.parts.connector import ConnectedGroups
from simulator.engine.parts.offload import Offloading
from simulator.engine.parts.tiers import Tiering
from simulator.fleet.group import ReplicaGroup
from simulator.hardware.kv_groups import LayerCache
from simulator.hardware.kv_plan import KVPlan, KVSettings, plan_kv
from simulator.memory.blocks import KVBlocks
from simulator.memory.group_tables import NULL, Reach
from simulator.memory.grouped import Hit
from simulator.memory.offload import FurtherTierConfig, OffloadConfig
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.request import PromptContent
from simulator.results.records import Status
from simulator.simulate import Run, simulate_fleet
from simulator.timing.formula_cost import Linear
from tests.columns import workload_of
from tests.laws.test_speculative import Memory, columns
from tests.listening import simulate_listening
from tests.parity.cases import clients

SIZE = 8


class Noting(ConnectedBlocks):
    """Blocks that note which have been taken since `taken` was cleared."""

    def __init__(self, num_blocks: int, num_host_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, num_host_blocks, block_size)
        self.taken: set[int] = set()

    def allocate(self, row: int, num_blocks: int) -> None:
        before = len(self.tables.get(row, ()))
        super().allocate(row, num_blocks)
        self.taken.update(self.tables[row][before:])


class NotingGroups(ConnectedGroups):
    """The same of several KV groups."""

    def __init__(self, plan: KVPlan, num_blocks: int, retention: int | None) -> None:
        super().__init__(plan, num_blocks, retention)
        self.taken: set[int] = set()

    def held(self, row: int) -> set[int]:
        return {block for table in self.tables for block in table.tables.get(row, ()) if block != NULL}

    def admit(self, asked: Reach, hit: Hit) -> None:
        super().admit(asked, hit)
        self.taken |= self.held(asked.row) - {block for own in hit.blocks for block in own}

    def extend(self, asked: Reach, *, admitted: bool = False) -> None:
        before = self.held(asked.row)
        super().extend(asked, admitted=admitted)
        self.taken |= self.held(asked.row) - before


class Watched(Offloading):
    """A connector whose laws are looked at in each step."""

    @property
    def noting(self) -> Noting | ConnectedGroups:
        assert isinstance(self._blocks, (Noting, ConnectedGroups))
        return self._blocks

    @property
    def taken(self) -> set[int]:
        """What has been taken; of compiled groups, which nothing here can inherit from, that is not noted."""
        return self.noting.taken if isinstance(self.noting, (Noting, NotingGroups)) else set()

    @property
    def references(self) -> list[int]:
        return self.noting.references if isinstance(self.noting, Noting) else self.noting.pool.references

    def before(self, now_s: float, busy_until_s: float) -> float:
        ready_s = super().before(now_s, busy_until_s)
        self.noting.check()
        self.tier.check()
        for number, job in self._jobs.items():
            under_way = self.copier.wait([number], -1.0) > ready_s
            if job.kind == STORE and under_way:
                assert self.taken.isdisjoint(job.blocks), "a step writes a block that a store reads"
            if job.kind == LOAD:
                assert all(self.references[block] for block in job.blocks), "a load writes a free block"
            assert all(key in self.tier.chunks for key in job.keys), "a chunk has left under a copy"
        self.taken.clear()
        return ready_s


class WatchedTiers(Tiering, Watched):
    """Such a connector with further tiers."""

    def before(self, now_s: float, busy_until_s: float) -> float:
        ready_s = super().before(now_s, busy_until_s)
        for tier, queues in zip(self.further, self._queues, strict=True):
            tier.check()
            for key in (key for queue in queues for job in queue for key in job.keys):
                assert self.tier.chunks[key] == -1 or self.tier.chunks[key] > 0, "the host lost what a tier copies"
                assert tier.chunks[key] == -1 or tier.chunks[key] > 0, "a tier lost what it copies"
        return ready_s


def further(rng: random.Random) -> FurtherTierConfig:
    """A random tier below the host."""
    size, bandwidth = rng.choice([None, 8, 60]), rng.choice([1e9, 2e10])
    return FurtherTierConfig(size, bandwidth, rng.choice([0.0, 0.01]), rng.choice(["lru", "arc"]))


def serve(
    seed: int,
    *,
    fast_forward: bool = True,
    aborts: bool = False,
    windows: bool = False,
    kind: type[Watched] = Watched,
) -> tuple[Run, list[Watched]]:
    """A random run, and the connector of its replica; every other one has further tiers.

    With `windows` the KV memory has several groups, and no further tiers.
    """
    tiers = seed % 2 == 1 and kind is Watched and not windows
    rng = random.Random(seed)
    count, slots = rng.randint(6, 30), rng.choice([2, 4, 16])
    inputs, outputs = [[rng.randint(1, most) for _ in range(count)] for most in (150, 40)]
    longest = max(map(sum, zip(inputs, outputs, strict=True)))
    groups = [f"g{rng.randrange(4)}" for _ in range(count)]
    whole = workload_of(
        sorted(rng.random() * rng.choice([0.5, 4.0]) for _ in range(count)),
        inputs,
        outputs,
        [n + rng.choice([0, 0, 5]) for n in outputs],
        [rng.randint(0, 2) for _ in range(count)],
        content=[PromptContent(prefix_group=group, prefix_tokens=rng.choice([40, 150])) for group in groups],
    )
    policy = ChunkedPrefill(
        max_num_seqs=slots,
        max_num_batched_tokens=rng.choice([32, 64, 512]),
        order=rng.choice(["fcfs", "priority"]),
        async_scheduling=rng.random() < 0.5,
    )
    config = OffloadConfig(
        rng.choice([4, 20, 200]),
        1 << 21,
        rng.choice([2e9, 5e10]),
        rng.choice([0.0, 0.002]),
        eviction_policy=rng.choice(["lru", "arc"]),
        blocks_per_chunk=rng.choice([1, 2]),
        offload_prompt_only=rng.random() < 0.5,
        store_threshold=0 if tiers else rng.choice([0, 2]),
        sync_load_blocks=rng.choice([0, 4]),
    )
    if tiers:
        kind, config = WatchedTiers, replace(config, tiers=tuple(further(rng) for _ in range(rng.choice([1, 2]))))
    made: list[Watched] = []

    def connector(blocks: Any, overlaps: bool) -> Watched:
        made.append(kind(config, blocks, overlaps=overlaps))
        return made[-1]

    size, spare = -(-longest // SIZE) + 2, rng.choice([0, 4, 30])
    blocks: Callable[[int, int], KVBlocks] = partial(Noting, block_size=SIZE)
    if windows:
        window, retention = rng.choice([SIZE, 3 * SIZE + 1, 60]), rng.choice([0, 0, None, 4 * SIZE])
        kinds = [LayerCache("window", SIZE, 1, 16, window=window), LayerCache("full", SIZE, 1, 16)]
        layers = [kinds[kind] for kind in rng.choice([(0, 1), (0, 0, 0, 1)])]
        settings = KVSettings(longest + 1, SIZE, policy.max_num_batched_tokens, 2, enable_prefix_caching=True)
        needed = len(layers) * size + 2 + spare
        plan = plan_kv(layers, [0], settings, num_gpu_blocks=needed)
        of_groups = ConnectedGroups if is_compiled() else NotingGroups
        size, blocks = needed, lambda usable, host: of_groups(plan, usable, retention)
    group = ReplicaGroup(
        lambda: policy, Memory(size + spare, SIZE), Linear(0.004, 1e-4, 1e-6), make_blocks=blocks,
        connector=connector, has_kv_groups=windows,
    )  # fmt: skip
    gone = [(row, float(whole.arrival_s[row]) + rng.random() * 0.3) for row in range(0, count, 4)] if aborts else []
    run = partial(simulate_listening, make_listener=partial(clients, gone)) if aborts else simulate_fleet
    return run(whole, [group], fast_forward=fast_forward), made


@pytest.mark.parametrize("seed", range(12))
def test_fast_forward_changes_nothing(seed: int) -> None:
    windows = seed % 3 == 0
    fast, slow = (columns(serve(seed, fast_forward=each, windows=windows)[0].records) for each in (True, False))
    for name, column in fast.items():
        np.testing.assert_array_equal(column, slow[name], err_msg=name)


@pytest.mark.parametrize("seed", range(24))
def test_requests_blocks_and_chunks_are_conserved(seed: int) -> None:
    run, (connector,) = serve(seed, aborts=seed % 3 == 0, windows=seed % 4 == 2)
    requests = run.records.requests
    assert ((requests.status == Status.FINISHED) | (requests.status == Status.ABORTED)).all()
    finished = requests.status == Status.FINISHED
    assert seed % 3 == 0 or finished.all()
    blocks = connector.noting
    tables = [table.tables for table in blocks.tables] if isinstance(blocks, ConnectedGroups) else [blocks.tables]
    assert not any(tables)
    assert not blocks.kept
    assert blocks.num_free == blocks.num_blocks
    assert not connector.has_work
    assert connector.tier.num_idle == len(connector.tier.chunks)
    if isinstance(connector, Tiering):
        assert all(tier.num_idle == len(tier.chunks) for tier in connector.further)
        assert not connector._uses  # nothing is kept of requests that have left
        assert not connector._host._answers
    copies = run.records.copies
    if copies is not None:
        assert (copies.bytes == copies.tokens // SIZE * (1 << 21)).all()
        for stored in (0, 1):
            one_way = copies.stored == stored
            assert (copies.start_s[one_way] <= copies.end_s[one_way]).all()


def test_a_load_keeps_its_blocks_though_its_request_has_left() -> None:
    """Among runs with aborts are some that leave while they load."""
    left = 0

    class Counting(Watched):
        def ended(self, row: int) -> None:
            nonlocal left
            offered = self._requests.get(row)
            left += offered is not None and isinstance(offered.live, ItemizedRequest) and offered.live.is_loading
            super().ended(row)

    for seed in range(0, 60, 3):
        serve(seed, aborts=True, kind=Counting)
    assert left
