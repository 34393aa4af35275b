"""KV memory beyond the device, as vLLM's OffloadingConnector keeps it: chunks of blocks on the host.

Rules and names are those of vllm/v1/kv_offload (0.33).
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Gt, Le, doc

from simulator.parameters import Count, CountOrZero, Seconds, check_parameters

EvictionPolicy = Literal["lru", "arc"]
TierType = Literal["fs", "obj"]


@dataclass(frozen=True, slots=True)
class FurtherTierConfig:
    """A tier below the host. ValueError, which begins with the parameter's name.

    Bytes follow each other at the bandwidth, in each direction; `latency_s` passes beside the bytes of others.
    """

    num_chunks: Annotated[Count | None, doc("chunks that it has room for; null: no bound")]
    bandwidth: Annotated[float, Gt(0), Le(1e15), doc("bytes a second of the replica, in each direction")]
    latency_s: Annotated[Seconds, doc("seconds of a copy beside its bytes")] = 0.0
    eviction_policy: Annotated[EvictionPolicy, doc("which chunk leaves a full tier")] = "lru"

    def __post_init__(self) -> None:
        check_parameters(self)


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """The host's tier of one replica, with vLLM's names. ValueError, which begins with the parameter's name.

    A copy takes `latency_s` and its bytes divided by the bandwidth; each direction of the link has its own queue.
    """

    num_chunks: Annotated[Count, doc("chunks that the host has room for")]
    block_bytes: Annotated[int, Gt(0), doc("bytes of a block, over all GPUs of the replica")]
    bandwidth: Annotated[float, Gt(0), Le(1e15), doc("bytes a second over all GPUs, in each direction")]
    latency_s: Annotated[Seconds, doc("seconds of a copy beside its bytes")] = 0.0
    eviction_policy: Annotated[EvictionPolicy, doc("which chunk leaves a full tier")] = "lru"
    blocks_per_chunk: Annotated[Count, doc("KV blocks of a chunk")] = 1
    offload_prompt_only: Annotated[bool, doc("store what prompts fill, and not what decoding fills")] = True
    store_threshold: Annotated[CountOrZero, doc("store a chunk when it is offered so often; 0 and 1: at once")] = 0
    sync_load_blocks: Annotated[CountOrZero, doc("blocks that a step loads while it waits; 0: none")] = 0
    tiers: tuple[FurtherTierConfig, ...] = ()

    def __post_init__(self) -> None:
        check_parameters(self)
