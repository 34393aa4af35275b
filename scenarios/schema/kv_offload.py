"""The `hardware.kv_offload:` of a scenario: the host memory that KV is stored in, by vLLM's OffloadingConnector."""

from collections.abc import Mapping
from typing import Annotated

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.allowed import Schema, whole_schema
from scenarios.schema.durations import Time
from scenarios.schema.strict import Strict
from simulator.memory.offload import EvictionPolicy, TierType

USUAL_GB_S: Mapping[TierType, float] = {"fs": 5.0, "obj": 1.25}
"""Assumed where a tier's bandwidth is not given: one NVMe drive, a network of 10 Gbit/s."""

Size = Annotated[float, Field(gt=0, le=1e9)]
Bandwidth = Annotated[float, Field(ge=1e-6, le=1e6)]


class FurtherTier(Strict):
    """A tier of KV below the host of each replica."""

    type: Annotated[TierType, doc("a file system or an object store, as in secondary_tiers")]
    size_gib: Annotated[Size | None, doc("memory for KV, of a replica; null: no bound, as vLLM's have none")] = None
    bandwidth_gb_s: Annotated[
        Bandwidth | None, Unit("GB/s"), doc("copies of a replica, in one direction; null: 5 of fs, 1.25 of obj")
    ] = None
    latency_s: Annotated[Time, doc("added to each copy, beside the bytes of others")] = 0.0
    policy: Annotated[EvictionPolicy, doc("which chunk leaves a full tier")] = "lru"

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return 1e9 * (USUAL_GB_S[self.type] if self.bandwidth_gb_s is None else self.bandwidth_gb_s)


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
    tiers: Annotated[
        Annotated[list[FurtherTier], Field(max_length=2)] | None,
        doc("tiers below the host, the nearest first: what the host stores goes to each, and comes back through it"),
    ] = None


def offload_schema() -> Schema:
    """The keys of the host's tier, whole; or null."""
    return whole_schema(KVOffload)
