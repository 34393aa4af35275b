"""The `hardware.kv_offload:` of a scenario: the host memory that KV is stored in, by vLLM's OffloadingConnector."""

from typing import Annotated

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.allowed import Schema, whole_schema
from scenarios.schema.durations import Time
from scenarios.schema.strict import Strict
from simulator.memory.offload import EvictionPolicy


class KVOffload(Strict):
    """A tier of KV on the host of each replica, with vLLM's names."""

    host_gib: Annotated[
        Annotated[float, Field(gt=0, le=1e6)],
        doc("host memory for KV, of all GPUs of a replica together, as --kv-offloading-size"),
    ]
    policy: Annotated[EvictionPolicy, doc("which chunk leaves a full host, as eviction_policy")] = "lru"
    blocks_per_chunk: Annotated[Annotated[int, Field(ge=1, le=10**6)], doc("KV blocks of a chunk")] = 1
    offload_prompt_only: Annotated[bool, doc("store what prompts fill, and not what decoding fills")] = True
    store_threshold: Annotated[
        Annotated[int, Field(ge=0, le=10**6)], doc("store a chunk when it is offered so often; 0 and 1: at once")
    ] = 0
    sync_load_budget_bytes: Annotated[
        Annotated[int, Field(ge=0, le=10**15)],
        doc("bytes on each GPU that a step may load while it waits; what does not fit is loaded between steps"),
    ] = 0
    link_gb_s: Annotated[
        Annotated[float, Field(ge=1e-6, le=1e6)] | None,
        Unit("GB/s"),
        doc("copies between host and each GPU, in one direction; null: the GPU's host_link_gb_s"),
    ] = None
    latency_s: Annotated[Time, doc("added to each copy")] = 0.0


def offload_schema() -> Schema:
    """The keys of the host's tier, whole; or null."""
    return whole_schema(KVOffload)
