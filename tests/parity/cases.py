"""A scheduling case, run through our engine, in the form in which vLLM's own scheduler records it.

A case names a scheduler configuration and requests whose arrivals are step numbers (a step then lasts one second) or
times in seconds with the coefficients of a linear cost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from simulator.engine.completion import OnEnd
from simulator.fleet.group import ReplicaGroup
from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.queues import Order
from simulator.request import Image, PromptContent
from simulator.simulate import simulate_fleet
from simulator.timing.formula_cost import Linear
from simulator.workload import Workload
from tests.listening import Inlet, simulate_listening

Case = dict[str, Any]

COMPARED = (
    "scheduled",
    "admitted",
    "preempted",
    "finished",
    "waiting",
    "running",
    "num_free_blocks",
    "num_free_blocks_end",
)


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of a case."""

    num_gpu_blocks: int
    block_size: int
    num_host_blocks: int = 0


def workload_of(case: Case) -> Workload:
    """The case's requests, sorted by arrival, ties in file order."""
    key = "arrival_time" if case.get("cost") else "arrival_step"
    requests = sorted(case["requests"], key=lambda r: float(r.get(key, 0)))
    outputs = np.array([r["output_len"] for r in requests])
    return Workload(
        arrival_s=np.array([float(r.get(key, 0)) for r in requests]),
        input_tokens=np.array([r["prompt_len"] for r in requests]),
        output_tokens=outputs,
        max_tokens=np.array([r.get("max_tokens", r["output_len"]) for r in requests]),
        priority=np.array([r.get("priority", 0) for r in requests]),
        class_index=np.zeros(len(requests), dtype=np.int64),
        request_ids=[str(r["id"]) for r in requests],
        content=[content_of(r) for r in requests] if case["config"].get("enable_prefix_caching") else None,
        images=[tuple(Image(*image) for image in r.get("images", ())) for r in requests],
        lora=[str(r["lora"]) if r.get("lora") else None for r in requests],
    )


def content_of(request: dict[str, Any]) -> PromptContent | None:
    """What the case says of a request's tokens."""
    if request.get("prompt_token_ids") is not None:
        return PromptContent(
            prompt_token_ids=tuple(request["prompt_token_ids"]),
            output_token_ids=tuple(request.get("output_token_ids") or ()),
        )
    if request.get("prefix_group") is not None:
        return PromptContent(prefix_group=request["prefix_group"], prefix_tokens=request.get("prefix_len") or 0)
    return None


def policy_of(case: Case) -> ChunkedPrefill:
    """The policy with the case's settings; vLLM's names, but for two."""
    config = case["config"]
    return ChunkedPrefill(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        long_prefill_token_threshold=config.get("long_prefill_token_threshold", 0),
        enable_chunked_prefill=config.get("enable_chunked_prefill", True),
        watermark=config.get("watermark", 0.0),
        reserve_full_isl=config.get("scheduler_reserve_full_isl", True),
        order=Order("weighted", **case["weights"]) if "weights" in case else config.get("policy", "fcfs"),
        max_num_active_seqs=config.get("max_num_active_seqs"),
        long_prefill_token_threshold_adaptive=config.get("long_prefill_token_threshold_adaptive", False),
        async_scheduling=config.get("async_scheduling", False),
        max_loras=config.get("max_loras"),
        max_image_embeddings=config.get("max_image_embeddings"),
        disable_chunked_mm_input=config.get("disable_chunked_mm_input", False),
        prefill_schedule_interval=config.get("prefill_schedule_interval", 1),
        dp_sync_interval=case["dp"]["sync_interval"] if "dp" in case else None,
    )


def cost_of(case: Case) -> Linear:
    """The case's step cost; a second a step where it has none."""
    cost = case.get("cost") or {"a": 1.0}
    return Linear(cost.get("a", 0.0), cost.get("b", 0.0), cost.get("c", 0.0))


def group_of(case: Case, *, by_id: bool = False, **more: Any) -> ReplicaGroup:
    """The case's replica; `more` are further fields of its group."""
    policy = policy_of(case)
    memory = Memory(case["config"]["num_gpu_blocks"], case["config"]["block_size"])
    make_blocks: Callable[[int, int], KVBlocks] = BlockManager if by_id else BlockLedger
    if case["config"].get("enable_prefix_caching"):
        make_blocks = partial(PrefixCache if by_id else PrefixLedger, block_size=memory.block_size)
    return ReplicaGroup(lambda: policy, memory, cost_of(case), make_blocks=make_blocks, **more)


def decisions_of(case: Case, *, fast_forward: bool = True, by_id: bool = False) -> list[dict[str, Any]]:
    """Our decisions, a record a step."""
    group = group_of(case, by_id=by_id)
    workload, aborts = workload_of(case), aborts_of(case)
    serve = partial(simulate_listening, make_listener=partial(clients, aborts)) if aborts else simulate_fleet
    run = serve(workload, [group], fast_forward=fast_forward, log_decisions=True)
    assert run.decisions is not None
    return run.decisions


def aborts_of(case: Case) -> list[tuple[int, float]]:
    """Rows and times of the case's aborts; all of a case with a cost."""
    requests = sorted(case["requests"], key=lambda r: float(r.get("arrival_time", 0)))
    return [(row, r["abort_time"]) for row, r in enumerate(requests) if r.get("abort_time") is not None]


def clients(aborts: list[tuple[int, float]], inlet: Inlet) -> OnEnd:
    """Clients that give up at these times and do nothing else."""
    for row, at_s in aborts:
        inlet.abort_at(row, at_s)
    return lambda row, status, end_s, cause: None


def first_difference(case: Case, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str | None:
    """Where the two part, in words; None if they never do."""
    timed = bool(case.get("cost"))
    for step, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        # The harness lets requests arrive between two steps, so that those aborted during one come in another order.
        if sorted(a.get("aborted", [])) != sorted(b.get("aborted", [])):
            return f"step {step}, aborted: ours {a.get('aborted')}, vLLM {b.get('aborted')}"
        for key in COMPARED:
            if a[key] != b[key]:
                return f"step {step}, {key}: ours {a[key]}, vLLM {b[key]}"
        if list(a["scheduled"]) != list(b["scheduled"]):
            return f"step {step}, order: ours {list(a['scheduled'])}, vLLM {list(b['scheduled'])}"
        if timed and (a["t_start_s"], a["t_end_s"]) != (b["t_start"], b["t_end"]):
            return f"step {step}: ours {a['t_start_s']}-{a['t_end_s']} s, vLLM {b['t_start']}-{b['t_end']} s"
    if len(ours) != len(theirs):
        return f"{len(ours)} steps, vLLM {len(theirs)}"
    return None
