"""The KV cache that fits beside a model: vLLM's start-up arithmetic, and the table of `batchlab kv`.

    num_gpu_blocks = floor((gpu_memory_utilization x memory - weights - activations - other)
                           / (block_size x bytes per token))

all per GPU. A real server measures activations and other at start-up; here they are the estimates below. Where the
server's own count is known, give it as `num_gpu_blocks`: an error of the estimate shows in the queueing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any

from simulator.division import cdiv
from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.kv_groups import LayerCache, layer_caches
from simulator.hardware.kv_plan import KVPlan, KVSettings, plan_kv
from simulator.hardware.model import GATED_DELTA, GATED_DELTA_CHECKPOINT
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

CHECKPOINTING_GPUS = ("h100", "h200", "gh200", "h20", "b200", "b300", "gb200", "gb300", "rtx-pro-6000", "rtx-5090")
"""GPUs whose kernel of gated delta nets can save a state inside a chunk (vLLM 0.33, qwen_gdn_linear_attn.py:246)."""

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


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """A model on `tensor_parallel` GPUs, and a server's settings that decide how much KV cache fits beside it.

    A drafter's weights and KV, in bytes on each GPU, lie beside the model's; adapters count with those weights.
    `mem_fraction_static` is SGLang's share in place of vLLM's: of weights and KV alone, with activations in the rest.
    InputError for a value out of range; where `tensor_parallel` does not fit the model's heads, once memory is asked
    for.
    """

    model: Model
    gpu: Gpu
    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    drafter_weight_bytes: int = 0
    drafter_kv_bytes_per_token: int = 0
    mem_fraction_static: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise InputError(f"gpu_memory_utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}")
        for name in ("block_size", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block on each GPU."""
        own = self.model.kv_bytes_per_token(self.tensor_parallel)
        return self.block_size * (own + self.drafter_kv_bytes_per_token)

    def budget(self) -> MemoryBudget:
        """The split of each GPU's memory."""
        if (static := self.mem_fraction_static) is not None:  # `profile_max_num_token` in model_runner.py, 0.5.9
            weights = self.model.weight_bytes(self.tensor_parallel) + self.drafter_weight_bytes
            return MemoryBudget(budget=int(static * self._free_bytes), weights=weights, activations=0, other=0)
        return MemoryBudget(
            budget=int(self.gpu_memory_utilization * self.gpu.memory_bytes),
            weights=self.model.weight_bytes(self.tensor_parallel) + self.drafter_weight_bytes,
            activations=activation_bytes(self.model, self.tensor_parallel, self.max_num_batched_tokens),
            other=round(self._other_gib * GIB),
        )

    def static_share(self) -> float:
        """SGLang's share of memory that leaves as much KV cache as these settings do, 4 digits of it."""
        split = self.budget()
        share = (split.weights + split.kv) / self._free_bytes
        return floor(share * 1e4) / 1e4

    @property
    def _free_bytes(self) -> int:
        """Bytes of a GPU before the model is loaded, as SGLang finds them."""
        return self.gpu.memory_bytes - round(self._other_gib * GIB)

    @property
    def _other_gib(self) -> float:
        return OTHER_GIB + (COLLECTIVES_GIB if self.tensor_parallel > 1 else 0.0)

    def kv_cache(self, swap_space_gib: float = 0.0, num_gpu_blocks: int | None = None) -> KVCache:
        """The KV cache of one replica.

        `num_gpu_blocks`, as a real server printed it, replaces the arithmetic. `swap_space_gib` of host memory per GPU
        becomes host blocks. InputError where the model does not fit (with the tensor_parallel that would do).
        """
        if swap_space_gib < 0:
            raise InputError(f"swap_space_gib must not be negative, but is {swap_space_gib}")
        bytes_per_block = self.bytes_per_block
        if num_gpu_blocks is None:
            num_gpu_blocks = self.budget().kv // bytes_per_block
            if num_gpu_blocks < 2:
                raise self._does_not_fit()
        elif num_gpu_blocks < 2:
            raise InputError(
                f"num_gpu_blocks must be at least 2, not {num_gpu_blocks}",
                hint="it is vLLM's own count, of which one, the null block, holds nothing",
            )
        host_blocks = int(swap_space_gib * GIB) // bytes_per_block
        return KVCache(num_gpu_blocks, self.block_size, host_blocks, bytes_per_block)

    def plan(
        self,
        max_model_len: int | None = None,
        *,
        enable_prefix_caching: bool = True,
        batches_in_flight: int = 2,
        num_gpu_blocks: int | None = None,
        prefix_match_unit: int | None = None,
        disable_hybrid_kv_cache_manager: bool = False,
        draft_layers: Sequence[LayerCache | None] = (),
    ) -> KVPlan:
        """The KV groups of one replica, as vLLM's planning has them for these bytes; see `KVSettings`.

        `draft_layers` are the drafter's, behind those of the model.

        InputError where the model does not fit, or no request of its longest context (`max_model_len`).
        """
        model = self.model
        saves = GATED_DELTA in model.layer_types and self.gpu.name in CHECKPOINTING_GPUS
        settings = KVSettings(
            max_model_len or model.max_model_len,
            self.block_size,
            self.max_num_batched_tokens,
            batches_in_flight,
            enable_prefix_caching,
            prefix_match_unit,
            disable_hybrid_kv_cache_manager=disable_hybrid_kv_cache_manager,
            state_alignment=GATED_DELTA_CHECKPOINT if saves else None,
        )
        kv = self.budget().kv
        if num_gpu_blocks is None and kv <= 0:
            raise self._does_not_fit()
        layers = [*layer_caches(model, self.tensor_parallel), *draft_layers]
        return plan_kv(layers, [kv], settings, num_gpu_blocks=num_gpu_blocks)

    def _does_not_fit(self) -> InputError:
        """The error of a model that does not fit: need, supply, and the smallest tensor_parallel that leaves room."""
        model, gpu, split = self.model, self.gpu, self.budget()
        fraction = self.gpu_memory_utilization if self.mem_fraction_static is None else self.mem_fraction_static
        share = f"{split.budget / GIB:.1f} GiB ({fraction:g} x {gpu.memory_gib:.1f}) for the server"
        weights = f"{split.weights / GIB:.1f} GiB"
        if split.weights >= split.budget:
            each = f"each of {self.tensor_parallel} GPU(s)"
            message = f"{model.name} needs {weights} of weights on {each}, {gpu.name} has {share}"
        else:
            message = (
                f"no room for KV cache: of {gpu.name}'s {share}, {model.name} takes {weights} for weights, "
                f"{split.activations / GIB:.1f} for activations and {split.other / GIB:.1f} for graphs and other"
            )
        for choice in model.tensor_parallel_choices():
            larger = replace(self, tensor_parallel=choice)
            if choice > self.tensor_parallel and larger.budget().kv >= 2 * larger.bytes_per_block:
                return InputError(message, hint=f"use tensor_parallel >= {choice}")
        return InputError(message, hint=self._gpus_needed())

    def _gpus_needed(self) -> str:
        """How many GPUs hold the model where tensor parallelism alone does not: stages of the widest that there is."""
        widest = max(self.model.tensor_parallel_choices())
        split = replace(self, tensor_parallel=widest).budget()
        room = split.budget - split.activations - split.other
        stages = cdiv(split.weights + 2 * self.bytes_per_block, room) if room > 0 else self.model.layers + 1
        if stages > self.model.layers:
            return "no number of GPUs makes it fit: take one with more memory"
        needed = f"about {stages * widest} GPUs: tensor_parallel {widest}, pipeline_parallel {stages}"
        return f"no tensor_parallel makes it fit; {needed}; or a GPU with more memory"


