"""TensorRT-LLM as a server: its flags (tensorrt_llm/commands/serve.py), its file of options, and its host by version.

Options are those of llmapi/llm_args.py. The server of the policy `some_name` is `SOME_NAME`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scenarios.servers.server import Flag, Launch, Older, Server, Startup, Untabled
from scenarios.servers.vllm import FRONT_END, LIKE_VLLM_0_15, SYNC
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.host import Host, has_latent_blocks, layer_launch_s


def _upper(*words: str) -> Mapping[str, str]:
    return {word: word.upper() for word in words}


def _remarks(policy: Any, values: Mapping[str, object]) -> Sequence[str]:
    share = values["hardware.gpu_memory_utilization"]
    return [] if share == 0.9 else [f"gpu_memory_utilization {share:g}: free_gpu_memory_fraction is of other memory"]


def _defaults(startup: Startup) -> Mapping[str, object]:
    """Return what the overlap scheduler depends on."""
    return {"engine.async_scheduling": startup.given.get("engine.capacity_policy") != "max_utilization"}


def _joined(found: Mapping[str, Any]) -> Mapping[str, object]:
    """Return what the policy cannot do as the server does: max_utilization on the overlap scheduler; and its ranks.

    With data-parallel attention each GPU is a rank, with batches and tokens of its own (`Mapping.attn_tp_size`).
    """
    made: dict[str, object] = {}
    if found.get("engine.capacity_policy") == "max_utilization":
        made["engine.async_scheduling"] = False
    ranks = found.get("hardware.tensor_parallel", 1) if found.get(_ATTENTION) else 1
    if ranks > 1:
        made |= {"replicas": ranks * found.get("replicas", 1), "hardware.tensor_parallel": 1}
    if ranks > 1 or (found.get(_EXPERTS) or 1) > 1:
        made["hardware.enable_expert_parallel"] = True
    return made


def _written(_: Any, values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the flag of experts that one server's GPUs share."""
    shares = values["hardware.enable_expert_parallel"]
    return {_EXPERTS: values["hardware.tensor_parallel"]} if shares else {}


_ATTENTION = "engine.enable_attention_dp"  # these two keys only `joined` and `written` know
_EXPERTS = "engine.ep_size"
_OF_FREE = "a share of what weights leave free: give `hardware.num_gpu_blocks`, or hardware.gpu_memory_utilization"
LAUNCH = Launch(
    programs=("trtllm-serve", "trtllm-serve serve", "dynamo.trtllm"),
    images=("tensorrt-llm", "tensorrtllm"),
    model_names=("--model", "--model-path"),
    flags=(
        Flag("--tp_size --tensor_parallel_size", "hardware.tensor_parallel", default=1),
        Flag("--max_batch_size", "engine.max_num_seqs", default=2048, always=True),
        Flag("--max_num_tokens", "engine.max_num_batched_tokens", default=8192, always=True),
        Flag("--ep_size --moe_expert_parallel_size", _EXPERTS, default=1),
        Flag("--enable_attention_dp", _ATTENTION, means=True, is_written=False),
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
        Flag("batch_wait_timeout_iters", "engine.batch_wait_timeout_iters", default=0),
        Flag("batch_wait_max_tokens_ratio", "engine.batch_wait_max_tokens_ratio", default=0.0),
        Flag("kv_cache_config.tokens_per_block", "engine.block_size", default=32, always=True),
        Flag("kv_cache_config.dtype", "model.kv_dtype_bytes", is_written=False, words={1: ("fp8",), None: ("auto",)}),
        Flag("enable_attention_dp", _ATTENTION, means=True, is_written=False),
        Flag("moe_expert_parallel_size", _EXPERTS, is_written=False),
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
        "step times are those of `cost`, whatever the kernels": "cuda-graph-config* moe-* cluster-size "
        "attn-backend allreduce-strategy attention-dp-config* "
        "torch-compile-config* use-cuda-graph dtype enable-autotuner quant-config* batch-wait-timeout-ms",
        "speculative decoding is not modelled yet": "speculative-config* ",
        "adapters are not modelled yet": "*lora*",
        "prompts of tokens alone are modelled": "media-io-kwargs *multimodal*",
        "moving KV between servers is not modelled from flags": "cache-transceiver-config*",
    },
    container="nvcr.io/nvidia/tensorrt-llm/release:latest",
    remarks=_remarks,
    defaults=_defaults,
    joined=_joined,
    written=_written,
)  # fmt: skip


_BEFORE_1_1 = Older(
    (1, 1),
    Host(
        1.4e-3,
        7e-6,
        "TensorRT-LLM 1.0.0rc3 with overlap: TPOT less kernels, closed-loop runs of Qwen3-32B in fp8 on H100"
        " (aiconfigurator's silicon samples)",
    ),
    1.2,
)
"""All three were chosen on runs at TP 1, 2, 4 and 8 (docs/served.md): there are no tables of that version's kernels."""


def _untabled(model: Model, gpu: Gpu) -> Untabled | None:
    """Experts in block-scaled fp8 on Blackwell: tables have vLLM's, 1.4 times as quick in prompts of DeepSeek.

    By runs of 1.2 at TP 8; those at TP 4, which took no part in the choice, agree (docs/served.md).
    """
    return Untabled(1.4, layer_launch_s(model, gpu)) if has_latent_blocks(model, gpu) else None


TENSORRT_LLM = Server(
    replace(FRONT_END, per_prompt_token_s=6e-6),  # runs of Llama, gpt-oss and DeepSeek in fp4 want no more
    LIKE_VLLM_0_15,
    synchronous=Host(
        SYNC.step_s,
        SYNC.per_seq_s,
        "TensorRT-LLM without overlap: assumed as vLLM 0.12, 5.9 ms at 64 at once; with overlap an iteration is of"
        " 4.6 ms there, and the host works for about as long as the GPU (NVIDIA/TensorRT-LLM, issue 13957)",
    ),
    asynchronous=Host(
        0.0,
        0.0,
        "TensorRT-LLM with overlap: TPOT less kernels leaves nothing, closed-loop runs of DeepSeek, Llama and gpt-oss"
        " on H200 and B200 (aiconfigurator's silicon samples). Of Llama-3.1-8B fp8 on B200 at 64 at once 580 us of idle"
        " GPU an iteration were seen (NVIDIA/TensorRT-LLM, issue 13957)",
    ),
    older=(_BEFORE_1_1,),
    untabled=_untabled,
    launch=LAUNCH,
    kernels="trtllm",
    all_to_all=True,
    prompt_graphs=False,
)
