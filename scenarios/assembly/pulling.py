"""Decoding groups that pull by the rules of vLLM's connector, built from `kv_transfer.connector`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from scenarios.assembly.groups import Group
from scenarios.assembly.replica_parts import ReplicaParts
from scenarios.schema.scenario import Scenario

if TYPE_CHECKING:
    from simulator.engine.parts.connected_memory import Connected
    from simulator.engine.parts.pull import Pull, PullConfig

    Fails = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class MakePull:
    """Makes a decoding replica's connector; the fleet gives it its link."""

    config: PullConfig

    def __call__(self, blocks: Connected, overlaps: bool) -> Pull:
        from simulator.engine.parts.connected_memory import ConnectedBlocks
        from simulator.engine.parts.pull import Pull

        assert isinstance(blocks, ConnectedBlocks)
        return Pull(self.config, {}, blocks.block_size, overlaps=overlaps)


@dataclass(frozen=True, slots=True)
class Failing:
    """Says of each request whether its load fails: a draw of its own, whatever else happens."""

    seed: int
    rate: float

    def __call__(self, row: int) -> bool:
        return bool(np.random.Generator(np.random.Philox(key=[self.seed, row])).random() < self.rate)


def failing_loads(scenario: Scenario) -> Fails | None:
    """Which loads fail; None where none does."""
    link = scenario.kv_transfer
    return Failing(scenario.seed, link.failure_rate) if link is not None and link.failure_rate else None


def build_pulling(scenario: Scenario, group: Group, build: Callable[[Scenario], ReplicaParts]) -> ReplicaParts:
    """Build a group's parts, with a connector where it decodes what it pulls."""
    link, own = scenario.kv_transfer, group.scenario
    if link is None or link.connector is None or group.role != "decode":
        return build(own)
    from simulator.engine.parts.connected_memory import ConnectedBlocks
    from simulator.engine.parts.pull import PullConfig

    caches, engine = own.engine.enable_prefix_caching, own.engine
    parts = build(own)
    size = parts.kv.bytes_per_block * own.hardware.tensor_parallel
    config = PullConfig(
        "decode", size, link.bandwidth_gb_s * 1e9, link.latency_s, kv_load_failure_policy=link.kv_load_failure_policy
    )
    blocks = partial(ConnectedBlocks, block_size=engine.block_size, caches_prefixes=caches)
    return replace(parts, connector=MakePull(config), make_blocks=blocks)