def swap_s_per_block(kv: KVCache, gpu: Gpu) -> float:
    """Seconds to copy one block between device and host; the GPUs of a replica copy their parts side by side."""
    return kv.bytes_per_block / (gpu.host_link_gb_s * 1e9)


def how_many_fit(kv: KVCache, context_tokens: int) -> int:
    """The number of requests of `context_tokens` KV tokens each that fit in the cache at the same time."""
    if context_tokens < 1:
        raise InputError(f"context must be at least 1 token, not {context_tokens}")
    return kv.usable // -(-context_tokens // kv.block_size)


def kv_figures(
    of: MemorySettings, context_tokens: int | None = None, max_model_len: int | None = None, *, caches: bool = True
) -> dict[str, Any]:
    """The figures of `batchlab kv`. Bytes and GiB are per GPU; `requests_that_fit` maps a context length to a count.

    Without `context_tokens`, requests are counted for powers of two up to the model's longest context. Of a model whose
    layers keep different things, `kv_groups` says what, and `kv_tokens` and `max_concurrency` are what vLLM logs for
    requests of `max_model_len` tokens; `caches` prefixes or not. InputError as `MemorySettings.kv_cache` or `plan`, and
    for a context that the model does not have.
    """
    model = of.model
    longest = max_model_len or model.max_model_len
    for name, asked in (("context", context_tokens), ("max_model_len", max_model_len)):
        if asked is not None and asked > model.max_model_len:
            raise InputError(
                f"{name} {asked} is longer than {model.name} can read",
                hint=f"max_model_len is {model.max_model_len} tokens",
            )
    split = of.budget()
    contexts = [c for c in TABLE_CONTEXTS if c <= longest] or [longest]
    if context_tokens is not None:
        contexts = [context_tokens]
    if model.has_kv_groups:
        plan = of.plan(max_model_len, enable_prefix_caching=caches)
        cache = _planned_figures(plan, contexts)
    else:
        kv = of.kv_cache()
        cache = {
            "kv_gib": kv.num_gpu_blocks * kv.bytes_per_block / GIB,
            "kv_bytes_per_token": model.kv_bytes_per_token(of.tensor_parallel),
            "block_size": of.block_size,
            "num_gpu_blocks": kv.num_gpu_blocks,
            "kv_tokens": kv.tokens,
            "requests_that_fit": {context: how_many_fit(kv, context) for context in contexts},
        }
    return {
        "model": model.name,
        "gpu": of.gpu.name,
        "tensor_parallel": of.tensor_parallel,
        "parameters": model.num_parameters,
        "gpu_memory_gib": of.gpu.memory_gib,
        "gpu_memory_utilization": of.gpu_memory_utilization,
        "max_num_batched_tokens": of.max_num_batched_tokens,
        "budget_gib": split.budget / GIB,
        "weights_gib": split.weights / GIB,
        "activations_gib": split.activations / GIB,
        "other_gib": split.other / GIB,
        **cache,
    }


