"""The links of a scenario: between the stages of a pipeline, to the host's memory, between groups of replicas."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from annotated_types import Unit, doc
from pydantic import Field, model_validator

from scenarios.schema.allowed import Schema, whole_schema
from scenarios.schema.base import Strict
from scenarios.schema.distributions import Time
from scenarios.schema.source.hints import refusal
from simulator.memory.offload import EvictionPolicy, TierType

# The `hardware.pipeline_link:` of a scenario: the link between the stages of a pipeline.


class PipelineLink(Strict):
    """The link from each GPU of a stage to its partner of the next; each sends its part of the step's results."""

    bandwidth_gb_s: Annotated[
        Annotated[float, Field(ge=1e-6, le=1e6)] | None,
        doc("bandwidth for each GPU; a port of 400 Gbit/s has 50; null: 60 % of the GPU's own link"),
    ] = None
    latency_s: Annotated[Time, doc("added to each transfer from stage to stage")] = 20e-6


# The `hardware.kv_offload:` of a scenario: the host memory that KV is stored in, by vLLM's OffloadingConnector.

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


# The `kv_transfer:` of a scenario: the link between groups that prefill and groups that decode.


class KVTransferConfig(Strict):
    """The link that KV moves over from groups that prefill to groups that decode: shared, one transfer at a time."""

    bandwidth_gb_s: Annotated[float, Field(ge=1e-6, le=1e6), doc("bandwidth; a port of 400 Gbit/s has 50")] = 50.0
    latency_s: Annotated[Time, doc("added to each transfer")] = 0.0
    connector: Annotated[
        Literal["nixl"] | None,
        doc("nixl: decoding servers pull what their prefix cache lacks, by the rules of vLLM's connector"),
    ] = None
    kv_load_failure_policy: Annotated[
        Literal["recompute", "fail"], doc("what becomes of a request whose load failed, with a connector")
    ] = "fail"
    failure_rate: Annotated[Annotated[float, Field(ge=0, le=1)], doc("share of loads that fail, with a connector")] = (
        0.0
    )

    @model_validator(mode="after")
    def _for_a_connector(self) -> Self:
        for key in ("kv_load_failure_policy", "failure_rate"):
            if self.connector is None and key in self.model_fields_set:
                raise refusal("no load fails without a connector", "connector: nixl, or leave the key out", key=key)
        return self


def check_roles(roles: set[str]) -> None:
    """Refuse groups whose roles do not make whole requests."""
    if roles not in ({"both"}, {"prefill", "decode"}):
        raise refusal(
            f"groups of the roles {', '.join(sorted(roles))} make no fleet",
            "`prefill` and `decode`, each at least once, or no role at all",
            key="fleet",
        )
