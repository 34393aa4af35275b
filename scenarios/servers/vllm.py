"""vLLM as a server: its host and front end by version, the flags of `vllm serve`, its metrics and the log of its start.

Flags and defaults are those of vLLM 0.33, vllm/engine/arg_utils.py and vllm/config. Servers without figures of their
own take these. The server of the policy `some_name` is `SOME_NAME`.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scenarios.servers.server import Flag, Launch, Server, Start, Startup, arguments_in, as_words, numbers_of
from simulator.front_end import FrontEnd
from simulator.hardware.models import HUGGING_FACE, MODELS, SAME_DIMENSIONS
from simulator.sampling import read_generation, read_override
from simulator.timing.host import Host

SYNC = Host(1.3e-3, 72e-6, "vLLM 0.12: TPOT less kernels, closed-loop runs on H100 (aiconfigurator's silicon samples)")
LIKE_SYNC = replace(SYNC, source="assumed: as vLLM 0.12, which is synchronous too")
_ASYNC = Host(0.3e-3, 0.0, "vLLM 0.15 to 0.19: greedy servers leave nothing for a request")
_FILTERS = (
    ((0, 17), 15e-6 / 2**17, "PyTorch's sort for top-k and top-p, 15 us a row of 131,072 (vllm pull request 32558)"),
    ((0, 21), 4e-6 / 2**17, "Triton's top-k and top-p, 4 us a row of 131,072 (vllm pull requests 33538, 40376)"),
)
"""What vLLM filters the vocabulary with (vllm/v1/sample/ops/topk_topp_sampler.py): PyTorch's sort up to 0.16, Triton's
kernel from 8 rows on in 0.17 to 0.20, FlashInfer's by default since 0.21, which takes 1 us and is left out. Of 128 rows
of 131,072 logits the pull request 40376 measured 2.3 ms by the sort, 0.53 by Triton and 0.14 by FlashInfer for top-p,
and 2.4, 0.36 and 0.27 for top-k and top-p."""
FRONT_END = FrontEnd(4e-3, 67e-6, 10e-6)
"""vLLM 0.15 and later over HTTP: what TTFT has beyond the engine, 5.8 ms with 300 tokens. A token of the prompt adds 3
microseconds on B200's hosts and 6 on others."""
LIKE_VLLM_0_15 = "assumed: as vLLM 0.15"

NEWEST_VERSION = "0.33"
_ASYNC_BY_DEFAULT = (0, 14)  # vllm-project/vllm, pull request 27614
_FUSED_BY_DEFAULT = (0, 17)
"""All-reduces with norms at -O2 (pull request 34299 of February 2026; its recipes say so of 0.17)."""
_MORE_MEMORY_SINCE = (0, 20)
_LARGEST_SINCE = (0, 28)
_STATES_CACHED_SINCE = (0, 26)


# --------------------------------------------------------------------------------------------------------------- drafts

_DRAFTS_TAKEN = ("num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting",
                 "disable_lookahead_block_hashes", "disable_eagle_block_drop")  # fmt: skip
_DRAFT_METHODS = {"ngram_gpu": "ngram"}
_UNKNOWN_DRAFTER = "DRAFT_MODEL"


def read_speculative(text: str) -> Mapping[str, Any]:
    """Return `engine.speculative_config` of the JSON of `--speculative-config` (vllm/config/speculative.py, 0.33).

    vLLM's synthetic acceptance becomes the law of acceptance. Models with MTP of several names are one method. Raises
    ValueError for what is no such JSON, and for drafters that are not modelled.
    """
    given = json.loads(text)
    if not isinstance(given, dict) or not isinstance(given.get("num_speculative_tokens", 1), int):
        raise ValueError("no mapping with a number of drafts")
    model = str(given.get("model") or "")
    method = str(given.get("method") or _inferred_method(model))
    method = "mtp" if method.endswith("mtp") else _DRAFT_METHODS.get(method, method)
    if method not in ("ngram", "draft_model", "eagle", "eagle3", "mtp"):
        raise ValueError(f"drafts by {method} are not modelled")
    found: dict[str, Any] = {"method": method, "num_speculative_tokens": 1}
    found |= {name: given[name] for name in _DRAFTS_TAKEN if given.get(name) not in (None, False)}
    if method == "draft_model":
        found["draft_model"] = drafter_named(model)
    if (rates := given.get("synthetic_acceptance_rates")) is not None:
        found["acceptance"] = {"rates": rates}
    elif (length := given.get("synthetic_acceptance_length")) is not None:
        found["acceptance"] = {"mean_length": length}
    return found


