"""The host's tier of KV, built from `hardware.kv_offload`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from scenarios.assembly.unused_keys import verifies_drafts
from scenarios.schema.scenario import Scenario
from simulator.hardware.kv import GIB, KVCache
from simulator.named_class import split_class
from simulator.policies import built_in_policies
from simulator.policies.chunked_prefill.versions import NEWEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from scenarios.schema.kv_offload import KVOffload
    from simulator.engine.parts.connected_memory import Connected
    from simulator.engine.parts.offload import Offloading
    from simulator.memory.blocks import KVBlocks
    from simulator.memory.offload import FurtherTierConfig, OffloadConfig

_KEY = "hardware.kv_offload"
_PAGE = 4096  # bytes: a chunk of each GPU begins on a page of the host


@dataclass(frozen=True, slots=True)
class MakeOffloading:
    """Makes a replica's connector of its blocks, and of whether its steps overlap."""

    config: OffloadConfig

    def __call__(self, blocks: Connected, overlaps: bool) -> Offloading:
        from simulator.engine.parts.offload import Offloading
        from simulator.engine.parts.tiers import Tiering

        kind = Tiering if self.config.tiers else Offloading
        return kind(self.config, blocks, overlaps=overlaps)


def build_offloading(scenario: Scenario, kv: KVCache) -> MakeOffloading | None:
    """Build the tier; None without one. Raises InputError for a server that cannot have it."""
    given = scenario.hardware.kv_offload
    if given is None:
        return None
    _check(scenario)
    from simulator.memory.offload import OffloadConfig

    hardware = scenario.hardware
    of_each_gpu = -(-kv.bytes_per_block * given.blocks_per_chunk // _PAGE) * _PAGE
    chunks = int(given.host_gib * GIB) // (of_each_gpu * hardware.tensor_parallel)
    if not chunks:
        least = of_each_gpu * hardware.tensor_parallel / GIB
        what = f"{given.host_gib} GiB do not hold one chunk of {given.blocks_per_chunk} blocks"
        raise scenario.error(f"{_KEY}.host_gib", what, f"at least {least:.6f}, or fewer blocks_per_chunk")
    link_gb_s = scenario.resolve_gpu().host_link_gb_s if given.link_gb_s is None else given.link_gb_s
    return MakeOffloading(
        OffloadConfig(
            chunks,
            kv.bytes_per_block * hardware.tensor_parallel,
            link_gb_s * 1e9 * hardware.tensor_parallel,  # each GPU copies its part over a link of its own
            given.latency_s,
            given.policy,
            given.blocks_per_chunk,
            given.offload_prompt_only,
            given.store_threshold,
            given.sync_load_budget_bytes // kv.bytes_per_block,
            _further(scenario, given, of_each_gpu * hardware.tensor_parallel),
        )
    )


def _further(scenario: Scenario, given: KVOffload, chunk_bytes: int) -> tuple[FurtherTierConfig, ...]:
    """The tiers below the host, in chunks."""
    from simulator.memory.offload import FurtherTierConfig

    found = []
    for place, tier in enumerate(given.tiers or ()):
        chunks = None if tier.size_gib is None else int(tier.size_gib * GIB) // chunk_bytes
        if chunks == 0:
            what = f"{tier.size_gib} GiB do not hold one chunk of {given.blocks_per_chunk} blocks"
            raise scenario.error(f"{_KEY}.tiers.{place}.size_gib", what, f"at least {chunk_bytes / GIB:.6f}")
        found.append(FurtherTierConfig(chunks, tier.bandwidth, tier.latency_s, tier.policy))
    return tuple(found)


def connected_blocks(block_size: int) -> Callable[[int, int], KVBlocks]:
    """The maker of blocks that a connector reads and writes."""
    from simulator.engine.parts.connected_memory import ConnectedBlocks

    return partial(ConnectedBlocks, block_size=block_size)


def _check(scenario: Scenario) -> None:
    engine = scenario.engine
    if not verifies_drafts(engine.policy):
        able = ", ".join(name for name in built_in_policies() if verifies_drafts(name))
        what = f"the policy {split_class(engine.policy)[1]} does not plan with KV on the host"
        raise scenario.error(_KEY, what, f"these do: {able}; or leave the key out")
    needs = {
        "engine.version": (engine.parameter("version", NEWEST) != NEWEST, f"is known as vLLM {NEWEST} has it"),
        "engine.enable_prefix_caching": (not engine.enable_prefix_caching, "needs the prefix cache of the device"),
    }
    for key, (is_so, what) in needs.items():
        if is_so:
            raise scenario.error(_KEY, f"offloading {what}: see `{key}`", f"change `{key}`, or leave out {_KEY}")
