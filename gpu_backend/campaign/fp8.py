"""The part about fp8: attention over pages in it, matrix products in it, and whole steps of a model with both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from calibration.document import write_document
from calibration.rows import read_rows
from calibration.steps import fit_steps
from gpu_backend.bench import kernel_bench
from gpu_backend.bench.timing import measure
from gpu_backend.campaign.job import Job
from gpu_backend.campaign.journal import Section
from gpu_backend.fp8 import Per, product, quantised_weight
from gpu_backend.pointwise_backends import default_pointwise, open_pointwise
from gpu_backend.profiler import ROWS
from gpu_backend.session import measure_into
from simulator.hardware.models import Model
from simulator.timing.tables.products import layer_products

FOLDER, PROFILE = "fp8", "profile-fp8-steps.json"
FIT_S = 6.0
LIMITS = (256, 8192, 2048)
"""Decodes, context and tokens of the largest steps that are measured."""
PRODUCTS = ("gate_up", "down")
TOKENS = (64, 4096, 1, 512)
KINDS = ("fp8, a scale for each channel", "bf16", "fp8, one scale", "quantising activations")


def fp8(job: Job) -> None:
    """Kernels, products, steps; a profile of the steps, which names its precision."""
    _cases(job)
    _products(job)
    _steps(job)


def in_fp8(model: Model) -> Model:
    """The model with weights and cache of a byte."""
    return replace(model, dtype_bytes=1, kv_dtype_bytes=1, matmul_dtype="auto")


def _cases(job: Job) -> None:
    bench = kernel_bench.Bench(job.device, *kernel_bench.scale_of(job.device), fp8_kv=True)
    limits, rows = job.ceilings(), []
    for case in bench.cases:
        found = job.once(case.name, partial(kernel_bench.case_row, bench, limits, case, "batchlab"))
        if found is not None:
            rows.append(found)
            if "seconds" in found:
                job.say(kernel_bench.line(found))
    job.write("fp8-cases.json", rows)


def _products(job: Job) -> None:
    rows = []
    sides = layer_products(job.setting.model, 1)
    for tokens in TOKENS:
        for name in PRODUCTS:
            for kind in KINDS:
                found = job.once(f"{name}, {tokens} tokens, {kind}", partial(_product, job, *sides[name], tokens, kind))
                rows += [] if found is None else [{"product": name, "tokens": tokens, "kind": kind, **found}]
    job.write("fp8-products.json", rows)


def _product(job: Job, out: int, into: int, tokens: int, kind: str) -> dict[str, Any]:
    """One product over weights that no cache holds, or what brings its activations to fp8."""
    device = torch.device(job.device)
    dtype = torch.bfloat16 if job.device == "cuda" else torch.float32
    pointwise = open_pointwise(job.pointwise or default_pointwise(job.device), 1e-5)
    x = torch.randn((tokens, into), device=device).to(dtype)
    per: Per = "tensor" if kind == KINDS[2] else "channel"
    rows = quantised_weight(x, "tensor") if per == "tensor" else pointwise.quantised(x)
    calls: list[Callable[[], object]] = []
    for weight in _weights(out, into, device, dtype):
        if kind == "bf16":
            calls.append(partial(torch.nn.functional.linear, x, weight))
        elif kind == KINDS[3]:
            calls.append(partial(pointwise.quantised, x))
        else:
            calls.append(partial(product, *rows, *quantised_weight(weight, per), dtype))
    timing = measure(calls, device, 10)
    tflops = 2 * tokens * out * into / timing.seconds / 1e12
    return {"seconds": timing.seconds, "spread": timing.spread, "tflops": tflops}


def _weights(out: int, into: int, device: torch.device, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    """Some of them, beyond any cache of a GPU."""
    for _ in range(6 if device.type == "cuda" else 1):
        yield torch.randn((out, into), device=device, dtype=dtype) / into**0.5


def _steps(job: Job) -> None:
    setting, model = job.setting, in_fp8(job.setting.model)
    folder = job.out / FOLDER
    if job.section.recall("done") is None:
        gpu = setting.name if job.device == "cuda" else ""
        limits = tuple(map(min, setting.limits, LIMITS))
        measure_into(
            folder, model, job.device, limits=(limits[0], limits[1], limits[2]), gpu=gpu, steps_only=True,
            pointwise=job.pointwise, memory=Earlier(job.section), say=job.say,
        )  # fmt: skip
        if not Earlier(job.section).is_over():
            job.section.keep("done", {})
    found = job.once("profile", partial(_fitted, job, model))
    if found is not None and "mape" in found:
        job.say(f"{PROFILE}: {found['mape']:.1%} on steps held out")


class Earlier:
    """A `gpu_backend.profiler.Memory` whose time is up when there is still enough for a fit."""

    def __init__(self, section: Section) -> None:
        self.recall, self.keep = section.recall, section.keep
        self._section = section

    def is_over(self) -> bool:
        return self._section.left_s < FIT_S


def _fitted(job: Job, model: Model) -> dict[str, Any]:
    rows = read_rows(job.out / FOLDER / ROWS)
    fitted = fit_steps(rows, f"{job.setting.name}-{model.name}-fp8-steps", model.name, rows.gpu)
    assert fitted.document is not None
    write_document(fitted.document, job.out / PROFILE)
    return {"mape": fitted.errors["random"]["mape"] / 100.0, "steps": rows.count()}
