"""A model on a device: it carries out a step's work, and says how long each part took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from gpu_backend.attention.backends import default_attention, open_attention
from gpu_backend.checkpoint import load_weights
from gpu_backend.decoder import Decoder
from gpu_backend.device import Device
from gpu_backend.fp8 import E4M3, has_fp8_weights, kv_type
from gpu_backend.graphs import DecodeGraphs, Reserving
from gpu_backend.parallel import all_reduce, local_model, local_weights
from gpu_backend.pointwise_backends import default_pointwise, open_pointwise
from gpu_backend.pool import PagedPool
from gpu_backend.weights import random_weights
from gpu_backend.work import AttentionShape, ScheduledPart, Swap, Work, null_work, step_arrays
from simulator.hardware.models import Model

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
    (`gpu_backend.attention.backends`): by default our own kernel on a CUDA device, torch's operators elsewhere.
    `graphs` are batch sizes at which decode steps are captured, for contexts of up to `max_graph_context`; a batch is
    padded to the next. `pointwise` names what computes the rest of a layer (`gpu_backend.pointwise`): our kernels where
    our attention is the default. `weights` is a folder of real ones (`gpu_backend.checkpoint`); without it they are
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
