"""The command line of SGLang 0.5, python/sglang/srt/server_args.py: what is taken, and what is not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.policies.sglang import rank_flags, speculative_flags
from simulator.servers import Flag, Launch, Startup

_MAX_PREFILL_TOKENS = 16384
_STATIC = "hardware.mem_fraction_static"
FP8 = ("fp8_e4m3", "fp8_e5m2", "fp8")
_ORDERS = {name: name for name in ("fcfs", "lpm", "lof", "dfs-weight")}


_TIERS = (
    (20, 2048, 8, 8),
    (35, 2048, 24, 80),
    (60, 4096, 32, 160),
    (160, 8192, 256, 512),
    (float("inf"), 16384, 512, 512),
)
"""GPUs with less memory (GiB), their chunks, and the largest batch of their CUDA graphs: below four GPUs, and from."""


def _defaults(startup: Startup) -> Mapping[str, object]:
    """Return what depends on the GPU and on what else is said, of 0.5.9 (`_handle_gpu_memory_settings`).

    Of memory, what chunks, CUDA graphs, parallel ranks and drafts take is left to them, 10 GiB at least on large GPUs.
    Requests at a time are bounded by memory: `max_running_requests` is between 2,048 and 4,096, or 48 with drafts.
    """
    given, memory_mib = startup.given, 1024 * startup.memory_gib
    _, usual, few, many = next(tier for tier in _TIERS if startup.memory_gib < tier[0])
    step = given.get("engine.max_num_batched_tokens")
    chunk = given.get("engine.chunked_prefill_size") or step or usual
    prefill = given.get("engine.max_prefill_tokens") or step or _MAX_PREFILL_TOKENS
    drafts = given.get(speculative_flags.KEY) or {}
    drafts = drafts if drafts.get("num_speculative_tokens") else {}
    ranks = given.get("hardware.tensor_parallel", 1)
    graphs = few if ranks < 4 else many
    reserved = 512 + 1.5 * max(chunk if chunk > 0 else prefill, 2048) + 2 * graphs + 128 * ranks
    reserved += rank_flags.reserved_mib(given, graphs)
    reserved = max(reserved, 10 * 1024) if startup.memory_gib > 60 else reserved
    reserved += {"ngram": 0, "draft_model": 6 * 1024}.get(drafts.get("method", "ngram"), 2 * 1024)
    return {
        "engine.max_num_seqs": speculative_flags.MAX_RUNNING_REQUESTS if drafts else 2048,
        "engine.chunked_prefill_size": chunk,
        "engine.max_prefill_tokens": prefill,
        "engine.max_num_batched_tokens": max(chunk, prefill),
        _STATIC: round((memory_mib - reserved) / memory_mib, 3),
    }


def _joined(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Return drafts, and the bound of a step, which SGLang does not have: as wide as its chunks and its prefills."""
    drafts, seqs = speculative_flags.joined(found), "engine.max_num_seqs"
    made: dict[str, object] = {}
    if drafts is not None and seqs not in found["said"]:
        found = {**found, seqs: speculative_flags.MAX_RUNNING_REQUESTS, "said": {*found["said"], seqs}}
        made[seqs] = found[seqs]
    made |= rank_flags.joined(found)
    sizes = [{**found, **made}.get(f"engine.{key}") or 0 for key in ("chunked_prefill_size", "max_prefill_tokens")]
    made |= {"engine.max_num_batched_tokens": max(sizes), speculative_flags.KEY: drafts}
    return made


def _written(policy: Any, values: Mapping[str, object]) -> Mapping[str, object]:
    step, chunk = policy.max_num_batched_tokens, policy.chunked_prefill_size or policy.max_num_batched_tokens
    prefill = policy.max_prefill_tokens or step
    own = {
        "engine.chunked_prefill_size": min(step, chunk),
        "engine.max_prefill_tokens": prefill if chunk > 0 else min(step, prefill),
        **speculative_flags.written(values.get(speculative_flags.KEY)),
    }
    return {**own, **rank_flags.written({**values, **own})}


