"""A model on a device: it carries out a step's work, and says how long each part took."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, distributed

from gpu_backend.decoder import Decoder, Inputs, PagedPool
from gpu_backend.device import Device
from gpu_backend.kernel_choice import default_attention, default_pointwise, open_attention, open_pointwise
from gpu_backend.weights import (
    E4M3,
    Dense,
    ExpertWeights,
    Layer,
    Mlp,
    Weights,
    as_bytes,
    has_fp8_weights,
    kv_type,
    load_weights,
    random_weights,
)
from gpu_backend.work import (
    AttentionImpl,
    AttentionShape,
    ScheduledPart,
    StepArrays,
    Swap,
    Work,
    null_work,
    step_arrays,
)
from simulator.errors import InputError
from simulator.hardware.models import Model

# Tensor parallelism: each process holds its share of heads and feed-forward columns, and sums are all-reduced.
#
# Megatron's cut (Shoeybi et al., 2019): query, key, value, gate and up by their outputs, attention's output and
# down by their inputs, so that a layer has two all-reduces. Embedding and head are whole everywhere. The processes
# talk through torch.distributed: gloo between CPUs, NCCL between GPUs.


def all_reduce(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes of the group, in place."""
    distributed.all_reduce(tensor)
    return tensor


def local_model(model: Model, size: int) -> Model:
    """The dimensions of one share. Raises InputError where heads or columns do not come out even."""
    inner = [model.intermediate, model.dense_intermediate]
    if any(count % size for count in (model.heads, model.kv_heads, *inner)):
        what = f"{model.name} has {model.heads} heads, {model.kv_heads} KV heads and {model.intermediate} columns"
        raise InputError(f"{what}: not evenly shared by {size}", hint="another tensor_parallel")
    return replace(
        model,
        heads=model.heads // size,
        kv_heads=model.kv_heads // size,
        intermediate=inner[0] // size,
        dense_intermediate=inner[1] // size,
    )


def local_weights(model: Model, weights: Weights, rank: int, size: int) -> Weights:
    """Cut share number `rank` out of a whole model's weights."""
    return replace(weights, layers=tuple([_layer(model, layer, rank, size) for layer in weights.layers]))


def _layer(model: Model, layer: Layer, rank: int, size: int) -> Layer:
    heads = [model.heads * model.head_dim, *[model.kv_heads * model.head_dim] * 2]
    mlp = layer.mlp
    return replace(
        layer,
        qkv=_by_outputs(layer.qkv, heads, rank, size),
        out=_by_inputs(layer.out, rank, size),
        mlp=_experts(model, mlp, rank, size) if isinstance(mlp, ExpertWeights) else _mlp(model, mlp, rank, size),
    )


