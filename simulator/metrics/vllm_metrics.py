"""vLLM's Prometheus metrics of what a run counts: names, help, labels and buckets (0.33, `v1/metrics/loggers.py`).

Times are in seconds. The label `engine` is the replica's number.
"""

from collections.abc import Iterable, Mapping, Sequence

from simulator.results.records import Cause

PREFIX = "vllm:"
LABELS = ("model_name", "engine")
REASONS = ("stop", "length", "abort")  # why an answer ended: the label `finished_reason` of `request_success`

GAUGES: Mapping[str, str] = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
CONFIG = "cache_config_info", "Information of the LLMEngine CacheConfig"
CONFIG_LABELS = (*LABELS, "block_size", "num_gpu_blocks", "enable_prefix_caching")

COUNTERS: Mapping[str, str] = {
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prefix_cache_queries": "Prefix cache queries, in number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in number of cached tokens.",
}
DRAFT_COUNTERS: Mapping[str, str] = {
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
DRAFTS_BY_POSITION = "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position."
"""Only where tokens are drafted; the label `position` counts from 0 (`v1/spec_decode/metrics.py`)."""
LORA = "lora_requests_info", "Running stats on lora requests."
LORA_LABELS = "max_lora", "waiting_lora_adapters", "running_lora_adapters"
"""Only where adapters are served. The value is the time of the sample; both lists name the adapters of all requests,
waiting or running, as `LoRARequestStates` has them (`v1/metrics/stats.py`). vLLM gives no `engine`: of several replicas
the adapters of all stand there."""
SUCCESS = "request_success", "Count of successfully processed requests."
REJECTIONS = "admission_rejections", "Number of admission attempts rejected by a queue limit, by reason."
QUEUE_LIMITS = {Cause.QUEUE_FULL: "max_num_queued_reqs", Cause.TOKENS_FULL: "max_num_queued_tokens"}
"""The label `reason` of a request that was rejected by a limit of the queue."""

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)

HISTOGRAMS: Mapping[str, Sequence[float]] = {
    "time_to_first_token_seconds": _TTFT,
    "inter_token_latency_seconds": _ITL,
    "request_time_per_output_token_seconds": _ITL,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
}
"""Their upper bounds; those of `TOKENS` depend on the longest context."""

TOKENS = ("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens")


def lora_labels(max_loras: int, adapters: Iterable[str]) -> list[str]:
    """The values of `LORA_LABELS`, each adapter named once."""
    names = ",".join(dict.fromkeys(adapters))
    return [str(max_loras), names, names]


def help_of(histogram: str) -> str:
    """The help text of a histogram."""
    return f"Histogram of {histogram.replace('_', ' ')}."


def one_two_five(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 and so on, up to `most`."""
    return [float(m * 10**e) for e in range(len(str(most))) for m in (1, 2, 5) if m * 10**e <= most]


def buckets(histogram: str, max_model_len: int) -> Sequence[float]:
    """The upper bounds of a histogram's buckets, +Inf left out."""
    return one_two_five(max_model_len) if histogram in TOKENS else HISTOGRAMS[histogram]
