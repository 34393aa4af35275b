"""The command: every part in its order, within its time, whatever becomes of the others.

    python -m tools.campaign --out DIR [--device cuda] [--from EARLIER]

checks -> ceilings -> cases -> latency -> sweep -> profile -> fit -> lockstep -> fp8, then DIR/NAME.tar.gz. Results
stand in DIR/NAME, where NAME is what the device calls itself: rows of one GPU never carry another's name. Everything
found is in DIR/NAME/journal.jsonl at once; the same command goes on from there, as does `--from` with what an earlier
machine left.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpu_backend import require_torch
from gpu_backend.device import open_device
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from tools.campaign.job import DeadDeviceError, Job, Journal, Section, name_of, setting_of, write_json
from tools.campaign.parts import PARTS
from tools.kernel_bench.cases import CACHE_BYTES, Case, cases, fp8_cases, latency_cases
from tools.kernel_bench.device_checks import CHECKS
from tools.kernel_bench.speed import REPEATS, said

# The campaign's parts, the seconds that each may take, and those that it is expected to take on known GPUs.

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
    from tools.kernel_bench.speed import variants

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


# The command.

PACKING_S = 8.0
RESTARTS = "BATCHLAB_CAMPAIGN_RESTARTS"
MOST_RESTARTS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0 done, 1 a part failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal of a tiny model")
    parser.add_argument("--out", type=Path, help="folder for what is found")
    parser.add_argument("--model", default="llama-3.1-8b", help="of the model table; the CPU has a tiny one")
    parser.add_argument("--from", dest="earlier", type=Path, help="an earlier --out to go on from")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="what all of it may take")
    parser.add_argument("--parts", default=",".join(PARTS), help="some of the parts")
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    chosen = parser.parse_args(arguments)
    if chosen.plan:
        sys.stdout.write(table())
        return 0
    try:
        if chosen.out is None:
            raise InputError("where to?", hint="--out DIR")
        names = [name.strip() for name in chosen.parts.split(",")]
        if not set(names) <= set(PARTS):
            raise InputError(f"unknown parts in {chosen.parts!r}", hint=f"allowed: {', '.join(PARTS)}")
        require_torch(chosen.device)
        return _run(chosen, names)
    except InputError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _run(chosen: argparse.Namespace, names: Sequence[str]) -> int:
    started_s = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - started_s:5.0f} s] {text}\n")
        sys.stderr.flush()

    fingerprint = open_device(chosen.device).fingerprint()
    setting = setting_of(chosen.device, fingerprint, chosen.model)
    out = _folder(chosen, {**fingerprint, "model": chosen.model})
    say(f"{fingerprint['device']} -> {out}")
    sys.stderr.write(table(name_of(fingerprint["device"])))
    journal = Journal(out / "journal.jsonl")
    state: dict[str, Any] = {}
    for part in plan():
        if part.name not in names:
            continue
        left_s = chosen.seconds - PACKING_S - (time.monotonic() - started_s)
        section = Section(journal, part.name, max(0.0, min(part.budget_s, left_s)))
        state[part.name] = _do(Job(chosen.device, setting, out, section, say), chosen, started_s)
        write_json(out / "state.json", state)
    _pack(out)
    say(f"packed: {out.parent / (out.name + '.tar.gz')}")
    return 0 if all(each["done"] for each in state.values()) else 1


def _do(job: Job, chosen: argparse.Namespace, started_s: float) -> dict[str, Any]:
    """One part: how long it took, and what went wrong if something did."""
    name = job.section.name
    begin_s = time.monotonic()
    wrong = None
    try:
        PARTS[name](job)
    except DeadDeviceError as error:
        _start_again(job, chosen, started_s, str(error))
        wrong = str(error)
    except Exception as error:
        wrong = said(error)  # which lets go of the frames, and so of the device's memory
    failed = [key for key, found in job.section.all().items() if found.get("failed")]
    took_s = time.monotonic() - begin_s
    job.say(f"{name}: {took_s:.0f} s" + (f", {wrong}" if wrong else "") + ("" if not failed else f", lost: {failed}"))
    over = job.section.is_over()
    job.__dict__.pop("bench", None)
    gc.collect()
    if job.device == "cuda":
        torch.cuda.empty_cache()
    return {"seconds": round(took_s, 1), "done": wrong is None, "wrong": wrong, "lost": failed, "out_of_time": over}


def _start_again(job: Job, chosen: argparse.Namespace, started_s: float, why: str) -> None:
    """Go on in a new process: in this one the device is lost. What broke it is in the journal and not tried again."""
    times = int(os.environ.get(RESTARTS, "0"))
    left_s = chosen.seconds - (time.monotonic() - started_s)
    if times >= MOST_RESTARTS or left_s < 2 * PACKING_S:
        return
    job.say(f"the device is lost to this process ({why}); starting another")
    os.environ[RESTARTS] = str(times + 1)
    arguments = ["--device", chosen.device, "--out", str(chosen.out), "--model", chosen.model]
    arguments += ["--seconds", f"{left_s:.0f}", "--parts", chosen.parts]
    os.execv(sys.executable, [sys.executable, "-m", "tools.campaign", *arguments])


def _folder(chosen: argparse.Namespace, fingerprint: Mapping[str, str]) -> Path:
    """The folder of this device: the one that holds its earlier results, else a new one. Rows of two never mix."""
    name = "cpu" if chosen.device == "cpu" else name_of(fingerprint["device"])
    chosen.out.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100):
        out: Path = chosen.out / (name if number == 1 else f"{name}-{number}")
        earlier = None if chosen.earlier is None else chosen.earlier / out.name
        if not out.exists() and earlier is not None and earlier.is_dir():
            shutil.copytree(earlier, out)
        if not out.exists():
            out.mkdir()
        known = out / "fingerprint.json"
        if not known.exists():
            write_json(known, fingerprint)
        if json.loads(known.read_text(encoding="utf-8")) == dict(fingerprint):
            return out
    raise InputError("a hundred folders of other devices", file=str(chosen.out))


def _pack(out: Path) -> None:
    """All of the folder as one file beside it."""
    target = out.parent / f"{out.name}.tar.gz"
    new = target.with_suffix(".new")
    with tarfile.open(new, "w:gz") as packed:
        packed.add(out, arcname=out.name)
    new.replace(target)
