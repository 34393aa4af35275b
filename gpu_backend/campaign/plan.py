"""The campaign's parts, the seconds that each may take, and those that it is expected to take on known GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_backend.bench.cases import CACHE_BYTES, Case, cases, fp8_cases, latency_cases
from gpu_backend.bench.device_checks import CHECKS
from gpu_backend.bench.timing import REPEATS
from simulator.hardware.gpus import GPUS, Gpu

TOTAL_S = 530.0
"""What all of it may take: a machine's command ends at ten minutes, and its start and the packing are in that."""

KERNELS = 4  # that take part in a case: ours, and of others those that are there on a bare device
COMPILING_S, CAPTURING_S, CHECKING_S = 1.5, 0.15, 0.35  # a configuration; a graph; against float64
SHARE = {"bytes": 0.75, "flops": 0.45}  # of the data sheet's peak that kernels reach, over all cases
SHAPES, OPERATORS, PASSES = 400, 300, 3  # of a profile: steps and attention; dense operators; how often each
PROMPT_TOKENS = 130_000  # of all steps and chunks of a profile, each once
FP8_SHAPES, FP8_PRODUCTS = 150, 32
STEP_S, OPERATOR_S = 0.02, 0.06  # a probe on a GPU: mostly preparation, and capturing
WEIGHTS_S = 12.0  # to draw a model's weights and to capture its graphs
HEAT_S = 3.0


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part: what it does, the most seconds it may take, and those expected by GPU."""

    name: str
    what: str
    budget_s: float
    expected_s: Mapping[str, float]


def plan() -> list[PartPlan]:
    """All parts in order."""
    return [
        PartPlan("checks", "what the device computes is right", 45, _each(lambda gpu: len(CHECKS) * 3.6)),
        PartPlan("ceilings", "copy and matrix product", 12, _each(lambda gpu: 4.0 + 33 * 2 * 2**32 / _bytes_s(gpu))),
        PartPlan("cases", "our kernel and others on every case", 75, _each(_cases_s)),
        PartPlan("latency", "batches of 1 to 64 at 32k", 25, _each(_latency_s)),
        PartPlan("sweep", "experiments, then neighbouring configurations", 60, _each(_sweep_s)),
        PartPlan("profile", "kernels and whole steps in three passes", 145, _each(_profile_s)),
        PartPlan("fit", "two profiles from these rows", 13, _each(lambda gpu: 6.0)),
        PartPlan("lockstep", "plans of real shapes, executed twice", 110, _each(_lockstep_s)),
        PartPlan("fp8", "weights and pages in fp8: kernels, products, steps", 45, _each(_fp8_s)),
    ]


def table(gpu: str | None = None) -> str:
    """The plan as text: expected seconds on an H200 and an H100, budgets, sums; `gpu` is the device at hand."""
    parts = plan()
    names = [name for name in ("h200", "h100") if name in GPUS]
    lines = [f"{'part':10}{'what':50}" + "".join(f"{name:>8}" for name in names) + f"{'at most':>10}"]
    for part in parts:
        each = "".join(f"{part.expected_s[name]:7.0f}s" for name in names)
        lines.append(f"{part.name:10}{part.what:50}{each}{part.budget_s:9.0f}s")
    sums = "".join(f"{sum(part.expected_s[name] for part in parts):7.0f}s" for name in names)
    lines.append(f"{'all':60}{sums}{TOTAL_S:9.0f}s")
    if gpu is not None:
        lines.append(f"the device here: {gpu}")
    return "\n".join(lines) + "\n"


def _each(seconds: object) -> dict[str, float]:
    assert callable(seconds)
    return {name: float(seconds(GPUS[name])) for name in ("h200", "h100")}


def _bytes_s(gpu: Gpu) -> float:
    return SHARE["bytes"] * gpu.bandwidth_gb_s * 1e9


def _call_s(case: Case, gpu: Gpu) -> float:
    """One call of a kernel on one copy of a case."""
    return max(case.bytes(2) / _bytes_s(gpu), case.flops / (SHARE["flops"] * gpu.bf16_tflops * 1e12))


def _measured_s(case: Case, gpu: Gpu) -> float:
    copies = max(1, min(16, -(-CACHE_BYTES // case.kv_bytes)))
    return CAPTURING_S + (REPEATS + 4) * copies * _call_s(case, gpu)


def _cases_s(gpu: Gpu) -> float:
    return sum(KERNELS * (_measured_s(case, gpu) + COMPILING_S / 2 + CHECKING_S) for case in cases(1))


def _latency_s(gpu: Gpu) -> float:
    return sum(_measured_s(case, gpu) for case in latency_cases(1)) + 3.0


def _sweep_s(gpu: Gpu) -> float:
    from gpu_backend.bench.kernel_bench import variants

    with_target = [case for case in cases(1) if case.target is not None]
    seconds = 0.0
    for kind, _ in variants():
        mine = [case for case in with_target if (case.bound == "bytes") == (kind == "decode")]
        seconds += COMPILING_S + sum(_measured_s(case, gpu) for case in mine)
    return min(60.0, seconds)


def _profile_s(gpu: Gpu) -> float:
    """Steps read the weights at the least: that scales with the bandwidth; the rest is the host's work."""
    reading_s = 16e9 / _bytes_s(gpu)
    prompts_s = PROMPT_TOKENS * 16e9 / (SHARE["flops"] * gpu.bf16_tflops * 1e12)
    return HEAT_S + WEIGHTS_S + PASSES * (SHAPES * (STEP_S + 2 * reading_s) + OPERATORS * OPERATOR_S + prompts_s)


def _fp8_s(gpu: Gpu) -> float:
    """Half the bytes of everything, and each kernel compiled anew."""
    kernels_s = sum(_measured_s(case, gpu) / 2 + CHECKING_S for case in fp8_cases(1)) + 4 * COMPILING_S
    steps_s = PASSES * FP8_SHAPES * (STEP_S + 8e9 / _bytes_s(gpu))
    return kernels_s + FP8_PRODUCTS * CAPTURING_S + HEAT_S + WEIGHTS_S + steps_s


def _lockstep_s(gpu: Gpu) -> float:
    reading_s = 16e9 / _bytes_s(gpu)
    return HEAT_S + WEIGHTS_S + 2 * 2300 * (0.006 + 2 * reading_s)
