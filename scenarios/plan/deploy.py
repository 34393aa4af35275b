"""The command that starts a server with a candidate's settings, in the words of the engine that its policy is of.

Sources of the flags: vLLM 0.33, vllm/engine/arg_utils.py; SGLang 0.5.23, sglang/srt/arg_groups/fields; TensorRT-LLM,
tensorrt_llm/commands/serve.py and llmapi/llm_args.py; Text Generation Inference 3, launcher/src/main.rs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from scenarios.assembly.engine_policy import policy_label
from scenarios.schema.scenario import Scenario

REPOSITORIES: Mapping[str, str] = {
    "llama-2-7b": "meta-llama/Llama-2-7b-chat-hf",
    "llama-2-70b": "meta-llama/Llama-2-70b-chat-hf",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B-Instruct",
    "llama-3.1-405b": "meta-llama/Llama-3.1-405B-Instruct",
    "mistral-7b": "mistralai/Mistral-7B-Instruct-v0.3",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "gpt2": "openai-community/gpt2",
}
"""Where the weights of a built-in model are on the Hugging Face hub."""


def deploy(scenario: Scenario, replicas: int = 1) -> str:
    """The command of one replica, and a remark on what it cannot say; a remark alone where no server does this."""
    policy = scenario.engine.policy
    write = _WRITERS.get(policy)
    if scenario.fleet is not None:
        return "# each group has a command of its own: plan the groups one by one"
    if write is None:
        return f"# {policy_label(policy)} is no server's: there is no command for it"
    command, remarks = write(scenario)
    if replicas > 1:
        remarks = [f"on each of {replicas:,} replicas", *remarks]
    return f"{command}  # {'; '.join(remarks)}" if remarks else command


def _model(scenario: Scenario) -> str:
    name = scenario.resolve_model().name
    return REPOSITORIES.get(name, name)


def _value(scenario: Scenario, key: str) -> object:
    return scenario.engine.parameter(key)


def _vllm(scenario: Scenario, *, chunked: bool, priority: bool = False) -> tuple[str, list[str]]:
    hardware, engine = scenario.hardware, scenario.engine
    flags = [f"vllm serve {_model(scenario)}"]
    if hardware.tensor_parallel > 1:
        flags.append(f"--tensor-parallel-size {hardware.tensor_parallel}")
    flags.append(f"--max-num-seqs {_value(scenario, 'max_num_seqs')}")
    flags.append(f"--max-num-batched-tokens {_value(scenario, 'max_num_batched_tokens')}")
    flags.append(f"--gpu-memory-utilization {hardware.gpu_memory_utilization:g}")
    flags.append("--enable-prefix-caching" if engine.enable_prefix_caching else "--no-enable-prefix-caching")
    if engine.block_size != 16:
        flags.append(f"--block-size {engine.block_size}")
    if not chunked or _value(scenario, "enable_chunked_prefill") is False:
        flags.append("--no-enable-chunked-prefill")
    if priority or _value(scenario, "order") == "priority":
        flags.append("--scheduling-policy priority")
    if threshold := _value(scenario, "long_prefill_token_threshold"):
        flags.append(f"--long-prefill-token-threshold {threshold}")
    if hardware.enable_expert_parallel:
        flags.append("--enable-expert-parallel")
    if _value(scenario, "async_scheduling"):
        flags.append("--async-scheduling")
    swaps = hardware.swap_space_gib and _value(scenario, "preemption_mode") in ("swap", "auto")
    return " ".join(flags), ["vLLM v1 recomputes, and swaps nothing"] if swaps and chunked else []


def _before_v1(scenario: Scenario) -> tuple[str, list[str]]:
    command, remarks = _vllm(scenario, chunked=False)
    if scenario.hardware.swap_space_gib and _value(scenario, "preemption_mode") in ("swap", "auto"):
        command += f" --swap-space {scenario.hardware.swap_space_gib:g}"
    return command, [*remarks, "prompts in steps of their own: vLLM before v1"]


def _sarathi(scenario: Scenario) -> tuple[str, list[str]]:
    command, remarks = _vllm(scenario, chunked=True)
    return command, [*remarks, "vLLM v1 schedules running requests first, as Sarathi-Serve does"]


def _sglang(scenario: Scenario) -> tuple[str, list[str]]:
    hardware, engine = scenario.hardware, scenario.engine
    chunk = _value(scenario, "chunked_prefill_size") or _value(scenario, "max_num_batched_tokens")
    flags = [f"python -m sglang.launch_server --model-path {_model(scenario)}"]
    if hardware.tensor_parallel > 1:
        flags.append(f"--tp-size {hardware.tensor_parallel}")
    flags.append(f"--max-running-requests {_value(scenario, 'max_num_seqs')}")
    flags.append(f"--chunked-prefill-size {chunk}")
    if (most := _value(scenario, "max_prefill_tokens")) is not None:
        flags.append(f"--max-prefill-tokens {most}")
    flags.append(f"--mem-fraction-static {hardware.gpu_memory_utilization:g}")
    flags.append(f"--schedule-policy {_value(scenario, 'order')}")
    flags.append(f"--schedule-conservativeness {_value(scenario, 'schedule_conservativeness')}")
    if _value(scenario, "enable_mixed_chunk"):
        flags.append("--enable-mixed-chunk")
    flags.append(f"--page-size {engine.block_size}")
    if not engine.enable_prefix_caching:
        flags.append("--disable-radix-cache")
    if not _value(scenario, "async_scheduling"):
        flags.append("--disable-overlap-schedule")
    return " ".join(flags), []


def _tensorrt_llm(scenario: Scenario) -> tuple[str, list[str]]:
    hardware = scenario.hardware
    flags = [f"trtllm-serve {_model(scenario)}"]
    if hardware.tensor_parallel > 1:
        flags.append(f"--tp_size {hardware.tensor_parallel}")
    flags.append(f"--max_batch_size {_value(scenario, 'max_num_seqs')}")
    flags.append(f"--max_num_tokens {_value(scenario, 'max_num_batched_tokens')}")
    capacity = str(_value(scenario, "capacity_policy")).upper()
    chunked = "true" if _value(scenario, "enable_chunked_prefill") else "false"
    overlap = "false" if _value(scenario, "async_scheduling") else "true"
    chunks = str(_value(scenario, "context_chunking_policy")).upper()
    options = (
        f"{{enable_chunked_prefill: {chunked}, disable_overlap_scheduler: {overlap}, "
        f"scheduler_config: {{capacity_scheduler_policy: {capacity}, context_chunking_policy: {chunks}}}}}"
    )
    return " ".join([*flags, "--extra_llm_api_options options.yaml"]), [f"options.yaml: {options}"]


def _tgi(scenario: Scenario) -> tuple[str, list[str]]:
    flags = [f"text-generation-launcher --model-id {_model(scenario)}"]
    if scenario.hardware.tensor_parallel > 1:
        flags.append(f"--num-shard {scenario.hardware.tensor_parallel}")
    flags.append(f"--max-batch-size {_value(scenario, 'max_num_seqs')}")
    names = ("max_batch_prefill_tokens", "max_batch_total_tokens", "waiting_served_ratio", "max_waiting_tokens")
    for name in names:
        if (value := _value(scenario, name)) is not None:
            flags.append(f"--{name.replace('_', '-')} {value}")
    return " ".join(flags), []


_WRITERS: Mapping[str, Callable[[Scenario], tuple[str, list[str]]]] = {
    "chunked_prefill": partial(_vllm, chunked=True),
    "vllm": partial(_vllm, chunked=True),
    "preemptive": partial(_vllm, chunked=True, priority=True),
    "continuous": _before_v1,
    "vllm_v0": _before_v1,
    "sarathi": _sarathi,
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
    "tgi": _tgi,
}
