"""Cases of hybrid caches in the form of the recorded files: what the product plans, and what it decides."""

from collections.abc import Mapping
from math import prod
from typing import Any

from simulator.errors import InputError
from simulator.fleet.group import ReplicaGroup
from simulator.hardware.kv_groups import LayerCache
from simulator.hardware.kv_plan import KVPlan, KVSettings, NoRoomError, group_blocks, plan_kv
from simulator.memory.grouped import GroupedBlocks, engine_block_size
from simulator.simulate import simulate_fleet
from tests.parity.cases import Memory, cost_of, policy_of, workload_of
from tests.parity.pipeline_features import with_ids

Case = Mapping[str, Any]


def cache_of(spec: Mapping[str, Any], state_block: int) -> LayerCache:
    """A layer of a case. Its block size is the server's, or `state_block` for a state; 0 is raised to the state."""
    if spec["kind"] == "mamba":
        sizes = [prod(shape) * width for shape, width in zip(spec["shapes"], spec["state_bytes"], strict=True)]
        return LayerCache("mamba", state_block, state_bytes=sum(sizes), checkpoint=spec.get("checkpoint"))
    return LayerCache(
        spec["kind"],
        spec.get("block_size", 0),
        heads=spec["kv_heads"],
        head_bytes=2 * spec["head"] * spec.get("bytes", 2),
        window=spec.get("window", 0),
        chunk=spec.get("chunk", 0),
    )


def layers_of(config: Mapping[str, Any]) -> list[LayerCache | None]:
    """The layers of a case."""
    kv = config["kv"]
    state_block = 0 if kv.get("state") else config["block_size"]
    caches = {letter: cache_of(spec, state_block) for letter, spec in kv["specs"].items()}
    return [caches[letter] for letter in kv["layers"]]


def settings_of(config: Mapping[str, Any]) -> KVSettings:
    """The server's settings of a case."""
    return KVSettings(
        config["max_model_len"],
        config["block_size"],
        config["max_num_batched_tokens"],
        2 if config.get("async_scheduling") else 1,
        config["enable_prefix_caching"],
        config.get("prefix_match_unit"),
        config.get("layout", "LBNHC"),
        config.get("disable_hybrid_kv_cache_manager", False),
        config["kv"].get("kernel_checkpoint"),
    )


def hybrid_plan(case: Case) -> dict[str, Any]:
    """What start-up plans, or vLLM's words for memory that is too small."""
    config = case["config"]
    try:
        plan = plan_kv(layers_of(config), case["memory"], settings_of(config), case.get("split"))
    except NoRoomError as error:
        if error.available <= 0:
            words = (
                "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing"
            )
        else:
            needed = f"{round(error.needed / 2**30, 2)} GiB KV cache is needed, which is larger than the available"
            words = f"To serve at least one request with the model's max seq len ({config['max_model_len']}), ({needed}"
        return {"refused": ("ValueError: " + words)[: len("ValueError: ") + 90]}
    except InputError as error:
        return {"refused": "ValueError: " + REFUSALS[error.message]}
    return told(plan)


REFUSALS = {
    "without the hybrid KV cache manager all layers must keep the same, and these cannot": (
        "Failed to promote local KV cache specs to one unified type."
    ),
    "layers of several windows cannot share a group that keeps all tokens": (
        "All attention layers in the same KV cache group must have the same window size."
    ),
}
"""vLLM's words for layers that do not go together."""


def told(plan: KVPlan) -> dict[str, Any]:
    """A plan in the form of the records."""
    settings = plan.settings
    return {
        "groups": [
            {
                "kind": group.cache.kind,
                "block_size": group.cache.block_size,
                "layers": list(group.layers),
                "page_bytes": group.cache.page_bytes,
                "window": group.cache.window or group.cache.chunk or None,
                "checkpoint": group.cache.checkpoint,
                "blocks_at_max_model_len": group_blocks(
                    group, settings.max_model_len, settings.in_flight_tokens, settings
                ),
            }
            for group in plan.groups
        ],
        "num_blocks": plan.num_blocks,
        "bytes_per_block": list(plan.bytes_per_block),
        "block_size": plan.block_size,
        "scheduler_block_size": plan.scheduler_block_size,
        "hash_block_size": plan.hash_block_size,
        "max_concurrency": plan.max_concurrency,
        "capacity_tokens": plan.capacity_tokens,
    }


def hybrid(case: Case, *, fast_forward: bool = True) -> list[dict[str, Any]]:
    """The steps of a replica whose memory has several KV groups."""
    given = with_ids(case)
    run = simulate_fleet(workload_of(given), [group_of_plan(given)], fast_forward=fast_forward, log_decisions=True)
    assert run.decisions is not None
    return [{**step, "t_end": step["t_end_s"]} for step in run.decisions]


def group_of_plan(case: dict[str, Any], blocks: type[GroupedBlocks] = GroupedBlocks, **more: Any) -> ReplicaGroup:
    """The replica of a case, with the cache that start-up plans for its number of blocks."""
    config = case["config"]
    count, retention = config["num_gpu_blocks"], config["retention_interval"]
    plan = plan_kv(layers_of(config), [0], settings_of(config), num_gpu_blocks=count)
    memory = Memory(count, engine_block_size(plan))
    policy = policy_of(case)
    return ReplicaGroup(
        lambda: policy,
        memory,
        cost_of(case),
        make_blocks=lambda usable, host: blocks(plan, usable, retention),
        has_kv_groups=True,
        **more,
    )
