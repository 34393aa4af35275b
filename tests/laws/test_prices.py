"""Prices of steps over the whole matrix: engines, versions, models, GPUs, precisions, parallel sizes.

Whatever fits into memory has a price, no step is faster than the GPU could read or compute, more work costs no less.
"""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import scenarios
from scenarios.assembly.replica_parts import build
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS, Model, custom_model
from simulator.timing.cost import StepShape

ENGINES = {
    "vllm": (None, "0.9", "0.11", "0.12", "0.15", "0.18", "0.19", "0.22", "0.24", "0.28", "0.33", "0.40"),
    "sglang": (None, "0.4.6", "0.5.1.post1", "0.5.9", "0.6"),
    "tensorrt_llm": (None, "0.17", "1.0.0rc3", "1.1", "1.2.0rc6.post3", "1.3", "1.4"),
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "published": {},
    "bf16": {"quantization": "none"},
    "fp8": {"quantization": "fp8"},
    "fp8 with its cache": {"quantization": "fp8", "kv_cache_dtype": "fp8"},
    "fp8_block": {"quantization": "fp8_block"},
    "nvfp4": {"quantization": "nvfp4", "kv_cache_dtype": "fp8"},
    "int4": {"quantization": "int4"},
    "experts in nvfp4": {"dtype_bytes": 2, "matmul_dtype": "bf16", "expert_dtype": "nvfp4"},
    "experts in mxfp4": {"dtype_bytes": 2, "matmul_dtype": "bf16", "expert_dtype": "mxfp4"},
    "experts in int4": {"dtype_bytes": 2, "matmul_dtype": "bf16", "expert_dtype": "int4"},
}
PARALLEL = ((1, 1), (2, 1), (4, 1), (8, 1), (16, 1), (1, 8), (2, 4), (4, 4), (4, 18), (1, 48), (1, 72))
"""Tensor parallel sizes and data-parallel ranks, which share the experts; of one rank its GPUs share them or do not."""
TOLERANCE = 1.03
"""Datasheets' peaks are this far below the best rows that tables keep, as in `calibration.rows`."""
LESS_FOR_MORE = 1.25
"""How much dearer less work may be: kernels of some sizes are better than those of the next smaller one."""
SHORT, LONG = 20, 600


class Cell(NamedTuple):
    """A server. `shares` tells whether its GPUs, or its ranks, hold whole experts."""

    engine: str
    version: str | None
    model: str
    gpu: str
    precision: str
    tensor: int
    ranks: int
    shares: bool

    def scenario(self) -> dict[str, Any]:
        """The scenario of a careful user; blocks are given, so that memory is no matter."""
        changed = PRECISIONS[self.precision]
        return {
            "name": "cell",
            "model": {"base": self.model, **changed} if changed else self.model,
            "hardware": {
                "gpu": self.gpu,
                "tensor_parallel": self.tensor,
                "enable_expert_parallel": self.shares,
                "num_gpu_blocks": 10**6,
            },
            "replicas": self.ranks,
            "engine": {"policy": self.engine, **({"version": self.version} if self.version else {})},
            "workload": {"preset": "chat", "rate": 1.0, "requests": 10},
        }

    @property
    def dimensions(self) -> Model:
        changed = PRECISIONS[self.precision]
        return custom_model({"base": self.model, **changed}) if changed else MODELS[self.model]


def _cells(draws: random.Random) -> Iterator[Cell]:
    """Cells of the matrix, drawn for ever; each that is possible is as likely."""
    versions = [(engine, version) for engine, known in ENGINES.items() for version in known]
    models, gpus, precisions = list(MODELS), list(GPUS), list(PRECISIONS)
    while True:
        (engine, version), name, gpu = draws.choice(versions), draws.choice(models), draws.choice(gpus)
        precision, (tensor, ranks), shares = draws.choice(precisions), draws.choice(PARALLEL), draws.random() < 0.5
        experts = MODELS[name].experts
        if MODELS[name].heads % tensor or ranks > max(experts, 1) or ("experts" in precision and not experts):
            continue
        if shares and (ranks > 1 or tensor == 1 or not experts):  # ranks share, and one GPU has nothing to share
            continue
        yield Cell(engine, version, name, gpu, precision, tensor, ranks, shares or ranks > 1)


def _sample(count: int, seed: int) -> list[Cell]:
    found: dict[Cell, None] = {}
    for cell in _cells(random.Random(seed)):
        found[cell] = None
        if len(found) == count:
            break
    return list(found)


def _shapes(wants_stats: bool) -> dict[str, StepShape]:
    """Steps by name, those after which less is done first."""
    found = {}
    for seqs, each in ((1, 1024), (16, 1024), (64, 1024), (64, 8192), (256, 8192)):
        stats = {"decode_longest": each, "decode_squares": seqs * each**2} if wants_stats else {}
        found[f"{seqs} decodes of {each}"] = StepShape(seqs, seqs * each, **stats)
    for tokens, before in ((256, 0), (2048, 0), (8192, 0), (8192, 120_000)):
        pairs = tokens * before + tokens * (tokens + 1) // 2
        shape = StepShape(0, 0, 1, tokens, before + tokens, pairs, prefill_longest=before + tokens)
        found[f"{tokens} prompt tokens behind {before}"] = shape
    return found


def _priced(cell: Cell) -> dict[str, tuple[StepShape, float]]:
    """Seconds of a step that is alone, or the same on each rank."""
    parts = build(scenarios.load(cell.scenario()))
    shapes = _shapes(parts.cost.wants_context_stats)
    group = parts.group_cost
    return {
        name: (shape, parts.cost.step_s(shape) if group is None else group.group_step_s([shape] * cell.ranks))
        for name, shape in shapes.items()
    }


def _floor_s(cell: Cell, shape: StepShape) -> float:
    """Seconds in which a GPU can read what a step must read of weights, or compute its products, by the datasheet."""
    model, gpu, gpus = cell.dimensions, GPUS[cell.gpu], cell.tensor * cell.ranks
    expert = model.moe_layers * model.expert_parameters
    dense = model.layer_parameters(cell.tensor)
    read = dense * model.dtype_bytes + min(model.active_experts, 1) * expert * model.expert_bytes / gpus
    routed = model.active_experts * expert / cell.tensor  # of a rank's tokens: all ranks have as many
    peak = max(gpu.tflops(model.multiplied_in), gpu.tflops(model.experts_multiplied_in))
    computed = 2.0 * shape.tokens * (dense + routed) / (peak * 1e12)
    return max(read / (gpu.bandwidth_gb_s * 1e9), computed)


def _hold(cell: Cell) -> None:
    priced = _priced(cell)
    for name, (shape, seconds) in priced.items():
        assert math.isfinite(seconds), (cell, name)
        assert seconds * TOLERANCE >= _floor_s(cell, shape), (cell, name, seconds)
    for (less, (_, less_s)), (more, (_, more_s)) in itertools.pairwise(priced.items()):
        if "decodes" in less and "prompt" in more:
            continue
        assert less_s <= LESS_FOR_MORE * more_s, (cell, less, more, less_s, more_s)


@pytest.mark.parametrize("cell", _sample(SHORT, 1), ids=lambda cell: " ".join(map(str, cell)))
def test_prices_are_possible(cell: Cell) -> None:
    _hold(cell)


@pytest.mark.long
def test_prices_of_the_matrix_are_possible() -> None:
    for cell in _sample(LONG, 2):
        _hold(cell)
