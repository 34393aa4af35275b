"""The KV cache that fits beside a model: vLLM's start-up arithmetic, and the table of `batchlab kv`.

    num_gpu_blocks = floor((gpu_memory_utilization x memory - weights - activations - other)
                           / (block_size x bytes per token))

all per GPU. A real server measures activations and other at start-up; here they are the estimates below. Where the
server's own count is known, give it as `num_gpu_blocks`: an error of the estimate shows in the queueing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model

GIB = 2**30

OTHER_GIB = 0.25
"""Memory outside torch's allocator and the weights: CUDA context growth, cuBLAS workspaces, the rope table,
the share of the CUDA graphs that counts against the budget. vLLM's start-up logs show 0.1 to 0.35 GiB."""

COLLECTIVES_GIB = 0.4
"""Buffers of NCCL and of the custom all-reduce on each GPU under tensor parallelism; 0.33 to 0.38 GiB by
aiconfigurator's measurements for 2 to 8 GPUs."""

SAMPLED_ROWS = 256
"""Rows of logits in vLLM's profiling run: its max_num_seqs, which is 256 on most GPUs. Servers with 1024 (Hopper and
up) reserve a few tenths of a GiB more."""

BYTES_PER_LOGIT = 30
"""Live bytes for one logit when the sampler is at its peak, in top-p's sort: bf16 2, float32 4, the sorted float32 4
with their int64 indices 8, and the sort's scratch 12."""

