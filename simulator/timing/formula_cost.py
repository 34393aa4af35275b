"""Step costs by formula: the roofline of a model and a GPU, and a line with a few coefficients. Nothing is measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.hardware.stages import Stage
from simulator.timing.arithmetic import affine_run
from simulator.timing.cost import TABULATED, StepCounts, StepFloor, StepShape, check_seconds, lines_below

# The roofline step cost: seconds from the dimensions of a model and the peaks of a GPU, nothing measured.
#     step_s = host + layers x overhead + matrices + experts + lm_head + elementwise + all-reduce + attention
#
# - matrices: max(2 x parameters x tokens / compute, bytes of weights / bandwidth). All the dense matrices of a
# model have the same ratio of operations to bytes, so the maximum of the sum is the sum of the maxima.
# - experts: the same over those that a step touches: E (1 - (1 - k/E)^tokens) of E, k for a token, if chosen
# evenly.
# - lm_head, in bf16: a row for each scheduled request (an unfinished prompt's is dropped, as in vLLM), and its
# logits; where drafts are verified, a row for each of them too.
# - elementwise: norms, rope, activation functions; bytes / bandwidth.
# - all-reduce: two for a layer, of tokens x hidden, as a ring: 2 (n - 1) / n of the bytes over the link, and a
# latency; beyond the GPUs that its links connect, what is left over a network.
# - attention: max(operations / compute, KV bytes read and written / bandwidth), prompts and decodes in one kernel.
# A request that verifies drafts has several queries, which read its keys once.
#
# Each GPU of a tensor-parallel group does its part of the heads, widths and vocabulary at the same time.

Floats = NDArray[np.float64]
ACTIVATION_BYTES = 2  # activations and what is reduced between GPUs are bf16 whatever the weights are
STATE_BYTES = 4
"""Bytes of a value in the state of linear attention, which a decode reads and writes whole."""
LOGIT_BYTES = 10
"""Traffic for one logit: bf16 written and read, float32 written and read by the sampler once (2 + 2 + 4 + 2)."""
GEMM_EFFICIENCY, BANDWIDTH_EFFICIENCY = 0.8, 0.85
"""Shares of a datasheet's peaks that matrix products reach: see `Roofline`."""
LINK_EFFICIENCY = 0.6
"""The share of a link's bandwidth that transfers between GPUs reach: see `Roofline`."""
NETWORK_GB_S, NETWORK_LATENCY_US = 50.0, 20.0
"""Between servers: a port of 400 Gbit/s for each GPU, and the least time of a collective (assumed)."""
NVLINK_GB_S = 100.0
"""Links at least this fast are NVLink or Infinity Fabric, where a one-shot all-reduce kernel takes over from NCCL."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step costs of `model` on `tensor_parallel` GPUs of a kind. Implements CostModel.

    The efficiencies are the shares of a datasheet's peak that kernels reach. The defaults come from aiconfigurator's
    public kernel tables (vLLM 0.14 to 0.24 on H100, H200 and A100, bf16), fitted as latency + max(bytes, operations):
    GEMMs reach 0.79 to 0.82 of the compute and 0.85 to 0.88 of the bandwidth (A100: 0.74), decode attention 0.86 to
    0.89 of the bandwidth (A100: 0.71), prefill attention 0.53 to 0.59 of the compute (A100: 0.47), all-reduces of 2 to
    8 GPUs 0.5 to 0.8 of the link after 4.3 to 6.4 microseconds. The same fits leave 4.5 microseconds for each of a
    layer's four GEMMs and 10 for its attention kernel, which with norms, rope and activation is `layer_overhead_s`.
    Steps are assumed to run as CUDA graphs. Matrices are multiplied in the model's `multiplied_in`, where the GPU has
    units for it, and attention computed in fp8 where the KV cache is (as by FlashAttention 3), else in bf16. That
    kernels of fp8 reach the same share of their peak is an assumption.

    `samples_drafts` False leaves out the rows of drafts: a drafter that reads them samples one token for each request.
    `host_s` and `host_per_seq_s` are the host time that the GPU waits for (`scenarios.servers` has those of real
    engines). `allreduce_latency_s` None means 5 microseconds on NVLink-like links and 20 on PCIe.

    InputError where `tensor_parallel` does not fit the model's heads or a coefficient is out of range.
    """

    wants_context_stats = False

    model: Model
    gpu: Gpu
    tensor_parallel: int = 1
    gemm_efficiency: float = GEMM_EFFICIENCY
    attention_efficiency: float = 0.55
    bandwidth_efficiency: float = BANDWIDTH_EFFICIENCY
    link_efficiency: float = LINK_EFFICIENCY
    layer_overhead_s: float = 30e-6
    host_s: float = 300e-6
    host_per_seq_s: float = 0.0
    allreduce_latency_s: float | None = None
    samples_drafts: bool = True

    # Seconds, from here on, for one of what the name says; set once by __post_init__.
    _constant: float = field(init=False, repr=False, compare=False)
    _token: float = field(init=False, repr=False, compare=False)
    _dense_flops: float = field(init=False, repr=False, compare=False)
    _dense_bytes: float = field(init=False, repr=False, compare=False)
    _expert_flops: float = field(init=False, repr=False, compare=False)
    _expert_bytes: float = field(init=False, repr=False, compare=False)
    _expert_miss: float = field(init=False, repr=False, compare=False)
    _row: float = field(init=False, repr=False, compare=False)
    _head_flops: float = field(init=False, repr=False, compare=False)
    _head_bytes: float = field(init=False, repr=False, compare=False)
    _key: float = field(init=False, repr=False, compare=False)
    _pair: float = field(init=False, repr=False, compare=False)
    _kv: float = field(init=False, repr=False, compare=False)
    _decode_cache: dict[int, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check()
        model, ranks = self.model, self.tensor_parallel
        per_flop = 1 / (self.gpu.tflops(model.multiplied_in) * 1e12 * self.gemm_efficiency)
        expert_flop = 1 / (self.gpu.tflops(model.experts_multiplied_in) * 1e12 * self.gemm_efficiency)
        per_byte = 1 / (self.gpu.bandwidth_gb_s * 1e9 * self.bandwidth_efficiency)
        attention = self.gpu.tflops("fp8" if model.kv_dtype_bytes == 1 else "bf16")
        attention_flop = 1 / (attention * 1e12 * self.attention_efficiency)

        dense = model.layer_parameters(ranks)
        expert = model.moe_layers * model.expert_parameters / ranks
        head = model.table_parameters(ranks)
        head_flop = 1 / (self.gpu.bf16_tflops * 1e12 * self.gemm_efficiency)  # quantisers leave it as it was
        key_flops, pair_flops = _attention_flops(model)
        local_heads = model.attention_layers * (model.heads // ranks)
        states = model.state_layers * model.linear_value_heads / ranks * (model.linear_head_dim * model.value_head_dim)
        latency, per_token = self._all_reduce()
        derived = {
            "_constant": self.host_s + model.layers * self.layer_overhead_s + latency,
            "_token": _elementwise_bytes(model, ranks) * per_byte + per_token,
            "_dense_flops": 2 * dense * per_flop,
            "_dense_bytes": dense * model.dtype_bytes * per_byte,
            "_expert_flops": 2 * model.active_experts * expert * expert_flop,
            "_expert_bytes": model.experts * expert * model.expert_bytes * per_byte,
            "_expert_miss": 1 - model.active_experts / model.experts if model.experts else 1.0,
            "_row": (model.vocab * LOGIT_BYTES + 2 * STATE_BYTES * states) * per_byte + self.host_per_seq_s,
            "_head_flops": 2 * head * head_flop,
            "_head_bytes": head * model.embedding_bytes * per_byte,
            "_key": local_heads * key_flops * attention_flop,
            "_pair": local_heads * pair_flops * attention_flop,
            "_kv": model.kv_bytes_per_token(ranks) * per_byte,
            "_decode_cache": {},
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # the way to a derived field of a frozen dataclass

    def step_s(self, shape: StepShape) -> float:
        decode_seqs, decode_context, prefill_seqs, prefill_tokens, prefill_context, prefill_pairs, *_ = shape
        if shape.draft_tokens:
            return self._verify_s(shape)
        tokens = decode_seqs + prefill_tokens
        if tokens <= 0:
            return 0.0
        kv_tokens = decode_context + prefill_context + tokens  # read, and written
        compute = self._key * decode_context + self._pair * prefill_pairs
        memory = self._kv * kv_tokens
        return self._but_attention_s(tokens, decode_seqs + prefill_seqs) + (compute if compute > memory else memory)

    def _verify_s(self, shape: StepShape) -> float:
        """Seconds of a step whose decodes verify drafts: as many queries for each, over the same keys."""
        tokens, drafts, seqs = shape.tokens, shape.draft_tokens, shape.decode_seqs
        rows = seqs + shape.prefill_seqs + (drafts if self.samples_drafts else 0)
        compute = self._key * shape.decode_context * (1 + drafts / seqs) + self._pair * shape.prefill_pairs
        rest = self._but_attention_s(tokens, rows) - self.host_per_seq_s * (rows - seqs - shape.prefill_seqs)
        return rest + max(compute, self._kv * (shape.context + tokens))

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        decode_seqs, decode_context = shape.decode_seqs, shape.decode_context
        fixed = self._decode_cache.get(decode_seqs)
        if fixed is None:
            fixed = self._decode_cache[decode_seqs] = self._but_attention_s(decode_seqs, decode_seqs)
        key, kv = self._key, self._kv
        if key <= kv:  # then key * x <= kv * (x + seqs) for every x, rounded or not: attention waits for memory
            return affine_run(fixed, kv, decode_context + decode_seqs, decode_seqs, repeat)
        stop = decode_context + decode_seqs * repeat
        return [
            fixed + (compute if (compute := key * x) > (memory := kv * (x + decode_seqs)) else memory)
            for x in range(decode_context, stop, decode_seqs)
        ]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        precision = self.model.multiplied_in
        if precision == "bf16" or self.gpu.tflops(precision) != self.gpu.bf16_tflops:
            return ()
        return (f"{self.gpu.name} has no {precision} peak on record: matrices are multiplied at that of bf16",)

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """Lines below all that depends on the tokens, each with attention that waits for compute, or for memory.

        The maximum of two times is at least each of them. Beyond `TABULATED` tokens no expert is counted: what is left
        grows by the same for each token, so the two ends stand for all between them.
        """
        tabulated = min(most_tokens, TABULATED)
        tokens = np.arange(1.0, tabulated + 1.0)
        dense = np.maximum(self._dense_flops * tokens, self._dense_bytes)
        experts = np.maximum(self._expert_flops * tokens, self._expert_bytes * (1.0 - self._expert_miss**tokens))
        seconds = self._constant + self._head_bytes + self._token * tokens + dense + experts
        if most_tokens > tabulated:
            ends = np.array([tabulated + 1.0, float(most_tokens)])
            beyond = self._constant + self._head_bytes + (self._token + self._dense_flops) * ends
            tokens, seconds = np.append(tokens, ends), np.append(seconds, beyond)
        waits = (
            StepFloor(0.0, row=self._row, decode_context=self._key, pair=self._pair),
            StepFloor(0.0, self._kv, self._row, decode_context=self._kv, prefill_context=self._kv),
        )
        return [
            StepFloor(at_once, token).plus(attention)
            for at_once, token in lines_below(tokens, seconds)
            for attention in waits
        ]

    def stage(self, stage: Stage) -> "Roofline":
        """The cost of a stage of the model. See `simulator.timing.pipeline_cost.Staged`."""
        return replace(self, model=stage.model)

    def experts_s(self, tokens: int, sharing: int = 1) -> float:
        """Seconds of all routed experts for so many tokens, where each of `sharing` replicas has its part of them."""
        compute = self._expert_flops * tokens / sharing
        touched = self._expert_bytes * (1.0 - self._expert_miss**tokens) / sharing
        return max(compute, touched)

    def all_reduce_s(self, tokens: int) -> float:
        """Seconds of a step's all-reduces."""
        latency_s, token_s = self._all_reduce()
        return latency_s + token_s * tokens

    def by_resource_s(
        self, tokens: Floats, rows: Floats, decode_context: Floats, prefill_tokens: Floats, pairs: Floats
    ) -> dict[str, Floats]:
        """Seconds of steps by what they wait for: `compute`, `bandwidth`, `link` and `host`, an entry a step each.

        The terms of `step_s`, each under the slower of its two resources; they add up to it. In layers with a window a
        request sees that much at most, if the contexts of a step are about equal.
        """
        model = self.model
        if windowed := model.windowed_layers / model.attention_layers:
            far, near = 1.0 - windowed, windowed * model.sliding_window
            decode_context = far * decode_context + np.minimum(windowed * decode_context, near * rows)
            pairs = far * pairs + np.minimum(windowed * pairs, near * prefill_tokens)
        latency_s, link_token_s = self._all_reduce()
        found = {name: np.zeros(len(tokens)) for name in ("compute", "bandwidth")}
        found["link"] = latency_s + link_token_s * tokens
        found["host"] = self.host_s + model.layers * self.layer_overhead_s + self.host_per_seq_s * rows
        found["bandwidth"] += (self._token - link_token_s) * tokens + (self._row - self.host_per_seq_s) * rows
        touched = self._expert_bytes * (1.0 - self._expert_miss**tokens) if self._expert_bytes else 0.0 * tokens
        for compute, memory in (
            (self._dense_flops * tokens, self._dense_bytes + 0.0 * tokens),
            (self._head_flops * rows, self._head_bytes + 0.0 * tokens),
            (self._expert_flops * tokens, touched),
            (self._key * decode_context + self._pair * pairs, self._kv * (decode_context + prefill_tokens + tokens)),
        ):
            found["compute"] += np.where(compute > memory, compute, 0.0)
            found["bandwidth"] += np.where(compute > memory, 0.0, memory)
        return found

    def _but_attention_s(self, tokens: int, rows: int) -> float:
        """Seconds of everything that does not depend on the context, for so many tokens and sampled rows."""
        dense = self._dense_flops * tokens
        if dense < self._dense_bytes:
            dense = self._dense_bytes
        head = self._head_flops * rows
        if head < self._head_bytes:
            head = self._head_bytes
        total = self._constant + self._token * tokens + self._row * rows + dense + head
        if self._expert_bytes:
            experts = self._expert_flops * tokens
            touched = self._expert_bytes * (1.0 - self._expert_miss**tokens)
            total += experts if experts > touched else touched
        return total

    def _all_reduce(self) -> tuple[float, float]:
        """Seconds of a step's all-reduces: at once, and for each token."""
        ranks, model = self.tensor_parallel, self.model
        if ranks == 1:
            return 0.0, 0.0
        latency = self.allreduce_latency_s
        if latency is None:
            latency = 5e-6 if self.gpu.link_gb_s >= NVLINK_GB_S else 20e-6
        count, inside = model.sublayers, min(ranks, self.gpu.link_gpus)
        row = 2 * model.hidden * ACTIVATION_BYTES
        token_s = row * (1 - 1 / inside) / (self.gpu.link_gb_s * 1e9 * self.link_efficiency)
        if ranks > inside:
            latency += 2e-6 * NETWORK_LATENCY_US
            token_s += row * (1 - inside / ranks) / inside / (NETWORK_GB_S * 1e9)
        return count * latency, count * token_s

    def _check(self) -> None:
        for name in ("gemm_efficiency", "attention_efficiency", "bandwidth_efficiency", "link_efficiency"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InputError(f"roofline cost: {name} must be above 0 and at most 1, not {value}")
        check_seconds(self, "roofline cost", "layer_overhead_s", "host_s", "host_per_seq_s", "allreduce_latency_s")


def _attention_flops(model: Model) -> tuple[int, int]:
    """Operations of one head of one layer: for a cached key of a decode, and for a (query, key) pair of a prompt.

    Two for a multiplication and an addition, over the width of the scores and that of the values.
    """
    if model.kv_lora_rank:
        return latent_flops(model.kv_lora_rank, model.rope_head_dim, model.head_dim)
    return 4 * model.head_dim, 4 * model.head_dim


def latent_flops(kv_lora_rank: int, rope_head_dim: int, head_dim: int) -> tuple[int, int]:
    """`_attention_flops` of latent attention, which decodes in the latent space and computes prompts in the heads'."""
    return 4 * kv_lora_rank + 2 * rope_head_dim, 4 * head_dim + 2 * rope_head_dim


def _elementwise_bytes(model: Model, ranks: int) -> float:
    """Bytes that norms and activation functions move for a token on each GPU.

    A norm with its residual reads two rows of `hidden` and writes two, before each mixer and each feed-forward. A gated
    activation reads two rows of the feed-forward's width and writes one. Experts also gather and combine a row of
    `hidden` each.
    """
    norms = model.sublayers * 4 * model.hidden
    branches = 3 if model.gated_mlp else 2
    if model.experts:
        width = branches * model.intermediate / ranks
        routed = model.active_experts * (width + 2 * model.hidden) + model.shared_experts * width
        wide = model.moe_layers * routed + model.dense_layers * branches * model.dense_intermediate / ranks
    else:
        wide = model.dense_share * model.layers * branches * model.intermediate / ranks
    return (norms + wide) * ACTIVATION_BYTES


# The roofline of a model of which some layers see a window of the context alone (gpt-oss, Gemma 3).
#
# A request's keys in such a layer are its context up to the window. A step's shape has the sum of the contexts, so
# those of its decodes are taken as equal: of unequal ones fewer keys are seen, and the step is a little shorter
# than here.


@dataclass(frozen=True, slots=True)
class WindowedRoofline:
    """Step costs of `cost.model`, whose windows are those of its layers. Implements CostModel."""

    cost: Roofline
    _whole: float = field(init=False, repr=False, compare=False)  # the share of layers that see all
    _window: int = field(init=False, repr=False, compare=False)

    wants_context_stats = False

    def __post_init__(self) -> None:
        model = self.cost.model
        object.__setattr__(self, "_whole", 1.0 - model.windowed_layers / model.attention_layers)
        object.__setattr__(self, "_window", model.sliding_window)

    def step_s(self, shape: StepShape) -> float:
        return self.cost.step_s(self._seen(shape))

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        return [self.step_s(shape.later(steps)) for steps in range(repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """Lines below: of the layers that see all."""
        return [
            floor._replace(
                decode_context=self._whole * floor.decode_context,
                prefill_context=self._whole * floor.prefill_context,
                pair=self._whole * floor.pair,
            )
            for floor in self.cost.floors(most_tokens)
        ]

    def stage(self, stage: Stage) -> "WindowedRoofline | Roofline":
        """The cost of a stage of the model, which may have layers of one kind alone."""
        of_stage = self.cost.stage(stage)
        return WindowedRoofline(of_stage) if of_stage.model.windowed_layers else of_stage

    def by_resource_s(
        self, tokens: Floats, rows: Floats, decode_context: Floats, prefill_tokens: Floats, pairs: Floats
    ) -> dict[str, Floats]:
        """As `Roofline.by_resource_s`, which counts windows itself."""
        return self.cost.by_resource_s(tokens, rows, decode_context, prefill_tokens, pairs)

    def _seen(self, shape: StepShape) -> StepShape:
        """The shape with the keys and pairs that are seen in the mean layer, whole numbers of them."""
        decodes = shape.decode_seqs * self._window
        chunks = shape.prefill_seqs * self._window + shape.prefill_tokens
        return shape._replace(
            decode_context=self._mean(shape.decode_context, decodes),
            prefill_context=self._mean(shape.prefill_context, chunks),
            prefill_pairs=self._mean(shape.prefill_pairs, shape.prefill_tokens * self._window),
        )

    def _mean(self, whole: int, within: int) -> int:
        """The mean over the layers of a count, and of the same within the window."""
        return whole if whole <= within else round(self._whole * whole + (1.0 - self._whole) * within)


# The linear step cost: a few coefficients, from a fit or a guess.


@dataclass(frozen=True, slots=True)
class Linear:
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens, left to right.

    `scheduled_tokens` are those computed in the step, `context_tokens` the KV tokens of the same requests after it,
    both with padding. A step without tokens costs 0. Drafts are scheduled tokens of the step that verifies them, and
    add `per_drafted_token_s` each in the step at whose end they are proposed. Coefficients are seconds, finite and not
    negative (InputError).
    """

    wants_context_stats = False

    base_s: float
    per_token_s: float = 0.0
    per_context_token_s: float = 0.0
    per_drafted_token_s: float = 0.0

    def __post_init__(self) -> None:
        check_seconds(self, "linear cost", "base_s", "per_token_s", "per_context_token_s", "per_drafted_token_s")

    def step_s(self, shape: StepShape) -> float:
        tokens = shape.decode_seqs + shape.prefill_tokens + shape.draft_tokens
        if tokens <= 0:
            return 0.0
        context = shape.decode_context + shape.prefill_context
        seconds = self.base_s + self.per_token_s * tokens + self.per_context_token_s * context
        return seconds + self.per_drafted_token_s * shape.drafted_tokens if shape.drafted_tokens else seconds

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        decode_seqs, decode_context = shape.decode_seqs, shape.decode_context
        return affine_run(
            self.base_s + self.per_token_s * decode_seqs, self.per_context_token_s, decode_context, decode_seqs, repeat
        )

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return ()

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """The model itself, which is linear."""
        context = self.per_context_token_s
        return [StepFloor(self.base_s, self.per_token_s, 0.0, context, context)]
