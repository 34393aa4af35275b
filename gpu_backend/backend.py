"""A model on a device: carries out a step's work, and says how long each part took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpu_backend.decoder import Decoder
from gpu_backend.device import Device
from gpu_backend.graphs import DecodeGraphs
from gpu_backend.pool import PagedPool
from gpu_backend.torch_attention import TorchAttention
from gpu_backend.weights import random_weights
from gpu_backend.work import Part, Work, step_arrays
from simulator.hardware.models import Model


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a step: a token for each part that samples, in the order of the parts, and its time.

    `device_s` is the sum of its parts: the model's forward pass, and pages moved out and in. `host_s` is what the host
    took to prepare it. `best` are the two largest logits of each token sampled.
    """

    tokens: list[int]
    best: list[tuple[float, float]]
    forward_s: float
    swap_out_s: float
    swap_in_s: float
    host_s: float

    @property
    def device_s(self) -> float:
        return self.forward_s + self.swap_out_s + self.swap_in_s


class Backend:
    """A model with random weights and its paged KV cache on one device.

    `layers` cuts the model down to its first so many. `kernel` says whether attention is the Triton kernel; by
    default it is on a CUDA device. `graphs` are batch sizes at which decode steps are captured; a batch is padded to
    the next.
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
        kernel: bool | None = None,
        graphs: Sequence[int] = (),
        max_graph_context: int = 32768,
    ) -> None:
        self.model = model if layers is None else replace(model, layers=layers)
        self.device = device
        self.block_size = block_size
        dtype = device.dtype(model)
        self.pool = PagedPool(self.model, num_blocks, block_size, num_host_blocks, device.name, dtype)
        weights = random_weights(self.model, seed, device.name, dtype)
        shape = self.model.heads, self.model.kv_heads, self.model.head_dim
        self._graphs: DecodeGraphs | None = None
        if device.name == "cuda" if kernel is None else kernel:
            from gpu_backend.attention.paged import PagedAttention

            paged = PagedAttention(*shape, block_size, device.name, dtype)
            self.decoder = Decoder(self.model, weights, self.pool, paged)
            if graphs and not self.model.experts:  # routing asks the host which experts to launch
                most = min(max_graph_context, self.model.max_model_len)
                self._graphs = DecodeGraphs(self.decoder, paged, device, graphs, most)
        else:
            plain = TorchAttention(*shape, block_size, device.name, dtype)
            self.decoder = Decoder(self.model, weights, self.pool, plain)

    def run(self, work: Work) -> Done:
        """Carry out the step. Doing it over changes nothing: the same numbers go to the same places."""
        device = self.device
        swap_out_s = device.seconds(lambda: self.pool.swap_out(work.swap_out)) if work.swap_out.source else 0.0
        swap_in_s = device.seconds(lambda: self.pool.swap_in(work.swap_in)) if work.swap_in.source else 0.0
        parts = work.parts
        if not parts:
            return Done([], [], 0.0, swap_out_s, swap_in_s, 0.0)
        start_s = device.host_s()
        forward, count = self._prepared(parts, len(work.decodes))
        host_s = device.host_s() - start_s
        found: list[Tensor] = []

        def once() -> None:
            found[:] = [forward()]

        forward_s = device.seconds(once)
        top = found[0][:count].float().topk(2, dim=-1)
        best = [(first, second) for first, second in top.values.tolist()]
        return Done(top.indices[:, 0].tolist(), best, forward_s, swap_out_s, swap_in_s, host_s)

    def forward(self, work: Work) -> Callable[[], Tensor]:
        """The step's forward pass, prepared: a call without arguments that may be done over."""
        return self._prepared(work.parts, len(work.decodes))[0]

    def logits(self, work: Work) -> Tensor:
        """Logits of the tokens sampled, nothing timed and no graph used."""
        return self.decoder.logits(self.decoder.prepare(step_arrays(work.parts, len(work.decodes), self.block_size)))

    def _prepared(self, parts: tuple[Part, ...], decodes: int) -> tuple[Callable[[], Tensor], int]:
        """The forward pass as a call without arguments, and how many of its rows are real."""
        rows = step_arrays(parts, decodes, self.block_size)
        if self._graphs is not None and decodes == len(parts):
            ready = self._graphs.ready(rows)
            if ready is not None:
                return ready, len(parts)
        inputs = self.decoder.prepare(rows)
        return lambda: self.decoder.sampled(inputs), len(rows.sampled)


def free_bytes() -> int:
    """Bytes of device memory that are free."""
    free, _ = torch.cuda.mem_get_info()
    return int(free)
