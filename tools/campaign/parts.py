"""The parts of a campaign. Each takes what it needs from earlier ones' files, and keeps what it finds as it comes."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from calibration.fit import fit_profile, write_document
from calibration.own_steps import fit_steps
from calibration.rows import read_rows, reject_impossible
from gpu_backend.attention.worklist import Tiling
from gpu_backend.kernel_choice import default_pointwise, open_pointwise
from gpu_backend.session import MEASURED, ROWS, executors, measure_into
from gpu_backend.weights import Per, product, quantised_weight
from simulator.hardware.kv import swap_s_per_block
from simulator.hardware.models import Model
from simulator.lockstep.lockstep_run import Canary
from simulator.timing.cost import COUNTS, CostModel, StepShape
from simulator.timing.executor import Predicted
from simulator.timing.formula_cost import Roofline
from simulator.timing.profile import ProfileCost, read_profile
from simulator.timing.profile.profile_cost import Options
from simulator.timing.tables.products import layer_products
from tools.campaign.job import Job, Load, Section, check_alive
from tools.campaign.serving import serve_twice, told
from tools.kernel_bench import speed
from tools.kernel_bench.cases import Case
from tools.kernel_bench.device_checks import CHECKS, Skipped
from tools.kernel_bench.rivals import RIVALS, SLOW_TO_COMPILE
from tools.kernel_bench.speed import Ceilings, measure

# The part about fp8: attention over pages in it, matrix products in it, and whole steps of a model with both.

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
    bench = speed.Bench(job.device, *speed.scale_of(job.device), fp8_kv=True)
    limits, rows = job.ceilings(), []
    for case in bench.cases:
        found = job.once(case.name, partial(speed.case_row, bench, limits, case, "batchlab"))
        if found is not None:
            rows.append(found)
            if "seconds" in found:
                job.say(speed.line(found))
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
    """A `gpu_backend.session.Memory` whose time is up when there is still enough for a fit."""

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


# The parts, in the order of a campaign.

KERNELS, STEPS = "profile-kernels.json", "profile-steps.json"


def checks(job: Job) -> None:
    """Run every check of the device's results."""
    for name, check in CHECKS.items():

        def tried(check: Callable[[str], None] = check) -> dict[str, Any]:
            try:
                check(job.device)
            except Skipped as reason:
                return {"skipped": str(reason)}
            return {"passed": True}

        job.once(name, tried)
        job.write("checks.json", job.section.all())


def ceilings(job: Job) -> None:
    """The copy and the matrix product that everything is measured by."""
    found = job.once("ceilings", lambda: asdict(job.bench.ceilings()))
    if found is not None and "failed" not in found:
        job.write("ceilings.json", found)
        job.say(f"copy {found['copy_gb_s']:.0f} GB/s, matmul {found['matmul_tflops']:.1f} TFLOP/s")


def cases(job: Job) -> None:
    """Every case with our kernel and with the others that are there; ours everywhere first."""
    limits, bench = job.ceilings(), job.bench
    kernels = ["batchlab", *(name for name in RIVALS if name not in SLOW_TO_COMPILE)]
    for kernel in kernels:
        for case in bench.cases:
            found = job.once(f"{case.name}, {kernel}", partial(speed.case_row, bench, limits, case, kernel))
            if found is not None and "seconds" in found:
                job.say(speed.line(found))
    job.write("cases.json", list(job.section.all().values()))


def _timing(bench: speed.Bench, case: Case) -> dict[str, Any]:
    return asdict(bench.measure(case, bench.kernel))


def latency(job: Job) -> None:
    """The latency over the batch, which must have no step."""
    bench = job.bench
    for case in bench.latencies:
        job.once(case.name, partial(_timing, bench, case))
    seen = job.section.all()
    known = [case for case in bench.latencies if "seconds" in seen.get(case.name, {})]
    if len(known) > 2:
        smooth = speed.smoothness(known, [seen[case.name]["seconds"] for case in known])
        job.write("latency.json", smooth)
        job.say(f"worst x {smooth['worst']:.3f} at B{smooth['worst_batch']}")


def _variant(bench: speed.Bench, limits: Ceilings, kind: str, tiling: Tiling) -> dict[str, Any]:
    return {"rows": speed.variant_rows(bench, limits, kind, tiling)}


def sweep(job: Job) -> None:
    """Experiments, then neighbours of the configurations; the best of each kind."""
    limits, bench = job.ceilings(), job.bench
    rows: list[dict[str, Any]] = []
    for kind, tiling in speed.variants(bench.choice):
        key = f"{kind} {tuple(asdict(tiling).values())}"
        found = job.once(
            key,
            partial(_variant, bench, limits, kind, tiling),
        )
        rows += (found or {}).get("rows", [])
        if any(row.get("failed") for row in (found or {}).get("rows", [])):
            check_alive(job.device)
    job.write("sweep.json", {"rows": rows, "winners": speed.winners(rows, bench.choice)})


