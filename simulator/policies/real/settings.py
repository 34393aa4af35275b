"""A scenario's engine in the words of a real scheduler."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simulator.parameters import parameters_of
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.real.process import SGLANG, EngineName
from simulator.policies.sglang import Sglang
from simulator.speculative.speculation import Drafting

# batchlab's key -> the engine's; None: no setting of the engine.
_VLLM: Mapping[str, str | None] = {
    "order": "policy",
    "reserve_full_isl": "scheduler_reserve_full_isl",
    "version": None,
    "dp_sync_interval": None,  # of ranks, which are asked one by one
}
_SGLANG: Mapping[str, str | None] = {
    "order": "schedule_policy",
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": None,
}


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of a replica: `num_blocks` usable blocks, without vLLM's null block."""

    num_blocks: int
    block_size: int
    caches_prefixes: bool


def engine_settings(
    engine: EngineName,
    policy: object,
    memory: Memory,
    further: Mapping[str, object] | None = None,
    drafting: Drafting | None = None,
) -> dict[str, Any]:
    """The settings of `EngineProcess.start` for a policy: its parameters of these names, else their defaults.

    `further` are settings of the engine's own. `name_size` is the tokens of a named block (`TokenBlocks`): one where a
    block's hash covers tokens behind it.
    """
    owner, names = (Sglang, _SGLANG) if engine == SGLANG else (ChunkedPrefill, _VLLM)
    found: dict[str, Any] = {}
    for key, parameter in parameters_of(owner).items():
        name = names.get(key, key)
        if name is not None:
            found[name] = getattr(policy, key, parameter.default)
    if engine == SGLANG:
        # Where SGLang has numbers of its own, the policy has the budget of a step.
        step = int(getattr(policy, "max_num_batched_tokens", 8192))
        chunk, begin = found["chunked_prefill_size"], found["max_prefill_tokens"]
        whole = chunk == -1
        found["chunked_prefill_size"] = -1 if whole else min(step, int(chunk or step))
        found["max_prefill_tokens"] = min(int(begin or step), step) if whole else int(begin or step)
        found["max_running_requests"] = min(step, int(found["max_running_requests"]))
    found |= {
        "async_scheduling": bool(found["async_scheduling"]),
        "block_size": memory.block_size,
        "num_gpu_blocks": memory.num_blocks + 1,
        "enable_prefix_caching": memory.caches_prefixes,
        "name_size": memory.block_size,
        "brief": False,
    }
    if drafting is not None:
        found |= {"speculative_config": asdict(drafting.config), "max_model_len": drafting.max_model_len}
        found["name_size"] = 1 if drafting.config.num_hash_lookahead_tokens else memory.block_size
    return {**found, **(further or {})}


def scenario_key(key: str) -> str:
    """The scenario's key for a setting of the engine."""
    return next((own for own, name in (*_VLLM.items(), *_SGLANG.items()) if name == key), key)
