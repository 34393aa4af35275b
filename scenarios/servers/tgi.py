"""Text Generation Inference as a server: the flags of its launcher (launcher/src/main.rs).

The server of the policy `some_name` is `SOME_NAME`.
"""

from dataclasses import replace

from scenarios.servers.server import Flag, Launch
from scenarios.servers.vllm import LIKE_VLLM_0_12

LAUNCH = Launch(
    programs=("text-generation-launcher",),
    images=("text-generation-inference",),
    model="--model-id",
    flags=(
        Flag("--num-shard", "hardware.tensor_parallel", default=1),
        Flag("--max-batch-size", "engine.max_num_seqs"),
        Flag("--max-batch-prefill-tokens", "engine.max_batch_prefill_tokens"),
        Flag("--max-batch-total-tokens", "engine.max_batch_total_tokens"),
        Flag("--waiting-served-ratio", "engine.waiting_served_ratio", always=True),
        Flag("--max-waiting-tokens", "engine.max_waiting_tokens", always=True),
        Flag("--cuda-memory-fraction", "hardware.gpu_memory_utilization"),
        Flag("--quantize", "model.dtype_bytes", is_written=False, words={1: ("fp8",)}),
        Flag("--kv-cache-dtype", "model.kv_dtype_bytes", is_written=False, words={1: ("fp8_e4m3fn", "fp8_e5m2")}),
    ),
    without_effect={
        "how clients reach it": "hostname port prometheus-port api-key cors-allow-origin shard-uds-path json-output "
        "otlp-* trust-remote-code revision huggingface-hub-cache weights-cache-override tokenizer-config-path "
        "max-client-batch-size master-* usage-stats env",
    },
    not_modelled={
        "lengths are bounded by the workload": "max-input-tokens max-input-length max-total-tokens max-best-of "
        "max-stop-sequences max-top-n-tokens",
        "requests beyond a number are not refused": "max-concurrent-requests",
        "step times are those of `cost`": "dtype cuda-graphs disable-custom-kernels rope-*",
        "speculative decoding is not modelled yet": "speculate",
        "adapters are not modelled yet": "lora-adapters",
    },
    container="ghcr.io/huggingface/text-generation-inference:3.3.4",
    port=80,
    joined=lambda found: {
        "engine.max_num_batched_tokens": max(2048, found.get("engine.max_batch_prefill_tokens") or 0)
    },
    written=lambda policy, values: {
        "engine.max_batch_prefill_tokens": min(
            policy.max_num_batched_tokens, policy.max_batch_prefill_tokens or policy.max_num_batched_tokens
        )
    },
)  # fmt: skip
TGI = replace(LIKE_VLLM_0_12, overload_status=429, launch=LAUNCH)  # `Model is overloaded`