TABLE_CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class KVCache:
    """Counts of a paged KV cache. `num_gpu_blocks` is vLLM's own, its null block included; bytes are per GPU."""

    num_gpu_blocks: int
    block_size: int
    num_host_blocks: int
    bytes_per_block: int

    @property
    def usable(self) -> int:
        """Blocks for requests: all but the null block."""
        return self.num_gpu_blocks - 1

    @property
    def tokens(self) -> int:
        """Tokens that the usable blocks hold."""
        return self.usable * self.block_size


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The split of each GPU's memory, in bytes: of the server's share `budget`, `kv` remains (negative: too little)."""

    budget: int
    weights: int
    activations: int
    other: int

    @property
    def kv(self) -> int:
        return self.budget - self.weights - self.activations - self.other


def activation_bytes(model: Model, tensor_parallel: int, max_num_batched_tokens: int) -> int:
    """Peak bytes of intermediates on each GPU in a step of that many tokens: the larger of two moments.

    Inside a layer: the residual and the hidden states, and with them either q, k, v and the attention output, or the
    feed-forward's input, its gate and up products and their combination (for experts: one such set, and one output,
    for each expert of a token). After the layers: the sampler over `SAMPLED_ROWS` rows of logits, which are gathered
    whole on every GPU.
    """
    width = 4 if model.dtype_bytes == 4 else 2
    local_kv = model.local_kv_heads(tensor_parallel)
    attention = (2 * model.heads // tensor_parallel + 2 * local_kv) * model.head_dim
    branches = 3 if model.gated_mlp else 2
    dense = branches * max(model.intermediate, model.dense_intermediate) // tensor_parallel
    routed = model.active_experts * (branches * model.intermediate // tensor_parallel + model.hidden)
    feed_forward = model.hidden + (routed if model.experts else dense)
    layer = max_num_batched_tokens * (2 * model.hidden + max(attention, feed_forward)) * width
    rows = min(SAMPLED_ROWS, max_num_batched_tokens)
    return max(layer, rows * model.vocab * BYTES_PER_LOGIT)


def memory_budget(
    model: Model,
    gpu: Gpu,
    tensor_parallel: int = 1,
    gpu_memory_utilization: float = 0.9,
    max_num_batched_tokens: int = 2048,
) -> MemoryBudget:
    """The split of each GPU's memory; InputError where `tensor_parallel` does not fit the model's heads."""
    if not 0 < gpu_memory_utilization <= 1:
        raise InputError(f"gpu_memory_utilization must be above 0 and at most 1, not {gpu_memory_utilization}")
    if max_num_batched_tokens < 1:
        raise InputError(f"max_num_batched_tokens must be at least 1, not {max_num_batched_tokens}")
    other = OTHER_GIB + (COLLECTIVES_GIB if tensor_parallel > 1 else 0.0)
    return MemoryBudget(
        budget=int(gpu_memory_utilization * gpu.memory_bytes),
        weights=model.weight_bytes(tensor_parallel),
        activations=activation_bytes(model, tensor_parallel, max_num_batched_tokens),
        other=round(other * GIB),
    )


def kv_cache(
    model: Model,
    gpu: Gpu,
    tensor_parallel: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    max_num_batched_tokens: int = 2048,
    swap_space_gib: float = 0.0,
    num_gpu_blocks: int | None = None,
) -> KVCache:
    """The KV cache of one replica of `model` on `tensor_parallel` GPUs.

    `num_gpu_blocks`, as a real server printed it, replaces the arithmetic. `swap_space_gib` of host memory per GPU
    becomes host blocks. InputError where the model does not fit (with the tensor_parallel that would do), and on
    values out of range.
    """
    if block_size < 1:
        raise InputError(f"block_size must be at least 1, not {block_size}")
    if swap_space_gib < 0:
        raise InputError(f"swap_space_gib must not be negative, but is {swap_space_gib}")
    bytes_per_block = block_size * model.kv_bytes_per_token(tensor_parallel)
    if num_gpu_blocks is None:
        split = memory_budget(model, gpu, tensor_parallel, gpu_memory_utilization, max_num_batched_tokens)
        num_gpu_blocks = split.kv // bytes_per_block
        if num_gpu_blocks < 2:
            raise _does_not_fit(model, gpu, tensor_parallel, gpu_memory_utilization, block_size, max_num_batched_tokens)
    elif num_gpu_blocks < 2:
        raise InputError(
            f"num_gpu_blocks must be at least 2, not {num_gpu_blocks}",
            hint="it is vLLM's own count, of which one, the null block, holds nothing",
        )
    return KVCache(num_gpu_blocks, block_size, int(swap_space_gib * GIB) // bytes_per_block, bytes_per_block)


def swap_s_per_block(kv: KVCache, gpu: Gpu) -> float:
    """Seconds to copy one block between device and host; the GPUs of a replica copy their parts side by side."""
    return kv.bytes_per_block / (gpu.host_link_gb_s * 1e9)


def how_many_fit(kv: KVCache, context_tokens: int) -> int:
    """The number of requests of `context_tokens` KV tokens each that fit in the cache at the same time."""
    if context_tokens < 1:
        raise InputError(f"context must be at least 1 token, not {context_tokens}")
    return kv.usable // -(-context_tokens // kv.block_size)


class KVFigures(TypedDict):
    """The figures of `batchlab kv`. Bytes and GiB are per GPU; `requests_that_fit` maps a context length to a count."""

    model: str
    gpu: str
    tensor_parallel: int
    parameters: int
    gpu_memory_gib: float
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    budget_gib: float
    weights_gib: float
    activations_gib: float
    other_gib: float
    kv_gib: float
    kv_bytes_per_token: int
    block_size: int
    num_gpu_blocks: int
    kv_tokens: int
    requests_that_fit: dict[int, int]


def kv_figures(
    model: Model,
    gpu: Gpu,
    tensor_parallel: int = 1,
    context_tokens: int | None = None,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    max_num_batched_tokens: int = 2048,
) -> KVFigures:
    """The KV arithmetic of a model on a GPU as plain values.

    Without `context_tokens`, requests are counted for powers of two up to the model's longest context. InputError as
    `kv_cache`, and for a context that the model does not have.
    """
    if context_tokens is not None and context_tokens > model.max_model_len:
        raise InputError(
            f"context {context_tokens} is longer than {model.name} can read",
            hint=f"max_model_len is {model.max_model_len} tokens",
        )
    kv = kv_cache(model, gpu, tensor_parallel, gpu_memory_utilization, block_size, max_num_batched_tokens)
    split = memory_budget(model, gpu, tensor_parallel, gpu_memory_utilization, max_num_batched_tokens)
    contexts = [c for c in TABLE_CONTEXTS if c <= model.max_model_len] or [model.max_model_len]
    if context_tokens is not None:
        contexts = [context_tokens]
    return KVFigures(
        model=model.name,
        gpu=gpu.name,
        tensor_parallel=tensor_parallel,
        parameters=model.num_parameters,
        gpu_memory_gib=gpu.memory_gib,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        budget_gib=split.budget / GIB,
        weights_gib=split.weights / GIB,
        activations_gib=split.activations / GIB,
        other_gib=split.other / GIB,
        kv_gib=kv.num_gpu_blocks * kv.bytes_per_block / GIB,
        kv_bytes_per_token=model.kv_bytes_per_token(tensor_parallel),
        block_size=block_size,
        num_gpu_blocks=kv.num_gpu_blocks,
        kv_tokens=kv.tokens,
        requests_that_fit={context: how_many_fit(kv, context) for context in contexts},
    )


def kv_table(figures: KVFigures) -> str:
    """`kv_figures` as text for a terminal, without a final newline."""
    gpus = f"{figures['tensor_parallel']} x {figures['gpu']}" if figures["tensor_parallel"] > 1 else figures["gpu"]
    rows = [
        ("memory", f"{figures['gpu_memory_gib']:.2f}", "GiB"),
        ("for the server", f"{figures['budget_gib']:.2f}", f"GiB  {figures['gpu_memory_utilization']:g} of it"),
        ("weights", f"{figures['weights_gib']:.2f}", "GiB"),
        (
            "activations",
            f"{figures['activations_gib']:.2f}",
            f"GiB  at max_num_batched_tokens {figures['max_num_batched_tokens']}",
        ),
        ("graphs and other", f"{figures['other_gib']:.2f}", "GiB"),
        ("KV cache", f"{figures['kv_gib']:.2f}", "GiB"),
        ("KV per token", f"{figures['kv_bytes_per_token'] / 1024:.2f}", "KiB"),
        (f"blocks of {figures['block_size']}", f"{figures['num_gpu_blocks']:,}", ""),
        ("tokens", f"{figures['kv_tokens']:,}", ""),
    ]
    lines = [f"{figures['model']} on {gpus}: {figures['parameters'] / 1e9:.2f} billion parameters", "", "per GPU"]
    lines += [f"  {name:<18}{value:>12} {unit}".rstrip() for name, value, unit in rows]
    lines += ["", "requests that fit at the same time", f"  {'context':>12} {'requests':>12}"]
    lines += [f"  {context:>12,} {count:>12,}" for context, count in figures["requests_that_fit"].items()]
    return "\n".join(lines)


def _does_not_fit(
    model: Model,
    gpu: Gpu,
    tensor_parallel: int,
    gpu_memory_utilization: float,
    block_size: int,
    max_num_batched_tokens: int,
) -> InputError:
    """The error of a model that does not fit: need, supply, and the smallest tensor_parallel that leaves room."""
    split = memory_budget(model, gpu, tensor_parallel, gpu_memory_utilization, max_num_batched_tokens)
    share = f"{split.budget / GIB:.1f} GiB ({gpu_memory_utilization:g} x {gpu.memory_gib:.1f}) for the server"
    if split.weights >= split.budget:
        message = (
            f"{model.name} needs {split.weights / GIB:.1f} GiB of weights on each of {tensor_parallel} GPU(s), "
            f"{gpu.name} has {share}"
        )
    else:
        message = (
            f"no room for KV cache: of {gpu.name}'s {share}, {model.name} takes {split.weights / GIB:.1f} GiB for "
            f"weights, {split.activations / GIB:.1f} for activations and {split.other / GIB:.1f} for graphs and other"
        )
    for choice in model.tensor_parallel_choices():
        if choice > tensor_parallel:
            smaller = memory_budget(model, gpu, choice, gpu_memory_utilization, max_num_batched_tokens)
            if smaller.kv >= 2 * block_size * model.kv_bytes_per_token(choice):
                return InputError(message, hint=f"use tensor_parallel >= {choice}")
    return InputError(message, hint="no tensor_parallel makes it fit: take a GPU with more memory")