def profile(job: Job) -> None:
    """The rows of a profile."""
    if job.section.recall("done") is not None:
        return
    setting = job.setting
    gpu = setting.name if job.device == "cuda" else ""
    measure_into(
        job.out, setting.model, job.device, limits=setting.limits, gpu=gpu, pointwise=job.pointwise,
        memory=job.section, say=job.say,
    )  # fmt: skip
    if not job.section.is_over():
        job.section.keep("done", {})


def fit(job: Job) -> None:
    """Two profiles: of kernels added up, and of whole steps. The better one on the steps that were measured is used.

    Errors on steps are held out for the second; the first was not fitted to them but for two figures.
    """
    setting = job.setting
    rows = read_rows(job.out / ROWS)
    rows, rejected = reject_impossible(rows, setting.gpu, setting.model)
    errors: dict[str, float] = {}

    def of_kernels() -> dict[str, Any]:
        document = fit_profile(rows, setting.model, setting.gpu, f"{setting.name}-{setting.model.name}")
        document["rejected"] = [part.document() for part in rejected]
        write_document(document, job.out / KERNELS)
        cost = ProfileCost(read_profile(job.out / KERNELS), Options(cuda_graphs=job.device == "cuda"))
        table = rows.table("step")
        off = [
            abs(cost.step_s(StepShape(*map(int, counts))) * 1e6 / us - 1.0)
            for *counts, us in zip(*(table[name] for name in COUNTS), table["us"], strict=True)
        ]
        return {"mape": sum(off) / len(off)}

    def of_steps() -> dict[str, Any]:
        fitted = fit_steps(rows, f"{setting.name}-{setting.model.name}-steps", setting.model.name, rows.gpu)
        assert fitted.document is not None
        write_document(fitted.document, job.out / STEPS)
        return {"mape": fitted.errors["random"]["mape"] / 100.0}

    for name, find in ((KERNELS, of_kernels), (STEPS, of_steps)):
        found = job.once(name, find) or {}
        if "mape" in found:
            errors[name] = found["mape"]
            job.say(f"{name}: {found['mape']:.1%} on whole steps")
    if errors:
        job.write("fit.json", {"errors": errors, "chosen": min(errors, key=errors.__getitem__)})


def cost_of(job: Job, name: str | None = None) -> tuple[CostModel, str]:
    """The chosen profile's prices, or those of `name`; the roofline's where there is none."""
    path = job.out / "fit.json"
    if name is None and path.exists():
        name = str(json.loads(path.read_text(encoding="utf-8"))["chosen"])
    if name is None:
        return Roofline(job.setting.model, job.setting.gpu, 1), "roofline"
    return ProfileCost(read_profile(job.out / name), Options(cuda_graphs=job.device == "cuda")), name


def lockstep(job: Job) -> None:
    """Plans of real shapes, executed twice beside their prediction."""
    setting = job.setting
    missing = [load for load in setting.loads if job.section.recall(load.name) is None]
    if not missing:
        return
    cost, priced_by = cost_of(job)
    seen = _measured(job.out)
    swap_s = seen.get("swap_s_per_block") or swap_s_per_block(setting.kv, setting.gpu)
    canary = Canary.of_json(seen["canary"]) if "canary" in seen else None
    largest = setting.limits[0], setting.step_tokens
    make_device, fingerprint = executors(
        setting.model, job.device, setting.kv, pointwise=job.pointwise, largest=largest, canary=canary
    )
    job.write("device.json", fingerprint)
    for place, load in enumerate(missing):
        share_s = job.section.left_s / (len(missing) - place)

        def served(load: Load = load, share_s: float = share_s) -> dict[str, Any]:
            steps = serve_twice(
                setting, load, make_device, lambda: Predicted(cost, swap_s), job.out, job.section, share_s
            )
            return {**told(steps, job.device), "cost": priced_by}

        result = job.once(load.name, served)
        if result is not None and "words" in result:
            job.say(f"{load.name}: {result['words']}")
    job.write("lockstep.json", job.section.all())


def _measured(out: Path) -> dict[str, Any]:
    """The figures measured beside the profile's rows."""
    try:
        found: dict[str, Any] = json.loads((out / MEASURED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


PARTS: Mapping[str, Callable[[Job], None]] = {
    part.__name__: part for part in (checks, ceilings, cases, latency, sweep, profile, fit, lockstep, fp8)
}
