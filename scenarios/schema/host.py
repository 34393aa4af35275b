"""What stands around a step's kernels: `host:`, `sampling:`, `front_end:`, and the links of a scenario."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, Self

from annotated_types import Unit, doc
from pydantic import Field, model_validator

from scenarios.schema.allowed import Schema, whole_schema
from scenarios.schema.base import Strict
from scenarios.schema.distributions import Time
from scenarios.schema.source.hints import refusal
from simulator.hardware.models import Model
from simulator.memory.offload import EvictionPolicy, TierType
from simulator.sampling import completed
from simulator.timing.host import Host

# `host:`, `sampling:` and `front_end:`, what a server adds around a step's kernels; by default the engine's own.

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class HostConfig(Strict):
    """The part of the host's work on a step that the GPU waits for, under any kind of cost.

    By default it is that of the policy's engine (`scenarios/servers/`): of vLLM by `version` and, where that is
    given, `async_scheduling`: 1.3 ms and 72 microseconds a request where scheduling is synchronous (the default before
    0.14), 0.3 ms otherwise, and what `sampling` takes; of SGLang and TensorRT-LLM by `async_scheduling`, their overlap
    schedule. `kind: linear` has the host in `base_s`, and a profile that was fitted to whole steps has it
    in itself: there nothing is added by default.
    """

    step_s: Annotated[Seconds | None, doc("time of every step; null: the engine's")] = None
    per_seq_s: Annotated[Seconds | None, doc("time for each request of a step; null: the engine's")] = None

    def over(self, usual: Host) -> Host:
        """Return the host as given, completed by the engine's, with its source where all figures are the engine's."""
        given = {name: value for name, value in self.model_dump().items() if value is not None}
        found = replace(usual, **given)
        return found if found == usual else replace(found, source="the scenario")


class SamplingConfig(Strict):
    """How requests ask for their next token, as vLLM names it. It matters for the time of a step alone.

    Where top-k or top-p take tokens out, vLLM up to 0.20 looks through the whole vocabulary for each request of a step:
    by a sort up to 0.16, 15 microseconds for 131,072 tokens, and by a kernel of its own from 0.17, 4 microseconds.
    Greedy requests (`temperature: 0`), as benchmarks send them, and other engines take no such time. What is left out
    is as the model's generation_config.json says, which vLLM takes too: of a built-in model, or beside a config.json.
    """

    temperature: Annotated[
        Annotated[float, Field(ge=0, le=100)] | None, doc("0: the likeliest token; null: the model's")
    ] = None
    top_k: Annotated[
        Annotated[int, Field(ge=-1, le=10**7)] | None,
        doc("likeliest tokens to draw from; 0, -1: all; null: the model's"),
    ] = None
    top_p: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        doc("likelihood of the tokens to draw from; 1: all; null: the model's"),
    ] = None
    min_p: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        doc("least share of the likeliest token's likelihood; it takes no time here; null: the model's"),
    ] = None


def filtered(sampling: SamplingConfig | None, model: Model) -> int:
    """Return the tokens that top-k or top-p look through for each request; 0 where they take none out."""
    said = {} if sampling is None else sampling.model_dump()
    return model.vocab if completed(model.name, said).filters else 0


class FrontEndConfig(Strict):
    """The layer between clients and the engine: HTTP, tokenising, detokenising.

    All tokens of a request reach its client later by one delay: `fixed_s`, plus `per_running_s` for each request that
    ran when its first token was sampled, itself included, plus `per_prompt_token_s` for each token of its prompt. TTFT
    and end-to-end latency grow by it; the gaps between tokens do not change. The engine's decisions do not change
    either, unless clients react to answers: then prompts are tokenised one after another before the engine has them.
    `front_end: {}` takes the delay of vLLM 0.15 over HTTP: 4 ms, 67 microseconds, and 10 microseconds a prompt token
    (6 of Llama 3 and gpt-oss, and under TensorRT-LLM).
    """

    fixed_s: Annotated[Seconds | None, doc("delay of every request; null: the engine's")] = None
    per_running_s: Annotated[Seconds | None, doc("delay for each running request; null: the engine's")] = None
    per_prompt_token_s: Annotated[
        Seconds | None, doc("delay for each prompt token; null: the engine's, or 0 where another is given")
    ] = None


# The links of a scenario: between the stages of a pipeline, to the host's memory, between groups of replicas.

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