def _model_names() -> Mapping[str, str]:
    return {**{own: name for name, own in SAME_DIMENSIONS.items()}, **{name: name for name in MODELS}, **HUGGING_FACE}


def drafter_named(model: str) -> str:
    """Return our name of a draft model, or the given one where it is not known."""
    return next((own for own, name in _model_names().items() if name == model), None) or model


def drafter_path(own: object) -> str:
    """Return the Hugging Face name of a draft model, or a word in its place."""
    return HUGGING_FACE.get(own, _UNKNOWN_DRAFTER) if isinstance(own, str) else _UNKNOWN_DRAFTER


def _inferred_method(model: str) -> str:
    """The method that vLLM infers from a draft model's name."""
    name = model.lower()
    if model in ("ngram", "[ngram]"):
        return "ngram"
    if "eagle3" in name:
        return "eagle3"
    if "eagle" in name:
        return "eagle"
    return "draft_model" if model else "mtp"


def write_speculative(value: Any) -> str:
    """Return the JSON of `engine.speculative_config`: what a server does, not how many drafts it accepts."""
    found = {name: value[name] for name in ("method", *_DRAFTS_TAKEN) if name in value}
    if value["method"] == "draft_model":
        found["model"] = drafter_path(value.get("draft_model"))
    elif value["method"] in ("eagle", "eagle3"):
        found["model"] = f"{value['method'].upper()}_HEAD"
    return json.dumps(found)


# ------------------------------------------------------------------------------------------------------- KV on the host

_KV_SIZE, _KV_REST, _KV_BACKEND = "hardware.kv_offload.host_gib", "hardware.kv_offload", "hardware.kv_offload.backend"
"""The host's memory, everything else of the tier, and whose it is: three flags say one mapping (vllm/config and
v1/kv_offload, 0.33)."""

_GIB = 2**30
_CONNECTOR, _TIERING = "OffloadingConnector", "TieringOffloadingSpec"
_TIER_NAMES = {"eviction_policy": "policy"}
_TIER_TAKEN = ("eviction_policy", "blocks_per_chunk", "offload_prompt_only", "store_threshold",
               "sync_load_budget_bytes")  # fmt: skip
_TIER_DEFAULTS = {"policy": "lru", "blocks_per_chunk": 1, "offload_prompt_only": True, "store_threshold": 0,
                  "sync_load_budget_bytes": 0}  # fmt: skip
_TIER_PLACES: Mapping[str, Mapping[str, Any]] = {
    "fs": {"root_dir": "ROOT_DIR"},
    "obj": {"store_config": {"bucket": "BUCKET", "endpoint_override": "HOST"}},
}
"""What a tier cannot start without, and a scenario does not say."""


def read_transfer(text: str) -> Mapping[str, Any]:
    """Return what a `--kv-transfer-config` of the OffloadingConnector says of `hardware.kv_offload`.

    `block_size` is the tokens of a chunk, for `_joined_tiers`. Raises ValueError for another connector, and for what is
    no such JSON or is not modelled.
    """
    given = json.loads(text)
    if not isinstance(given, dict) or given.get("kv_connector", _CONNECTOR) != _CONNECTOR:
        raise ValueError("no OffloadingConnector")
    extra = given.get("kv_connector_extra_config") or {}
    tiers = extra.get("secondary_tiers") or []
    if extra.get("spec_name", _TIERING) not in (_TIERING, "CPUOffloadingSpec") or any(
        not isinstance(tier, dict) or tier.get("type") not in _TIER_PLACES for tier in tiers
    ):
        raise ValueError("a store that is not modelled")
    found = {_TIER_NAMES.get(key, key): extra[key] for key in _TIER_TAKEN if key in extra}
    if "cpu_bytes_to_use" in extra:
        found["host_gib"] = extra["cpu_bytes_to_use"] / _GIB
    if "block_size" in extra:
        found["block_size"] = extra["block_size"]
    if tiers:
        found["tiers"] = [{"type": tier["type"]} for tier in tiers]
    return found