def _mlp(model: Model, mlp: Mlp, rank: int, size: int) -> Mlp:
    parts = 2 if model.gated_mlp else 1
    widths = [mlp.up.weight.shape[0] // parts] * parts
    return Mlp(_by_outputs(mlp.up, widths, rank, size), _by_inputs(mlp.down, rank, size))


def _experts(model: Model, experts: ExpertWeights, rank: int, size: int) -> ExpertWeights:
    """Cut a share of every expert; the router stays whole."""
    parts = 2 if model.gated_mlp else 1
    up = torch.cat([_share(part, 1, rank, size) for part in experts.up.chunk(parts, dim=1)], dim=1)
    shared = None if experts.shared is None else _mlp(model, experts.shared, rank, size)
    return ExpertWeights(experts.router, up, _share(experts.down, 2, rank, size), shared)


def _by_outputs(dense: Dense, widths: Sequence[int], rank: int, size: int) -> Dense:
    """Cut a share of the rows of each matrix in a stack."""

    def mine(whole: Tensor | None) -> Tensor | None:
        if whole is None or len(whole) == 1:  # nothing, or one scale for all
            return whole
        parts = [_share(part, 0, rank, size) for part in as_bytes(whole).split(list(widths))]
        return torch.cat(parts).view(whole.dtype)

    weight = mine(dense.weight)
    assert weight is not None
    return Dense(weight, mine(dense.bias), mine(dense.scale))


def _by_inputs(dense: Dense, rank: int, size: int) -> Dense:
    """Cut a share of the columns; the first process alone adds the bias."""
    return Dense(_share(dense.weight, 1, rank, size), dense.bias if rank == 0 else None, dense.scale)


def _share(tensor: Tensor, dim: int, rank: int, size: int) -> Tensor:
    return tensor.chunk(size, dim=dim)[rank].contiguous()


# Decode steps as captured graphs: launched at once instead of kernel by kernel, at batch sizes fixed beforehand.
#
# A batch is padded to the next size that was captured. What a graph reads lies at fixed addresses and is filled
# before each replay. The sizes are vLLM's (`simulator.timing.profile.profile_cost.capture_sizes`), so that a
# profile pads alike.


@runtime_checkable
class Reserving(AttentionImpl, Protocol):
    """Attention whose preparation can be filled again in place: `gpu_backend.attention.paged.PagedAttention`."""

    def prepare(self, rows: StepArrays, into: Any = None) -> Any: ...

    def reserve(self, seqs: int, max_context: int, *, cache_tokens: int | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Captured:
    inputs: Inputs
    replay: Callable[[], Tensor]


class DecodeGraphs:
    """Graphs of pure decode steps for batches of up to `sizes[-1]` requests of up to `max_context` KV tokens."""

    def __init__(
        self, decoder: Decoder, attention: Reserving, device: Device, sizes: Sequence[int], max_context: int
    ) -> None:
        self._decoder, self._attention, self._device = decoder, attention, device
        self._sizes = sorted(sizes)
        self._max_context = max_context
        # The largest first: the others find their memory in its pool.
        self._captured = {size: self._capture(size) for size in reversed(self._sizes)}

    def ready(self, rows: StepArrays) -> Callable[[], Tensor] | None:
        """Fill the step's graph: a call gives logits, those of the batch first. None where the step fits no graph."""
        place = bisect_left(self._sizes, len(rows))
        if place == len(self._sizes) or int(rows.context.max()) > self._max_context:
            return None
        captured = self._captured[self._sizes[place]]
        self._fill(captured.inputs, rows)
        return captured.replay

    def _fill(self, inputs: Inputs, rows: StepArrays) -> None:
        count = len(rows)
        position = np.minimum(rows.position, self._decoder.model.max_model_len - 1)
        inputs.token[:count].copy_(torch.from_numpy(rows.token))
        inputs.position[:count].copy_(torch.from_numpy(position))
        self._attention.prepare(rows, into=inputs.attention)

    def _capture(self, size: int) -> _Captured:
        device = self._decoder.weights.device
        pool = self._decoder.pool
        zeros = torch.zeros((2, size), dtype=torch.int64, device=device)
        all_of_them = torch.arange(size, device=device)
        cache_tokens = pool.num_blocks * pool.block_size
        reserved = self._attention.reserve(size, self._max_context, cache_tokens=cache_tokens)
        inputs = Inputs(zeros[0], zeros[1], all_of_them, reserved)
        dummy = [ScheduledPart(row, 0, [0], (0,)) for row in range(size)]  # writes to the null page
        self._fill(inputs, step_arrays(dummy, size, pool.block_size))
        return _Captured(inputs, self._device.capture(lambda: self._decoder.sampled(inputs)))


# The backend.

_CANARY_DECODES, _CANARY_CONTEXT, _CANARY_CHUNK = 8, 256, 48
_MERGED_KEYS = 16384
GRAPH, EAGER = "graph", "eager"
"""The two ways to launch a forward pass: at once, or kernel by kernel."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a step: a token for each part that samples, in the order of the parts, and its time.

    `device_s` is the sum of its parts: the model's forward pass, and pages moved out and in. `host_s` is what the host
    took to prepare and to launch it, and `is_hidden` whether none of that is in the former. `best` are the two largest
    logits of each token sampled.
    """

    tokens: list[int]
    best: list[tuple[float, float]]
    forward_s: float
    swap_out_s: float
    swap_in_s: float
    host_s: float
    is_hidden: bool = True

    @property
    def device_s(self) -> float:
        return self.forward_s + self.swap_out_s + self.swap_in_s


class Backend:
    """A model with random weights and its paged KV cache on one device.

    `layers` cuts the model down to its first so many. `attention` names what computes attention
    (`gpu_backend.kernel_choice`): by default our own kernel on a CUDA device, torch's operators elsewhere.
    `graphs` are batch sizes at which decode steps are captured, for contexts of up to `max_graph_context`; a batch is
    padded to the next. `pointwise` names what computes the rest of a layer (`gpu_backend.decoder`): our kernels where
    our attention is the default. `weights` is a folder of real ones (`gpu_backend.weights`); without it they are
    random. `share` is this process's number and how many share the model's heads, in a torch.distributed group that is
    there.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        *,
        layers: int | None = None,
        seed: int = 0,
        attention: str | None = None,
        graphs: Sequence[int] = (),
        max_graph_context: int | None = None,
        weights: Path | None = None,
        share: tuple[int, int] = (0, 1),
        pointwise: str | None = None,
    ) -> None:
        whole = model if layers is None else replace(model, layers=layers)
        rank, size = share
        self.model = whole if size == 1 else local_model(whole, size)
        self.device = device
        self.block_size = block_size
        dtype = device.dtype(model)
        kept = kv_type(whole, dtype)
        self.pool = PagedPool(self.model, num_blocks, block_size, num_host_blocks, device.name, kept)
        if weights is None:
            made = random_weights(whole, seed, device.name, dtype)
        else:
            made = load_weights(weights, whole, device.name, dtype)
        made = made if size == 1 else local_weights(whole, made, rank, size)
        self.attention = attention or default_attention(device.name)
        heads = self.model.heads, self.model.kv_heads, self.model.head_dim
        shape = AttentionShape(*heads, block_size, fp8_kv=kept == E4M3)
        attend = open_attention(self.attention, shape, device.name, dtype)
        self.pointwise = pointwise or default_pointwise(device.name)
        between = open_pointwise(self.pointwise, made.norm_eps)
        self.decoder = Decoder(self.model, made, self.pool, attend, None if size == 1 else all_reduce, between)
        self._graphs: DecodeGraphs | None = None
        if graphs and isinstance(attend, Reserving):
            most = min(max_graph_context or self.model.max_model_len, self.model.max_model_len)
            self._graphs = DecodeGraphs(self.decoder, attend, device, graphs, most)

    @property
    def captures(self) -> bool:
        """Tell whether decode steps are captured as graphs."""
        return self._graphs is not None

    def run(self, work: Work) -> Done:
        """Carry out the step. Doing it over changes nothing: the same numbers go to the same places."""
        device = self.device
        swap_out_s = swap_in_s = 0.0
        is_hidden = True
        if work.swap_out.source:
            swap_out_s = device.seconds(self.pool.moving_out(work.swap_out), "swap")
            is_hidden = device.is_hidden
        if work.swap_in.source:
            swap_in_s = device.seconds(self.pool.moving_in(work.swap_in), "swap")
            is_hidden &= device.is_hidden
        parts = work.parts
        if not parts:
            return Done([], [], 0.0, swap_out_s, swap_in_s, 0.0, is_hidden)
        start_s = device.host_s()
        forward, count, kind = self._prepared(parts, len(work.decodes))
        host_s = device.host_s() - start_s
        found: list[Tensor] = []

        def once() -> None:
            found[:] = [forward()]

        forward_s = device.seconds(once, kind)
        host_s += device.launch_s
        top = found[0][:count].float().topk(2, dim=-1)
        best = [(first, second) for first, second in top.values.tolist()]
        tokens = top.indices[:, 0].tolist()
        return Done(tokens, best, forward_s, swap_out_s, swap_in_s, host_s, is_hidden and device.is_hidden)

    def warm_up(self, max_num_seqs: int = 1, max_num_batched_tokens: int = 64) -> None:
        """Run every kernel and the largest step, nothing timed: none of it is compiled or allocated in a measured step.

        All of it reads and writes the null block, whose content means nothing.
        """
        longest = self.model.max_model_len
        seqs, tokens = max(1, max_num_seqs), max(1, min(max_num_batched_tokens, longest))
        merged = min(longest, _MERGED_KEYS)  # so many keys that a kernel which cuts them has parts to merge
        for decodes, chunk, behind in (
            (1, 0, 0), (seqs, 0, 0), (0, min(64, tokens), 0), (0, tokens, 0), (0, min(64, tokens), merged),
            (seqs, min(64, tokens), 0), (seqs, tokens, 0),
        ):  # fmt: skip
            behind = max(0, min(behind, longest - chunk))
            for context in (min(32, longest), merged):
                self.forward(null_work(decodes, context, chunk, behind, self.block_size))()
        if len(self.pool.host):
            there = Swap((0,), (0,))
            self.pool.swap_out(there)
            self.pool.swap_in(there)

    def canary(self) -> Callable[[], object]:
        """Prepare a step of a fixed size that may be done at any time: decodes and a chunk, on the null block alone."""
        longest = self.model.max_model_len
        context, chunk = min(_CANARY_CONTEXT, longest), min(_CANARY_CHUNK, longest)
        return self.forward(null_work(_CANARY_DECODES, context, chunk, 0, self.block_size))

    @property
    def kernels(self) -> dict[str, str]:
        """The kernels that compute attention and the rest of a layer, for the fingerprint."""
        return {"attention": self.attention, "pointwise": self.pointwise}

    @property
    def precision(self) -> tuple[str, str]:
        """The types of weights and pages, in the words of a profile's `dtype` and `kv_dtype`."""
        wide = "float32" if self.decoder.weights.embedding.dtype == torch.float32 else "bf16"
        is_fp8 = self.pool.kv.dtype == E4M3
        return "fp8" if has_fp8_weights(self.model) else wide, "fp8" if is_fp8 else wide

    @property
    def canary_name(self) -> str:
        """A name that backends with equal canaries share: times in terms of these canaries can be compared."""
        what = repr((replace(self.model, name=""), self.block_size, self.kernels, str(self.pool.kv.dtype)))
        return f"{crc32(what.encode()):08x}"

    def forward(self, work: Work) -> Callable[[], Tensor]:
        """Prepare the step's forward pass: a call without arguments that may be done over."""
        return self.launchable(work.parts, len(work.decodes))[0]

    def launchable(self, parts: tuple[ScheduledPart, ...], decodes: int) -> tuple[Callable[[], Tensor], str]:
        """Prepare the forward pass of some parts, decodes first, and name how it is launched, for `Device.seconds`."""
        forward, _, kind = self._prepared(parts, decodes)
        return forward, kind

    def logits(self, work: Work) -> Tensor:
        """Logits of the tokens sampled, nothing timed and no graph used."""
        return self.decoder.logits(self.decoder.prepare(step_arrays(work.parts, len(work.decodes), self.block_size)))

    def _prepared(self, parts: tuple[ScheduledPart, ...], decodes: int) -> tuple[Callable[[], Tensor], int, str]:
        """The forward pass as a call without arguments, how many of its rows are real, and how it is launched."""
        rows = step_arrays(parts, decodes, self.block_size)
        if self._graphs is not None and decodes == len(parts):
            ready = self._graphs.ready(rows)
            if ready is not None:
                return ready, len(parts), GRAPH
        inputs = self.decoder.prepare(rows)
        return lambda: self.decoder.sampled(inputs), len(rows.sampled), EAGER


def free_bytes() -> int:
    """Count the free bytes of device memory, after torch has given back what it keeps for later."""
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return int(free)
