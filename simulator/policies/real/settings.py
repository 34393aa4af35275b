"""A scenario's engine in the words of a real scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.parameters import parameters_of
from simulator.policies.chunked_prefill import ChunkedPrefill

# batchlab's key -> the engine's; None: no setting of the engine.
_VLLM: Mapping[str, str | None] = {
    "order": "policy",
    "reserve_full_isl": "scheduler_reserve_full_isl",
    "version": None,
    "dp_sync_interval": None,  # of ranks, which are asked one by one
}


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of a replica: `num_blocks` usable blocks, without vLLM's null block."""

    num_blocks: int
    block_size: int
    caches_prefixes: bool


def engine_settings(policy: object, memory: Memory, further: Mapping[str, object] | None = None) -> dict[str, object]:
    """The settings of `EngineProcess.start` for a policy: its parameters of these names, else their defaults.

    `further` are settings of the engine's own.
    """
    found: dict[str, object] = {}
    for key, parameter in parameters_of(ChunkedPrefill).items():
        name = _VLLM.get(key, key)
        if name is not None:
            found[name] = getattr(policy, key, parameter.default)
    found |= {
        "async_scheduling": bool(found["async_scheduling"]),
        "block_size": memory.block_size,
        "num_gpu_blocks": memory.num_blocks + 1,
        "enable_prefix_caching": memory.caches_prefixes,
        "brief": False,
    }
    return {**found, **(further or {})}


def scenario_key(key: str) -> str:
    """The scenario's key for a setting of the engine."""
    return next((own for own, name in _VLLM.items() if name == key), key)
