"""The command line of TensorRT-LLM (tensorrt_llm/commands/serve.py), and its file of options (llmapi/llm_args.py)."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.servers import Flag, Launch, Startup


def _upper(*words: str) -> Mapping[str, str]:
    return {word: word.upper() for word in words}


def _remarks(policy: Any, values: Mapping[str, object]) -> Sequence[str]:
    share = values["hardware.gpu_memory_utilization"]
    return [] if share == 0.9 else [f"gpu_memory_utilization {share:g}: free_gpu_memory_fraction is of other memory"]


def _defaults(startup: Startup) -> Mapping[str, object]:
    """Return what the overlap scheduler depends on."""
    return {"engine.async_scheduling": startup.given.get("engine.capacity_policy") != "max_utilization"}


def _joined(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Return what the policy cannot do as the server does: max_utilization on the overlap scheduler."""
    return {"engine.async_scheduling": False} if found.get("engine.capacity_policy") == "max_utilization" else {}


_OF_FREE = "a share of what weights leave free: give `hardware.num_gpu_blocks`, or hardware.gpu_memory_utilization"
LAUNCH = Launch(
    programs=("trtllm-serve", "trtllm-serve serve", "dynamo.trtllm"),
    images=("tensorrt-llm", "tensorrtllm"),
    model_names=("--model", "--model-path"),
    flags=(
        Flag("--tp_size --tensor_parallel_size", "hardware.tensor_parallel", default=1),
        Flag("--max_batch_size", "engine.max_num_seqs", default=2048, always=True),
        Flag("--max_num_tokens", "engine.max_num_batched_tokens", default=8192, always=True),
        Flag("--enable_chunked_prefill", "engine.enable_chunked_prefill", means=True, is_written=False),
    ),
    options=(
        Flag("enable_chunked_prefill", "engine.enable_chunked_prefill", default=False, always=True),
        Flag("disable_overlap_scheduler", "engine.async_scheduling", default=True, always=True,
             words={True: False, False: True}),
        Flag("scheduler_config.capacity_scheduler_policy", "engine.capacity_policy", default="guaranteed_no_evict",
             always=True, words=_upper("guaranteed_no_evict", "max_utilization", "static_batch")),
        Flag("scheduler_config.context_chunking_policy", "engine.context_chunking_policy",
             default="first_come_first_served", always=True,
             words=_upper("first_come_first_served", "equal_progress")),
        Flag("kv_cache_config.tokens_per_block", "engine.block_size", default=32, always=True),
        Flag("kv_cache_config.dtype", "model.kv_dtype_bytes", is_written=False, words={1: ("fp8",), None: ("auto",)}),
        Flag("tensor_parallel_size", "hardware.tensor_parallel", is_written=False),
        Flag("max_batch_size", "engine.max_num_seqs", is_written=False),
        Flag("max_num_tokens", "engine.max_num_batched_tokens", is_written=False),
    ),
    options_flags=("--extra_llm_api_options", "--config"),
    without_effect={
        "how clients reach it": "host port served-model-name metadata-server-config-file server-role log-level "
        "otlp-* num-postprocess-workers disagg-cluster-uri",
        "how text becomes tokens and answers": "*tokenizer trust-remote-code reasoning-parser tool-parser "
        "chat-template revision custom-module-dirs fail-fast-* postprocess-* guided-decoding-*",
        "which of its backends runs, and what it prints": "backend gpus-per-node print-iter-log enable-iter-* "
        "*perf-stats* load-format stream-interval",
    },
    not_modelled={
        "lengths are bounded by the workload": "max-seq-len max-input-len max-beam-width",
        _OF_FREE: "free-gpu-memory-fraction kv-cache-free-gpu-memory-fraction kv-cache-config.free-* "
        "kv-cache-config.max-tokens",
        "prefixes are not shared by this policy": "kv-cache-config.enable-block-reuse "
        "kv-cache-config.enable-partial-reuse kv-cache-config.*",
        "a replica is one pipeline stage: see `hardware.tensor_parallel`": "pp-size pipeline-parallel-size "
        "*cp-size context-parallel-size",
        "step times are those of `cost`, whatever the kernels": "cuda-graph-config* moe-* ep-size cluster-size "
        "moe-expert-parallel-size attn-backend allreduce-strategy enable-attention-dp attention-dp-config* "
        "torch-compile-config* use-cuda-graph dtype enable-autotuner quant-config* batch-wait-*",
        "speculative decoding is not modelled yet": "speculative-config* ",
        "adapters are not modelled yet": "*lora*",
        "prompts of tokens alone are modelled": "media-io-kwargs *multimodal*",
        "moving KV between servers is not modelled from flags": "cache-transceiver-config*",
    },
    container="nvcr.io/nvidia/tensorrt-llm/release:latest",
    remarks=_remarks,
    defaults=_defaults,
    joined=_joined,
)  # fmt: skip