def _planned_figures(plan: KVPlan, contexts: Sequence[int]) -> dict[str, Any]:
    """The figures of a cache with several groups. `kv_bytes_per_token` are those of the layers that keep all tokens."""
    kept = [group.page_bytes / group.cache.block_size for group in plan.groups if group.cache.kind == "full"]
    return {
        "kv_gib": plan.num_blocks * plan.bytes_per_block[0] / GIB,
        "kv_bytes_per_token": round(sum(kept)),
        "block_size": plan.block_size,
        "num_gpu_blocks": plan.num_blocks,
        "kv_tokens": plan.capacity_tokens,
        "max_concurrency": plan.max_concurrency,
        "max_model_len": plan.settings.max_model_len,
        "kv_groups": [
            {
                "kind": group.cache.kind,
                "layers": len(group.layers),
                "block_size": group.cache.block_size,
                "window": group.cache.window or group.cache.chunk or None,
            }
            for group in plan.groups
        ],
        "requests_that_fit": {context: (plan.num_blocks - 1) // plan.blocks_of(context) for context in contexts},
    }


def kv_table(figures: Mapping[str, Any]) -> str:
    """`kv_figures` as text for a terminal, without a final newline."""
    stages = figures.get("stages", ())
    count = figures["tensor_parallel"] * max(len(stages), 1)
    gpus = f"{count} x {figures['gpu']}" if count > 1 else figures["gpu"]
    of_stage = f" in the stage of {len(stages)} with the fewest blocks" if stages else ""
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
    alike: dict[tuple[str, int], list[int]] = {}
    for group in figures.get("kv_groups", ()):
        span = f" of {group['window']:,}" if group["window"] else ""
        alike.setdefault((f"{group['kind']}{span}", group["block_size"]), []).append(group["layers"])
    for (name, size), layers in alike.items():
        tables = f", {len(layers)} groups" if len(layers) > 1 else ""
        rows.append((name, f"{sum(layers)}", f"layers in blocks of {size:,}{tables}"))
    if "kv_groups" in figures:
        rows.append(("concurrency", f"{figures['max_concurrency']:.2f}", f"x {figures['max_model_len']:,} tokens"))
    lines = [
        f"{figures['model']} on {gpus}: {figures['parameters'] / 1e9:.2f} billion parameters",
        "",
        f"per GPU{of_stage}",
    ]
    lines += [f"  {name:<18}{value:>12} {unit}".rstrip() for name, value, unit in rows]
    if stages:
        lines += ["", f"  {'stage':>5} {'layers':>8} {'weights GiB':>12} {'KV GiB':>8} {'blocks that fit':>16}"]
        lines += [
            f"  {number:>5} {each['layers']:>8} {each['weights_gib']:>12.2f} {each['kv_gib']:>8.2f} "
            f"{each['num_gpu_blocks']:>16,}"
            for number, each in enumerate(stages)
        ]
    lines += ["", "requests that fit at the same time", f"  {'context':>12} {'requests':>12}"]
    lines += [f"  {context:>12,} {count:>12,}" for context, count in figures["requests_that_fit"].items()]
    return "\n".join(lines)