LAUNCH = Launch(
    programs=("python -m sglang.launch_server", "sglang serve", "sglang.launch_server", "dynamo.sglang"),
    images=("/sglang",),
    model="--model-path",
    model_names=("--model",),
    flags=(
        Flag("--tp-size --tensor-parallel-size --tp", "hardware.tensor_parallel", default=1),
        Flag("--max-running-requests", "engine.max_num_seqs"),
        Flag("--chunked-prefill-size", "engine.chunked_prefill_size"),
        Flag("--max-prefill-tokens", "engine.max_prefill_tokens", default=_MAX_PREFILL_TOKENS, always=True),
        Flag("--mem-fraction-static", _STATIC),
        Flag("--schedule-policy", "engine.order", default="fcfs", always=True, words=_ORDERS),
        Flag("--schedule-conservativeness", "engine.schedule_conservativeness", default=1.0, always=True),
        Flag("--enable-mixed-chunk", "engine.enable_mixed_chunk", default=False, means=True),
        Flag("--prefill-max-requests", "engine.prefill_max_requests"),
        Flag("--enable-prefill-delayer", "engine.enable_prefill_delayer", default=False, means=True),
        Flag("--prefill-delayer-max-delay-passes", "engine.prefill_delayer_max_delay_passes", default=30),
        Flag("--prefill-delayer-token-usage-low-watermark", "engine.prefill_delayer_token_usage_low_watermark"),
        Flag("--prefill-delayer-queue-min-ratio", "engine.prefill_delayer_queue_min_ratio"),
        Flag("--prefill-delayer-max-delay-ms", "engine.prefill_delayer_max_delay_ms"),
        Flag("--scheduler-recv-interval", "engine.scheduler_recv_interval", default=1),
        *speculative_flags.FLAGS,
        Flag("--page-size", "engine.block_size", default=1, always=True),
        Flag("--disable-radix-cache", "engine.enable_prefix_caching", default=True, means=False),
        Flag("--disable-overlap-schedule", "engine.async_scheduling", default=True, means=False),
        Flag("--max-queued-requests", "engine.max_queued_requests"),
        *rank_flags.FLAGS,
        Flag("--kv-cache-dtype", "model.kv_dtype_bytes", is_written=False,
             words={1: FP8, 2: ("bf16", "bfloat16"), None: ("auto",)}),
        Flag("--quantization", "model.dtype_bytes", is_written=False, words={1: ("fp8", "w8a8_fp8")}),
    ),
    without_effect={
        "how clients reach it": "host port fastapi-root-path grpc-mode api-key admin-api-key served-model-name *ssl-* "
        "skip-server-warmup warmups file-storage-path",
        "how text becomes tokens and answers": "tokenizer* skip-tokenizer-init trust-remote-code chat-template "
        "hf-chat-template-name completion-template reasoning-parser tool-call-parser tool-server sampling-* "
        "preferred-sampling-params grammar-backend constrained-json-* random-seed is-embedding "
        "disable-outlines-disk-cache *tokenizer-batch-*",
        "where the weights come from": "revision load-format model-loader-extra-config download-dir model-checksum "
        "json-model-override-args model-impl weight-* custom-weight-loader remote-instance-*",
        "what is logged and measured": "*log* *metrics* enable-trace otlp-* show-time-cost crash-dump-folder "
        "*-buckets enable-request-time-stats-logging kv-events-config decode-log-interval enable-cache-report",
        "how its processes find each other": "dist-* nccl-port nnodes node-rank base-gpu-id gpu-id-step *watchdog* "
        "sleep-on-idle device numa-node *ipc-name enable-p2p-check stream-interval stream-output enable-memory-saver",
    },
    not_modelled={
        "lengths are bounded by the workload": "context-length max-total-tokens allow-auto-truncate",
        "a replica is one pipeline stage: see `hardware.tensor_parallel`": "pp-* pipeline-parallel-size *cp-size",
        "step times know no CUDA graphs, but for `cost: {kind: profile, cuda_graphs: false}`": "*cuda-graph* "
        "*torch-compile* torchao-config",
        "step times are those of `cost`, whatever the kernels": "*attention-backend *-backend sampling-backend "
        "disable-custom-all-reduce enable-*allreduce* enable-nccl-nvls enable-symm-mem *flashinfer* *deepep* moe-* "
        "*two-batch-overlap tbo-* *eplb* ep-* enable-dp-lm-head "
        "disable-shared-experts-fusion disable-chunked-prefix-cache num-continuous-decode-steps triton-* dtype",
        "of speculative decoding, the number and shape of drafts are modelled": "speculative-*",
        "adapters are not modelled yet": "*lora*",
        "KV outside the GPU, and moving between servers, is not modelled from flags": "*hicache* disaggregation-* "
        "enable-hierarchical-cache enable-lmcache cpu-offload-gb offload-*",
        "prompts of tokens alone are modelled": "*mm-* *multimodal*",
        "this rule of the scheduler is not modelled yet": "*priority* enable-dynamic-chunking min-free-slots-delay "
        "prefill-decode-interval* load-balance-method radix-eviction-policy",
    },
    container="lmsysorg/sglang:latest",
    port=30000,
    defaults=_defaults,
    instead={
        # A step has no bound of its own in SGLang: one that is given is that of its prefills.
        "engine.max_num_batched_tokens": ("engine.chunked_prefill_size", "engine.max_prefill_tokens"),
        "hardware.gpu_memory_utilization": (_STATIC,),
        "hardware.num_gpu_blocks": (_STATIC,),
    },
    joined=_joined,
    written=_written,
)  # fmt: skip
