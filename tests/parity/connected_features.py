"""Decisions of a replica with a KV connector, on cases of vLLM's offloading connector and of its pull connector."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from simulator.engine.parts.connected_memory import Connected, ConnectedBlocks, MakeConnector
from simulator.engine.parts.connector import ConnectedGroups
from simulator.engine.parts.offload import Offloading
from simulator.engine.parts.pull import Pull, PullConfig, Remote
from simulator.fleet.group import ReplicaGroup
from simulator.memory.offload import OffloadConfig
from simulator.simulate import simulate_fleet
from tests.parity.cases import Memory, cost_of, policy_of, workload_of
from tests.parity.hybrid_features import group_of_plan

Case = Mapping[str, Any]
_MILLION = 1_000_000


def with_tokens(case: Case) -> dict[str, Any]:
    """The case with its prompts and answers as token ids; its keys need them, with or without a prefix cache."""
    requests = []
    for request in case["requests"]:
        prompt, answer = _tokens(request["prompt"]), _tokens([[*request["output"], request["output_len"]]])
        told = {"prompt_len": len(prompt), "prompt_token_ids": prompt, "output_token_ids": answer}
        requests.append({**request, **told})
    return {**case, "requests": requests}


def _tokens(parts: list[list[int]]) -> list[int]:
    return [s * _MILLION + (f + i if s else 0) for s, f, n in parts for i in range(n)]


def offload(case: Case) -> list[dict[str, Any]]:
    """The steps of a replica that offloads to its host."""
    told = with_tokens(case)
    given = case["offload"]
    offloads = OffloadConfig(
        given["cpu_chunks"],
        given["block_bytes"],
        given["bandwidth"],
        given["latency"],
        eviction_policy=given["policy"],
        blocks_per_chunk=given["blocks_per_chunk"],
        offload_prompt_only=given["prompt_only"],
        store_threshold=given["store_threshold"],
        sync_load_blocks=given["sync_blocks"],
    )
    return _steps(told, partial(_offloading, offloads))


def pd(case: Case) -> list[dict[str, Any]]:
    """The steps of one of two replicas, of which one prefills and the other decodes."""
    told = with_tokens(case)
    given = case["pd"]
    config = PullConfig(
        given["role"],
        given["block_bytes"],
        given["bandwidth"],
        given["latency"],
        given["pull_delay"],
        given["failure_policy"],
    )
    requests = sorted(case["requests"], key=lambda r: float(r["arrival_time"]))
    remotes = {
        row: Remote(r.get("remote", False), r.get("lookup_until", 0.0), r.get("fails", False))
        for row, r in enumerate(requests)
    }
    return _steps(told, partial(_pull, config, remotes))


def _steps(told: dict[str, Any], connector: MakeConnector) -> list[dict[str, Any]]:
    config = told["config"]
    policy = policy_of(told)
    memory = Memory(config["num_gpu_blocks"], config["block_size"])
    if "kv" in config:
        group = group_of_plan(told, blocks=ConnectedGroups, connector=connector)
    else:
        make_blocks = partial(
            ConnectedBlocks, block_size=memory.block_size, caches_prefixes=config["enable_prefix_caching"]
        )
        group = ReplicaGroup(lambda: policy, memory, cost_of(told), make_blocks=make_blocks, connector=connector)
    workload = workload_of({**told, "config": {**config, "enable_prefix_caching": True}})
    run = simulate_fleet(workload, [group], log_decisions=True)
    assert run.decisions is not None
    return [{**step, "t_end": step["t_end_s"]} for step in run.decisions]


def _pull(config: PullConfig, remotes: Mapping[int, Remote], blocks: Connected, overlaps: bool) -> Pull:
    assert isinstance(blocks, ConnectedBlocks)
    return Pull(config, remotes, blocks.block_size, overlaps=overlaps)


def _offloading(config: OffloadConfig, blocks: Connected, overlaps: bool) -> Offloading:
    return Offloading(config, blocks, overlaps=overlaps)


CONNECTED: Mapping[str, Callable[[Case], Any]] = {"offload": offload, "pd": pd}
