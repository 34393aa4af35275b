"""Time that images, adapters and drafts add to a step, and the memory that they take beside the model."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.cost import CostModel, GroupCost, StepCounts, StepShape
from simulator.timing.formula_cost import BANDWIDTH_EFFICIENCY, GEMM_EFFICIENCY

# Time that a part of the engine adds to every step: adapters, or the encoder of images.


class Addition(Protocol):
    """Seconds on top of a step's; those of equal counts are equal, however long the contexts are."""

    def s(self, shape: StepShape) -> float: ...


@dataclass(frozen=True, slots=True)
class WithAddition:
    """A cost model with the time of a part on top. Implements CostModel."""

    cost: CostModel
    part: Addition

    @property
    def wants_context_stats(self) -> bool:
        return self.cost.wants_context_stats

    def step_s(self, shape: StepShape) -> float:
        return self.cost.step_s(shape) + self.part.s(shape)

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        more_s = self.part.s(shape)
        return [each + more_s for each in self.cost.decode_run_s(shape, repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)


@dataclass(frozen=True, slots=True)
class RanksWithAddition:
    """Common steps of data-parallel ranks that each have such a part: the slowest is waited for."""

    cost: GroupCost
    part: Addition

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        return self.cost.group_step_s(shapes) + max(map(self.part.s, shapes))


# The time that the encoder of images adds to a step: its operations by the GPU's datasheet.
#
# A token of the model stands for `encoder_patches` patches of the image, each of which goes through all the
# encoder's parameters: two operations a parameter. Attention among the patches of an image is left out: for 1,024
# patches of width 1,280 it takes less than a tenth of what a layer's products take.


@dataclass(frozen=True, slots=True)
class EncoderTime:
    """The encoder of a model, divided among `tensor_parallel` GPUs."""

    model: Model
    gpu: Gpu
    tensor_parallel: int = 1

    def s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape spends on images."""
        if not shape.embeddings:
            return 0.0
        flops = self.gpu.tflops("bf16") * 1e12 * GEMM_EFFICIENCY * self.tensor_parallel
        return 2 * self.model.encoder_parameters * self.model.encoder_patches * shape.embeddings / flops


# The time that LoRA adapters add to a step, and the memory that they take beside the model.
#
# As vLLM 0.33 computes them (vllm/lora/punica_wrapper/punica_gpu.py): of every layer, the projections before
# attention, after it, and the two of the feed-forward each start two kernels, one that shrinks the tokens to the
# adapters' rank and one that expands the result and adds it. A kernel takes as long as its bytes: tokens in and
# out, the intermediate in float32, and the weights of each adapter in the batch. It takes at least `KERNEL_S`.
# Adapters count with the rank of their slots (`max_lora_rank`), to which smaller ones are padded. Experts have no
# adapters here. A step in which no request has an adapter takes what it takes without (graphs without adapters,
# `cudagraph_specialize_lora`).

KERNEL_S = 10e-6
"""Seconds of an expand kernel at up to 16 requests and rank 16 (vllm-project/vllm, pull request 32425: about 10 us
since, 14 us before); the shrink kernel is taken to last as long."""

_BYTES, _FLOAT32 = 2, 4  # of a weight or an activation, and of what lies between the two kernels


class Projection(NamedTuple):
    """One matrix product of a layer on one GPU, or `slices` of them with a common input, `outputs` wide together."""

    inputs: int
    outputs: int
    slices: int


def projections(model: Model, tensor_parallel: int) -> tuple[Projection, ...]:
    """The products of a layer that adapters change. InputError for a model whose attention has no heads of its own."""
    other = "multi-head latent attention" if model.kv_lora_rank else "a layer with a state" if model.has_states else ""
    if other:
        what = f"adapters of {model.name} are not priced: {other} has other projections"
        raise InputError(what, hint="another model; adapters are priced for heads of attention and a feed-forward")
    queries = model.heads * model.head_dim // tensor_parallel
    keys = model.local_kv_heads(tensor_parallel) * model.head_dim
    attention = (Projection(model.hidden, queries + 2 * keys, 3), Projection(queries, model.hidden, 1))
    if model.experts:
        return attention
    width, branches = model.intermediate // tensor_parallel, 2 if model.gated_mlp else 1
    return (*attention, Projection(model.hidden, branches * width, branches), Projection(width, model.hidden, 1))


@dataclass(frozen=True, slots=True)
class Loras:
    """Adapters of one rank on one kind of GPU. InputError for a model whose adapters are not priced.

    `slot_bytes` are the bytes of one adapter on each GPU: the matrices that are not divided lie on all.
    """

    model: Model
    gpu: Gpu
    tensor_parallel: int
    rank: int
    slot_bytes: int = field(init=False)
    _projections: tuple[Projection, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        found = projections(self.model, self.tensor_parallel)
        weights = sum(each.slices * each.inputs + each.outputs for each in found)
        object.__setattr__(self, "_projections", found)
        object.__setattr__(self, "slot_bytes", self.model.layers * self.rank * weights * _BYTES)

    def s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape spends on its adapters, their way from host memory included."""
        if not shape.lora_tokens and not shape.loaded_loras:
            return 0.0
        loading_s = shape.loaded_loras * self.slot_bytes / (self.gpu.host_link_gb_s * 1e9)
        return loading_s + (self._kernels_s(shape.lora_tokens, shape.loras) if shape.lora_tokens else 0.0)

    def _kernels_s(self, tokens: int, loras: int) -> float:
        bandwidth = self.gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_EFFICIENCY
        layer_s = 0.0
        for inputs, outputs, slices in self._projections:
            between = tokens * slices * self.rank * _FLOAT32
            shrink = (tokens + loras * slices * self.rank) * inputs * _BYTES + between
            expand = (2 * tokens + loras * self.rank) * outputs * _BYTES + between
            layer_s += max(KERNEL_S, shrink / bandwidth) + max(KERNEL_S, expand / bandwidth)
        return self.model.layers * layer_s


# The time that a drafter adds to a step, and the memory that it takes beside the model.
#
# At the end of a step the drafter first reads the step's tokens, prompts and verified drafts among them, because it
# keeps KV of its own; that pass proposes the first token. Each further token takes a pass over one token a request
# (`propose` in vllm/v1/spec_decode/eagle.py, 0.33). A parallel drafter proposes all in the first pass.
#
# - EAGLE (arXiv 2401.15077): one dense layer, behind a projection of the token's embedding and the model's hidden
# state. EAGLE3 (arXiv 2503.01840) joins three hidden states, and chooses among `EAGLE3_VOCAB` tokens.
# - MTP (DeepSeek-V3, arXiv 2412.19437, 2.2): one of the model's own layers, experts included, behind such a
# projection.
# - A draft model is a model of its own. n-gram lookups run on the CPU and add nothing here.
#
# Heads share embeddings and, but for EAGLE3, the output table with the model. The head's products are assumed to
# reach the shares of the peaks that `simulator.timing.formula_cost` has. The other kernels of a head's pass, and
# the launches of all, are `small_kernels` of `simulator.timing.tables.assumed`. They run inside CUDA graphs, in
# vLLM 0.33 one for the first pass and one for all others
# (vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py), so that nothing waits for the host. Before 0.9
# heads had no graphs.

EAGLE3_VOCAB = 32000
"""Rows of the output table of published EAGLE3 heads (`draft_vocab_size` in their config.json)."""


def draft_head(model: Model, method: str) -> Model:
    """The layer of an EAGLE or MTP head, by the dimensions of the model that it drafts for.

    EAGLE's is dense and in bf16, as wide as what a token of the model goes through.
    """
    if method == "mtp":
        own = replace(model, layers=1, dense_layers=0, dense_intermediate=0, full_attention_layers=0)
    else:
        width = model.intermediate
        if model.experts:
            width = model.dense_intermediate or width * (model.active_experts + model.shared_experts)
        own = replace(
            model, layers=1, intermediate=width, experts=0, active_experts=0, shared_experts=0, dense_layers=0,
            dense_intermediate=0, expert_dtype="auto", full_attention_layers=0, dtype_bytes=2, matmul_dtype="auto",
        )  # fmt: skip
    vocab = min(model.vocab, EAGLE3_VOCAB) if method == "eagle3" else model.vocab
    return replace(own, name=f"{model.name} {method} head", sliding_window=0, vocab=vocab)


def joined_parameters(model: Model, method: str) -> int:
    """Parameters of the projection in front of a head: of two vectors of `hidden` to one, of three for EAGLE3."""
    return (3 if method == "eagle3" else 2) * model.hidden**2


@dataclass(frozen=True, slots=True)
class DrafterMemory:
    """Bytes on each GPU: of the drafter's weights, and of its KV of a token."""

    weights: int = 0
    kv_per_token: int = 0


def memory_of(drafter: Model, tensor_parallel: int, joined: int = 0, modules: int = 1) -> DrafterMemory:
    """The memory of a drafter; with `joined` > 0 a head, of `modules` layers behind such projections.

    A head's embeddings are the model's own; a small output table of its own is not counted.
    """
    kv = modules * drafter.kv_bytes_per_token(tensor_parallel)
    if not joined:
        return DrafterMemory(drafter.weight_bytes(tensor_parallel), kv)
    tables = (1 if drafter.tie_embeddings else 2) * drafter.table_parameters(tensor_parallel)
    own = drafter.weight_bytes(tensor_parallel) - round(tables * drafter.embedding_bytes)
    return DrafterMemory(modules * (own + round(joined * drafter.dtype_bytes / tensor_parallel)), kv)


@dataclass(frozen=True, slots=True)
class Joint:
    """The projection in front of a head: seconds for a token's operations, and to read its weights."""

    token_s: float = 0.0
    weights_s: float = 0.0

    @classmethod
    def of(cls, parameters: int, head: Model, gpu: Gpu, tensor_parallel: int) -> "Joint":
        """The projection of so many parameters, divided among the GPUs."""
        own = parameters / tensor_parallel
        flops = gpu.tflops(head.multiplied_in) * 1e12 * GEMM_EFFICIENCY
        bandwidth = gpu.bandwidth_gb_s * 1e9 * BANDWIDTH_EFFICIENCY
        return cls(2 * own / flops, own * head.dtype_bytes / bandwidth)

    def s(self, tokens: int) -> float:
        """Seconds for so many tokens."""
        return max(self.token_s * tokens, self.weights_s)


class PassTime(Protocol):
    """Seconds of a pass by its tokens and by the rows that it samples."""

    def s(self, tokens: int, rows: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Drafter:
    """The time of drafting: `cost` is that of one pass, without logits of the drafts that it reads.

    A further pass over a tree computes so many `branches` of each request. `small` adds what
    the cost of a head leaves out: small kernels and launches.
    """

    cost: CostModel
    joint: Joint = Joint()
    is_parallel: bool = False
    branches: int = 1
    small: PassTime | None = None

    def s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape spends on drafting; 0 where none is drafted."""
        if not shape.drafted_tokens:
            return 0.0
        seqs = shape.decode_seqs + shape.prefill_seqs
        each = max(1, shape.drafted_tokens // seqs)
        first = shape._replace(drafted_tokens=0)
        if self.is_parallel:
            more = (each - 1) * seqs
            first = StepShape(seqs, shape.context + more, draft_seqs=seqs, draft_tokens=shape.tokens - seqs + more)
            return self.cost.step_s(first)
        wider = seqs * (self.branches - 1)
        pass_of = StepShape(seqs, shape.context + seqs + wider, draft_seqs=seqs if wider else 0, draft_tokens=wider)
        again = seqs + wider
        further = self.cost.step_s(pass_of) + self.joint.s(again) + self._small_s(again, again)
        once = self.cost.step_s(first) + self.joint.s(shape.tokens) + self._small_s(shape.tokens, seqs)
        return once + (each - 1) * further

    def _small_s(self, tokens: int, rows: int) -> float:
        return 0.0 if self.small is None else self.small.s(tokens, rows)


@dataclass(frozen=True, slots=True)
class WithDrafter:
    """A cost model of steps that verify drafts, with the drafter's time on top. Implements CostModel."""

    cost: CostModel
    drafter: Drafter

    @property
    def wants_context_stats(self) -> bool:
        return self.cost.wants_context_stats

    def step_s(self, shape: StepShape) -> float:
        return self.cost.step_s(shape) + self.drafter.s(shape)

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        return self.cost.decode_run_s(shape, repeat)

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)


@dataclass(frozen=True, slots=True)
class WithDrafters:
    """Common steps of data-parallel ranks, each of which has a drafter: the slowest is waited for."""

    cost: GroupCost
    drafter: Drafter

    def group_step_s(self, shapes: Sequence[StepShape]) -> float:
        return self.cost.group_step_s(shapes) + max(map(self.drafter.s, shapes))