def write_transfer(rest: Mapping[str, Any]) -> str:
    """Return the JSON of what `--kv-offloading-size` does not say."""
    extra: dict[str, Any] = {}
    for key in _TIER_TAKEN:
        value = rest.get(_TIER_NAMES.get(key, key))
        if value not in (None, _TIER_DEFAULTS[_TIER_NAMES.get(key, key)]):
            extra[key] = value
    if rest.get("tiers"):
        extra["spec_name"] = _TIERING
        extra["secondary_tiers"] = [{"type": tier["type"], **_TIER_PLACES[tier["type"]]} for tier in rest["tiers"]]
    return json.dumps({"kv_connector": _CONNECTOR, "kv_role": "kv_both", "kv_connector_extra_config": extra})


def read_backend(text: str) -> str:
    """Return vLLM's own backend. Raises ValueError for others."""
    if text != "native":
        raise ValueError("not vLLM's own offload")
    return text


def _joined_tiers(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Make `hardware.kv_offload` of its flags; none where nothing names the host's memory."""
    whole = dict(found.get(_KV_REST) or {})
    tokens = whole.pop("block_size", None)
    if tokens is not None:
        whole["blocks_per_chunk"] = max(1, tokens // (found.get("engine.block_size") or 16))
    if found.get(_KV_SIZE) is not None:
        whole["host_gib"] = found[_KV_SIZE]
    return {_KV_REST: whole if "host_gib" in whole else None, _KV_SIZE: None, _KV_BACKEND: None}


def _written_tiers(values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of the two flags: the second is written where anything but the memory differs from vLLM's."""
    tier = values.get(_KV_REST)
    if not isinstance(tier, Mapping):
        return {}
    differs = tier.get("tiers") or any(tier.get(key, default) != default for key, default in _TIER_DEFAULTS.items())
    return {_KV_SIZE: tier["host_gib"], _KV_REST: tier if differs else None}


def _tier_remarks(values: Mapping[str, object]) -> Sequence[str]:
    """Return what no flag says of the tiers."""
    tier = values.get(_KV_REST)
    sizes = [each for each in tier.get("tiers") or () if each.get("size_gib")] if isinstance(tier, Mapping) else []
    return ["vLLM's further tiers have no bound: keep them to size_gib from outside"] if sizes else []


# ---------------------------------------------------------------------------------------------------------------- flags

_BACKENDS = {name: name for name in ("auto", "marlin", "triton", "flashinfer_cutlass", "flashinfer_trtllm")}
_GENERATION = "sampling.by_default"
"""What `--generation-config` says, until `--override-generation-config` is put over it."""

_COMMON = (
    Flag("--tensor-parallel-size -tp", "hardware.tensor_parallel", default=1),
    Flag("--max-num-seqs", "engine.max_num_seqs", always=True),
    Flag("--max-num-batched-tokens", "engine.max_num_batched_tokens", always=True),
    Flag("--gpu-memory-utilization --device-memory-utilization", "hardware.gpu_memory_utilization", always=True),
    Flag("--enable-prefix-caching", "engine.enable_prefix_caching", default=True, means=True, always=True),
    Flag("--no-enable-prefix-caching", "engine.enable_prefix_caching", means=False),
    Flag("--block-size", "engine.block_size", default=16),
)
_RARE = (
    Flag("--pipeline-parallel-size -pp", "hardware.pipeline_parallel", default=1),
    Flag("--scheduling-policy", "engine.order", default="fcfs", words={"priority": "priority", "fcfs": "fcfs"}),
    Flag("--long-prefill-token-threshold", "engine.long_prefill_token_threshold", default=0),
    Flag(
        "--long-prefill-token-threshold-adaptive",
        "engine.long_prefill_token_threshold_adaptive",
        default=False,
        means=True,
    ),
    Flag("--max-num-active-seqs", "engine.max_num_active_seqs"),
    Flag("--speculative-config -sc", "engine.speculative_config", read=read_speculative, write=write_speculative),
    Flag("--disable-chunked-mm-input", "engine.disable_chunked_mm_input", default=False, means=True),
    Flag("--max-loras", "engine.max_loras"),
    Flag("--max-lora-rank", "engine.max_lora_rank"),
    Flag("--prefill-schedule-interval", "engine.prefill_schedule_interval", default=1),
    Flag("--dp-sync-interval", "engine.dp_sync_interval"),
    Flag("--watermark", "engine.watermark", default=0.0),
    Flag("--disable-hybrid-kv-cache-manager", "engine.disable_hybrid_kv_cache_manager", means=True),
    Flag("--no-disable-hybrid-kv-cache-manager", "engine.disable_hybrid_kv_cache_manager", means=False),
    Flag("--prefix-match-unit", "engine.prefix_match_unit"),
    Flag(
        "--prefix-cache-retention-interval",
        "engine.prefix_cache_retention_interval",
        read=lambda text: "all" if text == "None" else int(text),
        write=lambda value: "None" if value == "all" else str(value),
    ),
    Flag("--scheduler-reserve-full-isl", "engine.reserve_full_isl", default=True, means=True),
    Flag("--no-scheduler-reserve-full-isl", "engine.reserve_full_isl", means=False),
    Flag("--max-num-queued-reqs", "engine.max_num_queued_reqs"),
    Flag("--max-num-queued-tokens", "engine.max_num_queued_tokens"),
    Flag("--enable-expert-parallel -ep", "hardware.enable_expert_parallel", default=False, means=True),
    # Without either it is as the version does by default, which a scenario that leaves the key out stands for.
    Flag("--async-scheduling", "engine.async_scheduling", means=True),
    Flag("--no-async-scheduling", "engine.async_scheduling", means=False),
    Flag("--kv-offloading-size", _KV_SIZE),
    Flag("--kv-transfer-config", _KV_REST, read=read_transfer, write=write_transfer),
    Flag("--kv-offloading-backend", _KV_BACKEND, is_written=False, read=read_backend),
    Flag("--num-gpu-blocks-override", "hardware.num_gpu_blocks", is_written=False),
    Flag("--data-parallel-size -dp", "replicas"),
    Flag("--kv-cache-dtype", "model.kv_dtype_bytes", is_written=False,
         words={1: ("fp8", "fp8_e4m3", "fp8_e5m2"), 2: ("bfloat16", "bf16", "float16"), None: ("auto",)}),
    Flag("--generation-config", _GENERATION, is_written=False, read=read_generation),
    Flag("--override-generation-config", "sampling", read=read_override, write=json.dumps),
    Flag("--moe-backend", "cost.moe_backend", is_written=False, words=_BACKENDS),
    Flag("--compilation-config.pass_config.fuse_allreduce_rms -cc.pass_config.fuse_allreduce_rms",
         "cost.fuse_allreduce_rms", is_written=False, words={True: ("true", "True"), False: ("false", "False")}),
    Flag("--quantization -q", "model.dtype_bytes", is_written=False, words={1: ("fp8",), None: ("None",)}),
)  # fmt: skip

VARIABLES = (
    Flag("VLLM_MXFP4_USE_MARLIN", "cost.moe_backend", is_written=False, words={"marlin": ("1", "true")}),
    Flag(
        "VLLM_PP_LAYER_PARTITION",
        "hardware.pp_layer_partition",
        read=lambda text: [int(layers) for layers in text.split(",")],
        write=lambda layers: ",".join(map(str, layers)),
    ),
)
"""Variables of the environment that say a key (vllm/envs.py)."""

WITHOUT_EFFECT = {
    "how clients reach it": "host port grpc-port uds root-path api-key *allowed-* allow-credentials ssl-* "
    "enable-ssl-refresh https middleware served-model-name uvicorn-* disable-uvicorn-access-log "
    "disable-access-log-for-endpoints enable-request-id-headers *-fastapi-docs enable-offline-docs api-server-count "
    "headless enable-server-load-tracking data-parallel-supervisor-port dp-supervisor-* h11-*",
    "how text becomes tokens and answers": "tokenizer* trust-remote-code chat-template* response-role "
    "enable-auto-tool-choice tool-call-parser tool-parser-plugin tool-server reasoning-parser* reasoning-config "
    "exclude-tools-when-tool-choice-none generation-config override-generation-config logits-processors "
    "logprobs-mode max-logprobs structured-outputs-config guided-decoding-* default-chat-template-kwargs "
    "return-tokens-as-token-ids lora-modules io-processor-plugin seed enable-force-include-usage "
    "enable-tokenizer-info-endpoint",
    "where the weights come from": "revision code-revision load-format download-dir model-loader-extra-config "
    "config-format hf-* safetensors-* ignore-patterns use-tqdm-on-load pt-load-map-location model-impl runner task "
    "allow-deprecated-quantization max-parallel-loading-workers skip-tokenizer-init weight-transfer-config",
    "what is logged and measured": "*log* disable-log-stats otlp-* collect-detailed-traces show-hidden-metrics-* "
    "kv-cache-metrics* cudagraph-metrics enable-mfu-metrics profiler-config enable-layerwise-nvtx-tracing "
    "kv-events-config custom-histogram-buckets shutdown-timeout watchdog-config",
    "how its processes find each other": "distributed-* master-addr master-port nnodes node-rank device-ids "
    "numa-bind* data-parallel-address data-parallel-rank data-parallel-rpc-port data-parallel-start-rank "
    "data-parallel-size-local -dpl data-parallel-backend data-parallel-*-lb ray-workers-* worker-cls "
    "worker-extension-cls device renderer-num-workers disable-nccl-for-dp-synchronization enable-sleep-mode",
}
"""Flags of `vllm serve` that change no schedule and no step time, by what they are about."""

NOT_MODELLED = {
    "lengths are bounded by the workload, and a request beyond the KV cache is rejected": "max-model-len "
    "max-seq-len-to-capture",
    "any number of prompts share a step, as far as max_num_batched_tokens goes; what the first did up to 0.26 is "
    "`engine.max_num_partial_prefills`": "max-num-partial-prefills max-long-partial-prefills",
    "a replica has one context: see `hardware.tensor_parallel` and `hardware.pipeline_parallel`": "-dcp -pcp dcp-* "
    "*context-parallel-size *-interleave-size",
    "step times know no CUDA graphs, but for `cost: {kind: profile, cuda_graphs: false}`": "enforce-eager "
    "compilation-config -O* -cc optimization-level *cudagraph-* performance-mode",
    "step times are those of `cost`, whatever the kernels": "*attention-backend attention-config "
    "linear-backend *-decode-backend *-prefill-backend kernel-config all2all-backend disable-custom-all-reduce "
    "enable-flashinfer-autotune disable-cascade-attn monokernel enable-dbo dbo-* ubatch-size additional-config "
    "*eplb* expert-placement-strategy enable-elastic-ep enable-batch-sharded-sampling use-fp64-gumbel",
    "drafts are given as JSON, by --speculative-config, since vLLM 0.8": "speculative-* spec-* num-speculative-tokens",
    "`engine.max_loras` stands for it: 1 where --max-loras is not given": "enable-lora",
    "adapters lie in host memory, are of one rank, and change no experts": "*lora*",
    "KV on the host is `hardware.kv_offload`, as vLLM 0.33 has it": "kv-transfer-config kv-offloading-*",
    "weights stay on the GPUs, and the size of the KV cache follows from them": "cpu-offload-* offload-* "
    "kv-cache-memory-bytes calculate-kv-scales kv-cache-dtype-skip-layers swap-space preemption-mode",
    "prompts of tokens alone are modelled": "*mm-* limit-mm-per-prompt media-io-kwargs *multimodal* "
    "interleave-mm-strings language-model-only ec-* video-* pooler-config enable-prompt-embeds convert",
    "states and windows are those of the model's config.json": "mamba-* *-ssm* disable-sliding-window swa-* "
    "*replayssm* kv-sharing-fast-prefill",
    "this rule of the scheduler is not modelled yet": "max-num-scheduled-tokens scheduler-cls stream-interval",
    "the dtype of the model's own files is taken: `model: {base: NAME, dtype_bytes: 2}`": "dtype hf-overrides "
    "quantization-config",
    "the hash of a block does not matter": "prefix-caching-hash-algo",
}
"""Flags of `vllm serve` that may change a schedule or a step time, by why they do not here."""


def defaults(startup: Startup) -> Mapping[str, object]:
    """Return what `vllm serve` takes by GPU, version, model and what else it is told.

    Sizes are those of `get_batch_defaults` and its caller (0.33: vllm/engine/arg_utils.py:2973-3006 and 3166-3200; the
    first tier came with 0.28). The share of memory is 0.9 up to 0.19 and 0.92 since (`CacheConfig`; pull request
    38284). Models with layers that keep states share no prefixes up to 0.24 (`is_prefix_caching_supported`).
    Scheduling is asynchronous since 0.14, but not with drafts that the first model runner looks up (config/vllm.py).
    """
    given, numbers = startup.given, numbers_of(startup.version or NEWEST_VERSION)
    largest = startup.memory_gib >= 160 and numbers >= _LARGEST_SINCE
    large = startup.memory_gib >= 70 and "a100" not in startup.gpu
    tokens = 16384 if largest else 8192 if large else 2048
    if startup.model is not None and given.get("engine.enable_chunked_prefill") is False:
        tokens = max(tokens, startup.model.max_model_len)
    drafts = given.get("engine.speculative_config") or {}
    looked_up = drafts.get("method") == "ngram" and drafts.get("model_runner") == "v1"
    has_states = startup.model is not None and startup.model.has_states
    return {
        "engine.max_num_seqs": min(
            1024 if large or largest else 256, given.get("engine.max_num_batched_tokens") or tokens
        ),
        "engine.max_num_batched_tokens": tokens,
        "engine.enable_prefix_caching": not has_states or numbers >= _STATES_CACHED_SINCE,
        "engine.async_scheduling": numbers >= _ASYNC_BY_DEFAULT and not looked_up,
        "hardware.gpu_memory_utilization": 0.92 if numbers >= _MORE_MEMORY_SINCE else 0.9,
    }


def _joined(found: Mapping[str, Any]) -> Mapping[str, object]:
    generation = found.get(_GENERATION)
    made = {} if generation is None else {"sampling": {**generation, **(found.get("sampling") or {})}}
    return {**_joined_tiers(found), **made, _GENERATION: None}


def _v1_remarks(policy: object, values: Mapping[str, object]) -> Sequence[str]:
    version = getattr(policy, "version", NEWEST_VERSION)
    found = [] if version == NEWEST_VERSION else [f"vLLM {version}"]
    swaps = values.get("hardware.swap_space_gib") and getattr(policy, "preemption_mode", None) in ("swap", "auto")
    if getattr(policy, "max_loras", None):
        found.append("it serves adapters with --enable-lora and --lora-modules NAME=PATH")
    found += _tier_remarks(values)
    return [*found, *(["vLLM v1 recomputes, and swaps nothing"] if swaps else [])]


def _remarks_before_v1(policy: object, values: Mapping[str, object]) -> Sequence[str]:
    chunks = values.get("engine.enable_chunked_prefill")
    return [f"prompts in {'chunks' if chunks else 'steps of their own'}: {BEFORE_V1}"]


BEFORE_V1 = "vLLM before v1"
"""Said of a command of vLLM's first engine, and recognised in it."""

VLLM_SERVE = Launch(
    programs=("vllm serve", "vllm.entrypoints.openai.api_server", "dynamo.vllm"),
    images=("/vllm", "/llm-d"),
    model="",
    model_names=("--model",),
    flags=(
        *_COMMON,
        Flag("--no-enable-chunked-prefill", "engine.enable_chunked_prefill", default=True, means=False),
        Flag("--enable-chunked-prefill", "engine.enable_chunked_prefill", means=True, is_written=False),
        *_RARE,
    ),
    without_effect=WITHOUT_EFFECT,
    not_modelled=NOT_MODELLED,
    variables=VARIABLES,
    container="vllm/vllm-openai:v{version}.0",
    version=NEWEST_VERSION,
    defaults=defaults,
    remarks=_v1_remarks,
    joined=_joined,
    written=lambda _, values: _written_tiers(values),
    balancer="vllm_dp",
)
SERVE_BEFORE_V1 = replace(
    VLLM_SERVE,
    container="vllm/vllm-openai:v0.6.6",
    version="0.6",
    flags=(
        *_COMMON,
        Flag("--no-enable-chunked-prefill", "engine.enable_chunked_prefill", default=False, means=False, always=True),
        Flag("--enable-chunked-prefill", "engine.enable_chunked_prefill", means=True),
        Flag("--preemption-mode", "engine.preemption_mode", default="recompute",
             words={"swap": "swap", "recompute": "recompute"}),
        Flag("--swap-space", "hardware.swap_space_gib", default=0.0),
        *(flag for flag in _RARE if flag.key in ("engine.order", "replicas") or flag.key.startswith("model.")),
    ),
    remarks=_remarks_before_v1,
    joined=None,
    written=None,
    balancer="",
    until=(0, 8),
    switch="VLLM_USE_V1=0",
    told_by=BEFORE_V1,
)  # fmt: skip


# -------------------------------------------------------------------- servers of policies, each under the policy's name

VLLM = CHUNKED_PREFILL = REAL = Server(
    FRONT_END,
    "public runs of vLLM 0.15 over HTTP",
    synchronous=SYNC,
    asynchronous=_ASYNC,
    filters=_FILTERS,
    overlaps_since=_ASYNC_BY_DEFAULT,
    launch=VLLM_SERVE,
    fuses_since=_FUSED_BY_DEFAULT,
)
LIKE_VLLM = Server(FRONT_END, LIKE_VLLM_0_15, asynchronous=Host(0.3e-3, 0.0, "assumed: as vLLM 0.19"))
"""The server of a policy for which no file has one: as quick as vLLM, without a command."""
LIKE_VLLM_0_12 = Server(FRONT_END, LIKE_VLLM_0_15, synchronous=LIKE_SYNC, overlaps_since=None)
"""The same without asynchronous scheduling."""


def _preemptive_remarks(policy: Any, values: Mapping[str, object]) -> Sequence[str]:
    swaps = ["vLLM v1 recomputes, and swaps nothing"] if policy.preemption_mode in ("swap", "auto") else []
    return [*swaps, "vLLM's own priority scheduling displaces a request for want of memory alone"]


VLLM_V0 = replace(LIKE_VLLM_0_12, launch=SERVE_BEFORE_V1)
CONTINUOUS = replace(
    LIKE_VLLM, launch=replace(SERVE_BEFORE_V1, is_own=False, fixed={"engine.enable_chunked_prefill": False})
)
PREEMPTIVE = replace(
    LIKE_VLLM,
    launch=replace(VLLM_SERVE, is_own=False, fixed={"engine.order": "priority"}, remarks=_preemptive_remarks),
)
SARATHI = replace(
    LIKE_VLLM,
    launch=replace(
        VLLM_SERVE,
        is_own=False,
        remarks=lambda policy, values: ["vLLM v1 schedules running requests first, as Sarathi-Serve does"],
    ),
)
IN_TIME = replace(
    LIKE_VLLM,
    launch=replace(
        VLLM_SERVE,
        is_own=False,
        remarks=lambda policy, values: ["vLLM has no such order of its own: its order is fcfs or priority"],
    ),
)


# --------------------------------------------------------------------------------------------------- a server that runs

PROGRAM = VLLM_SERVE.programs[0]
"""The program of sources that name none."""
ACCEPTANCE = "engine.speculative_config.acceptance"


def read_metrics(text: str, place: str) -> Start:
    """Return what a scrape of `/metrics` says: blocks and their size, share of memory, model, accepted drafts."""
    said: dict[str, tuple[object, str]] = {}
    info = re.search(r"^vllm:cache_config_info\{(.*)\}", text, re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', info[1])) if info else {}
    for label, key in (("num_gpu_blocks", "hardware.num_gpu_blocks"), ("block_size", "engine.block_size"),
                       ("gpu_memory_utilization", "hardware.gpu_memory_utilization"),
                       ("enable_prefix_caching", "engine.enable_prefix_caching")):  # fmt: skip
        if labels.get(label, "None") != "None":
            said[key] = (ast.literal_eval(labels[label]), f"cache_config_info in {place}")
    if labels.get("cache_dtype", "").startswith("fp8"):
        said["model.kv_dtype_bytes"] = (1, f"cache_config_info in {place}")
    if rates := accepted_rates(text):
        said[ACCEPTANCE] = ({"rates": rates}, f"the accepted drafts in {place}")
    name = re.search(r'model_name="([^"]+)"', text)
    if not info and not name:
        return Start(place)
    words = (*PROGRAM.split(), *([name[1]] if name else []))
    untold = (
        "max_num_seqs, max_num_batched_tokens and tensor_parallel are not in the metrics: give its start-up log too"
    )
    return Start(place, words, said=said, notes=[untold])


def accepted_rates(text: str) -> list[float]:
    """Return the share of verify steps that accepted at least 1, 2, ... drafts, by vLLM's counters; of all engines.

    Empty where nothing was drafted yet.
    """
    counted: dict[str, float] = {}
    for name, labels, value in re.findall(r"^vllm:spec_decode_(\w+?)(?:_total)?\{(.*)\} (\S+)$", text, re.MULTILINE):
        place = re.search(r'position="(\d+)"', labels)
        key = f"{name} {place[1]}" if place else name
        counted[key] = counted.get(key, 0.0) + float(value)
    steps = counted.get("num_drafts", 0.0)
    if not steps:
        return []
    places = sorted(int(key.split()[1]) for key in counted if key.startswith("num_accepted_tokens_per_pos "))
    return [round(counted[f"num_accepted_tokens_per_pos {place}"] / steps, 4) for place in places]


def read_log(text: str, place: str) -> Start | None:
    """Return what the log of vLLM's start says: arguments, version, blocks, the engine's settings. None for another."""
    given = re.search(r"non-default args: (\{.*\})", text)
    config = re.search(r"LLM engine \(v(\d+\.\d+)[^)]*\) with config: (.*)", text)
    if not given and not config:
        return None
    said: dict[str, tuple[object, str]] = {}
    words = [*PROGRAM.split()]
    if given:
        arguments = ast.literal_eval(given[1])
        name = arguments.pop("model", None) or arguments.pop("model_tag", None)
        words += [*([str(name)] if name else []), *as_words({k: v for k, v in arguments.items() if k != "model_tag"})]
    if config:
        said["engine.version"] = (config[1], f"{place}: the engine's line")
        settings = arguments_in(config[2])
        if len(words) == 2 and "model" in settings:
            words.append(str(settings["model"]))
        for name, key in (("tensor_parallel_size", "hardware.tensor_parallel"),
                          ("pipeline_parallel_size", "hardware.pipeline_parallel"),
                          ("enable_prefix_caching", "engine.enable_prefix_caching")):  # fmt: skip
            if name in settings:
                said[key] = (settings[name], f"{place}: the engine's line")
    for key, pattern in (("engine.max_num_batched_tokens", r"max_num_batched_tokens=(\d+)"),
                         ("hardware.num_gpu_blocks", r"# GPU blocks: ([\d,]+)")):  # fmt: skip
        if match := re.search(pattern, text):
            said[key] = (int(match[1].replace(",", "")), f"{place}: its line on {key.rpartition('.')[2]}")
    if match := re.search(r"GPU KV cache size: ([\d,]+) tokens", text):
        said["kv_tokens"] = (int(match[1].replace(",", "")), f"{place}: GPU KV cache size")
    return Start(place, words, said=said, gpu=" ".join(re.findall(r"(?:NVIDIA|GPU:?) [^\n]*", text)[:5]))
