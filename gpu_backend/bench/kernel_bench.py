"""The speed of the attention kernels, against the limits of the device and other kernels: one command.

    python -m gpu_backend.bench.kernel_bench --out DIR [--device cuda|cpu] [--sweep] [--no-rivals]

Measures the ceilings (a copy, a matrix product), then every case over distinct random pages far beyond the cache, then
the latency of batches of 1 to 64. Prints a table with the targets and writes DIR/kernel_bench.json, anew after each
part, so that a run that is cut off leaves what it had. On a CPU the same path runs over tiny shapes with torch's
float64 attention in the place of the kernels: a rehearsal, whose numbers mean nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from traceback import clear_frames
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_backend.attention.tiling import Tiling, Tilings, tilings
from gpu_backend.bench.cases import (
    CACHE_BYTES,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    PAGE,
    Case,
    Pool,
    Run,
    Table,
    cases,
    fp8_cases,
    latency_cases,
)
from gpu_backend.bench.reference import reference_attention
from gpu_backend.bench.rivals import RIVALS, NotHereError
from gpu_backend.bench.timing import Ceilings, Timing, ceilings, measure
from gpu_backend.bench.waves import decode_waves
from gpu_backend.fp8 import E4M3

SMOOTH = 1.1
"""How far above the smooth model a batch's latency may lie."""
TOLERANCE = 2e-2

Kernel = Callable[[Case, Pool, Table, Tensor], Run]
Row = dict[str, Any]


@cache
def _paged(device: torch.device, dtype: torch.dtype, choice: Tilings, fp8_kv: bool = False) -> Any:
    from gpu_backend.attention.paged import PagedAttention  # triton, which a CPU rehearsal does without

    return PagedAttention(HEADS, KV_HEADS, HEAD_DIM, PAGE, device, dtype, choice=choice, fp8_kv=fp8_kv)


def triton_kernel(choice: Tilings) -> Kernel:
    """The paged kernels with that configuration."""

    def kernel(case: Case, pool: Pool, table: Table, q: Tensor) -> Run:
        from gpu_backend.attention.paged import StepSequences

        attention = _paged(q.device, q.dtype, choice, pool.kv.dtype == E4M3)
        context, query = np.array(case.context, np.int64), np.array(case.query, np.int64)
        step = StepSequences(context, query, np.zeros_like(context), table, np.empty(0, np.int32))
        prepared, out = attention.prepare_step(step), torch.empty_like(q)

        def run() -> Tensor:
            done: Tensor = attention.look(q, pool.kv, prepared, out)
            return done

        return run

    return kernel


def stand_in(case: Case, pool: Pool, table: Table, q: Tensor) -> Run:
    """torch's attention in the place of the kernels, on a CPU."""
    tables = torch.from_numpy(table)
    return lambda: reference_attention(q, pool.kv, tables, case.context, case.query).to(q.dtype)


class Bench:
    """One device and one type; `scale` divides the contexts. `fp8_kv`: the cases over pages in fp8."""

    def __init__(self, device: str, dtype: torch.dtype, scale: int, *, fp8_kv: bool = False) -> None:
        self.device, self.dtype, self.scale = torch.device(device), dtype, scale
        self.real = self.device.type == "cuda"
        self.repeats = 30 if self.real else 3
        name = str(dtype).removeprefix("torch.")
        self.choice = tilings(HEAD_DIM, name, HEADS // KV_HEADS, fp8_kv=fp8_kv)
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        self.kernel: Kernel = triton_kernel(self.choice) if self.real or interpreted else stand_in
        self.cases = fp8_cases(scale) if fp8_kv else cases(scale)
        self.latencies = [] if fp8_kv else latency_cases(scale)
        kept = E4M3 if fp8_kv else dtype
        self.itemsizes = dtype.itemsize, kept.itemsize
        self.pool = Pool.random(max(case.pages for case in (*self.cases, *self.latencies)) + 1, self.device, kept)

    def ceilings(self) -> Ceilings:
        """The device's ceilings, measured."""
        sizes = {"copy_bytes": 4 << 30, "matmul": 8192} if self.real else {"copy_bytes": 4 << 20, "matmul": 128}
        return ceilings(self.device, self.dtype, **sizes)

    def runs(self, case: Case, kernel: Kernel) -> list[Run]:
        """A call for each copy of the case, with queries of its own."""
        copies = self.pool.copies(case, CACHE_BYTES if self.real else 1)
        shape = (sum(case.query), HEADS, HEAD_DIM)
        return [
            kernel(case, self.pool, table, torch.empty(shape, dtype=self.dtype, device=self.device).normal_())
            for table in self.pool.tables(case, copies)
        ]

    def error(self, case: Case, kernel: Kernel) -> float:
        """Relative error of a kernel's output, against torch in float64: a wrong kernel can be fast."""
        q = torch.empty((sum(case.query), HEADS, HEAD_DIM), dtype=self.dtype, device=self.device).normal_()
        (table,) = self.pool.tables(case, 1, seed=1)
        out = kernel(case, self.pool, table, q)().double()
        tables = torch.from_numpy(table).to(self.device)
        expected = reference_attention(q, self.pool.kv, tables, case.context, case.query)
        return float((out - expected).norm() / expected.norm())

    def small(self, case: Case) -> Case:
        """The case with contexts that float64 attention has the memory for; a prefix stays one."""
        most = 2048
        context = tuple(min(keys, most) for keys in case.context)
        query = tuple(
            keys if tokens == whole else min(tokens, keys // 2)
            for tokens, whole, keys in zip(case.query, case.context, context, strict=True)
        )
        return replace(case, name=f"{case.name}, small", context=context, query=query)

    def waves(self, case: Case) -> int | None:
        """Rounds of the persistent grid, for a pure decode on a GPU."""
        if not self.real or set(case.query) != {1}:
            return None
        paged, decode = _paged(self.device, self.dtype, self.choice), self.choice.decode
        return decode_waves(case.context, KV_HEADS, decode.chunk, paged.multiprocessors * decode.programs_per_sm)

    def measure(self, case: Case, kernel: Kernel) -> Timing:
        """Seconds of one step."""
        return measure(self.runs(case, kernel), self.device, self.repeats)


def row(case: Case, kernel: str, timing: Timing, limits: Ceilings, *itemsizes: int) -> Row:
    """A measurement with its rates, and whether it breaks a physical limit, which means that it is wrong.

    `itemsizes`: bytes of a query's number, and of a key's where that is another.
    """
    gb_s, tflops = case.bytes(*itemsizes) / timing.seconds / 1e9, case.flops / timing.seconds / 1e12
    share = gb_s / limits.copy_gb_s if case.bound == "bytes" else tflops / limits.matmul_tflops
    beyond = (limits.peak_gb_s is not None and gb_s > limits.peak_gb_s and case.bound == "bytes") or (
        limits.peak_tflops is not None and tflops > limits.peak_tflops
    )
    rates = {"seconds": timing.seconds, "spread": timing.spread, "gb_s": gb_s, "tflops": tflops, "share": share}
    judged = {"target": case.target, "best": case.best, "impossible": beyond, "method": timing.method}
    return {"case": case.name, "kernel": kernel, "bound": case.bound, **rates, **judged}


def case_row(bench: Bench, limits: Ceilings, case: Case, kernel: str) -> Row:
    """A case with our kernel ("batchlab") or a rival's; with the reason instead where it takes no part or fails.

    Whatever a kernel raises costs this case alone: Triton's own errors are no RuntimeErrors.
    """
    ours = kernel == "batchlab"
    call = bench.kernel if ours else RIVALS[kernel]
    try:
        error = bench.error(bench.small(case), call)
        found = row(case, kernel, bench.measure(case, call), limits, *bench.itemsizes) | {"error": error}
        return found | ({"waves": bench.waves(case)} if ours else {})
    except NotHereError as reason:
        return {"case": case.name, "kernel": kernel, "skipped": str(reason)}
    except Exception as failure:
        return {"case": case.name, "kernel": kernel, "skipped": said(failure), "failed": True}


def said(failure: BaseException) -> str:
    """The error in one line. Nothing else of it is kept: its frames hold the device's memory."""
    text = f"{type(failure).__name__}: {failure}".strip()[:300]
    seen: BaseException | None = failure
    while seen is not None:
        if seen.__traceback__ is not None:
            clear_frames(seen.__traceback__)
        seen.__traceback__, seen = None, seen.__cause__ or seen.__context__
    return text


def measured_cases(bench: Bench, limits: Ceilings, *, rivals: bool, say: Callable[[str], None]) -> list[Row]:
    """Every case with our kernel and with each rival that takes part; those that do not, with the reason."""
    rows: list[Row] = []
    for case in bench.cases:
        for kernel in ("batchlab", *(RIVALS if rivals else ())):
            rows.append(case_row(bench, limits, case, kernel))
            say(line(rows[-1]))
    return rows


def smooth_model(batches: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, list[float]]:
    """The line a + b * batch that is best in relative terms, and each measurement over it."""
    x, y = np.asarray(batches, float), np.asarray(seconds, float)
    columns = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    (a, b), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
    return float(a), float(b), (y / (a + b * x)).tolist()


def measured_latencies(bench: Bench, say: Callable[[str], None]) -> Row:
    """Latency over the batch, and the worst step above the smooth model."""
    found = smoothness(bench.latencies, [bench.measure(case, bench.kernel).seconds for case in bench.latencies])
    say(
        f"latency = {found['base_s'] * 1e6:.1f} us + {found['per_sequence_s'] * 1e6:.1f} us a sequence; "
        f"worst x {found['worst']:.3f} at B{found['worst_batch']}"
    )
    return found | {"waves": [bench.waves(case) for case in bench.latencies]}


def smoothness(measured: Sequence[Case], seconds: Sequence[float]) -> Row:
    """The line that is best over batches, and how far above it the worst lies."""
    batches = [len(case.context) for case in measured]
    a, b, ratios = smooth_model(batches, seconds)
    worst = max(range(len(ratios)), key=ratios.__getitem__)
    return {
        "batches": batches, "seconds": list(seconds), "ratios": ratios, "base_s": a, "per_sequence_s": b,
        "worst": ratios[worst], "worst_batch": batches[worst],
    }  # fmt: skip


def variants(choice: Tilings | None = None) -> list[tuple[str, Tiling]]:
    """Configurations to try beside the chosen ones: experiments first, in the order of what they promise."""
    choice = choice or tilings(HEAD_DIM, "bfloat16", HEADS // KV_HEADS)
    experiments = [
        ("prefill", Tiling(64, 64, 8192, 4, 5)),  # two independent programs a multiprocessor
        ("prefill", Tiling(128, 64, 8192, 8, 3, table_once=True)),
        ("prefill", Tiling(128, 64, 8192, 8, 4, table_once=True)),
        # A table known beforehand makes the chain of loads shorter: half the stages keep as much in flight.
        ("decode", Tiling(16, 64, 512, 4, 4, 2, table_once=True)),
        ("decode", Tiling(16, 32, 512, 4, 5, 3, table_once=True)),
        ("decode", Tiling(16, 32, 512, 4, 4, 4, table_once=True)),
        ("decode", Tiling(16, 64, 512, 4, 3, 3, table_once=True)),
        ("decode", Tiling(16, 64, 512, 4, 4, 2, table_once=True, evict_first=True)),
        ("decode", replace(choice.decode, evict_first=True)),
        ("decode", Tiling(16, 64, 512, 4, 7, 2)),
        ("decode", Tiling(16, 32, 512, 4, 9, 3)),
    ]
    decode = [
        Tiling(16, block_n, chunk, 4, stages, programs)
        for block_n, stages, programs in ((32, 5, 4), (64, 5, 3), (16, 9, 4), (32, 7, 4))
        for chunk in (512, 256)
    ]
    prefill = [Tiling(128, 64, 8192, 8, stages) for stages in (3, 7)] + [Tiling(128, 32, 8192, 8, 7)]
    chosen = [("decode", choice.decode), ("prefill", choice.prefill)]
    rest = [("decode", tiling) for tiling in decode] + [("prefill", tiling) for tiling in prefill]
    return list(dict.fromkeys([*chosen, *experiments, *rest]))


def variant_rows(bench: Bench, limits: Ceilings, kind: str, tiling: Tiling) -> list[Row]:
    """The cases with a target under one configuration, each against float64 too; with the reason where it fails."""
    kernel = triton_kernel(replace(bench.choice, **{kind: tiling})) if bench.real else bench.kernel
    rows: list[Row] = []
    for case in bench.cases:
        if case.target is None or (kind == "decode") != (case.bound == "bytes"):
            continue
        shown = {"tiling": asdict(tiling)}
        try:
            error = bench.error(bench.small(case), kernel)
            found = row(case, kind, bench.measure(case, kernel), limits, *bench.itemsizes) | {"error": error}
            rows.append(found | shown)
        except Exception as failure:
            rows.append({"case": case.name, "kernel": kind, "skipped": said(failure), "failed": True} | shown)
    return rows


def winners(rows: Sequence[Row], choice: Tilings) -> Row:
    """The configuration of each kind with the best worst case, and its gain over the chosen one: over the cases with a
    target, the least ratio of the chosen one's seconds to its own."""
    found: Row = {}
    for kind in ("decode", "prefill"):
        mine = [item for item in rows if item["kernel"] == kind and "seconds" in item and item["error"] <= TOLERANCE]
        base = {item["case"]: item["seconds"] for item in mine if item["tiling"] == asdict(getattr(choice, kind))}
        by_tiling: dict[str, list[float]] = {}
        for item in mine:
            if item["case"] in base:
                gains = by_tiling.setdefault(json.dumps(item["tiling"]), [])
                gains.append(base[item["case"]] / item["seconds"])
        whole = {key: min(gains) for key, gains in by_tiling.items() if len(gains) == len(base)}
        if whole:
            best = max(whole, key=whole.__getitem__)
            found[kind] = {"tiling": json.loads(best), "gain": whole[best]}
    return found


def swept(bench: Bench, limits: Ceilings, seconds: float, say: Callable[[str], None]) -> list[Row]:
    """The cases with a target under each configuration, until the time is up."""
    rows: list[Row] = []
    end = time.monotonic() + seconds
    for kind, tiling in variants(bench.choice):
        if time.monotonic() > end:
            return [*rows, {"stopped": "the time for the sweep was up"}]
        found = variant_rows(bench, limits, kind, tiling)
        rows += found
        for item in found:
            say(f"{line(item)}  {tuple(asdict(tiling).values())}")
    return rows


def line(found: Row) -> str:
    """A measurement as a line of the table."""
    head = f"{found['case']:34} {found['kernel']:20}"
    if "skipped" in found:
        return f"{head} - {found['skipped'].splitlines()[0][:90]}"
    share = f"{found['share']:6.1%}" + (f" of {found['target']:.0%}" if found["target"] else "")
    flag = "  IMPOSSIBLE" if found["impossible"] else ""
    return f"{head} {found['seconds'] * 1e6:10.1f} us {found['gb_s']:8.0f} GB/s {found['tflops']:7.1f} TF {share}{flag}"


def verdicts(report: Row) -> list[Row]:
    """Target by target: the figure asked for, the figure reached, and whether it suffices."""
    found = [
        {
            "what": item["case"],
            "asked": item["target"],
            "reached": item["share"],
            "pass": item["share"] >= item["target"],
        }
        for item in report["cases"]
        if item["kernel"] == "batchlab" and item.get("target")
    ]
    worst = report["latency"]["worst"] if "latency" in report else math.inf
    found.append({"what": "latency over batch at 32k", "asked": SMOOTH, "reached": worst, "pass": worst <= SMOOTH})
    ours = [item for item in report["cases"] if item["kernel"] == "batchlab"]
    error = max((item.get("error", math.inf) for item in ours), default=math.inf)
    found.append({"what": "error against float64", "asked": TOLERANCE, "reached": error, "pass": error <= TOLERANCE})
    wrong = sum(bool(item.get("impossible")) for item in report["cases"])
    found.append({"what": "beyond a physical limit", "asked": 0, "reached": wrong, "pass": wrong == 0})
    return found


def machine(device: torch.device, dtype: torch.dtype) -> Row:
    """The report: measurements, device and software."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        import triton

        properties = torch.cuda.get_device_properties(device)
        name = properties.name
        versions |= {"triton": triton.__version__, "cuda": str(torch.version.cuda)}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    shape = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "page": PAGE, "dtype": str(dtype)}
    return {"device": name, "date": now, "versions": versions, "shape": shape}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; 0 if every target was met, or on a CPU, where none is judged."""
    parser = argparse.ArgumentParser(
        prog="python -m gpu_backend.bench.kernel_bench", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for kernel_bench.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-rivals", action="store_true", help="leave other kernels out")
    parser.add_argument("--sweep", type=float, default=0.0, metavar="SECONDS", help="try other configurations so long")
    chosen = parser.parse_args(arguments)
    if chosen.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device; --device cpu rehearses")
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    chosen.out.mkdir(parents=True, exist_ok=True)
    report = run(Bench(chosen.device, *scale_of(chosen.device)), chosen)
    if chosen.device == "cpu":
        sys.stdout.write("a rehearsal on a CPU: nothing is judged\n")
        return 0
    return 0 if all(item["pass"] for item in report["verdicts"]) else 1


def scale_of(device: str) -> tuple[torch.dtype, int]:
    """The type of the numbers, and what contexts are divided by: a CPU only rehearses."""
    return (torch.bfloat16, 1) if device == "cuda" else (torch.float32, 256)


def run(bench: Bench, chosen: argparse.Namespace) -> Row:
    """All parts in order; the report is written after each."""

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def keep(name: str, value: Any) -> None:
        report[name] = value
        (chosen.out / "kernel_bench.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    report: Row = machine(bench.device, bench.dtype)
    limits = bench.ceilings()
    keep("ceilings", asdict(limits))
    say(f"{report['device']}: copy {limits.copy_gb_s:.0f} GB/s, matmul {limits.matmul_tflops:.1f} TFLOP/s")
    keep("tilings", asdict(bench.choice))
    keep("cases", measured_cases(bench, limits, rivals=not chosen.no_rivals, say=say))
    keep("latency", measured_latencies(bench, say))
    keep("verdicts", verdicts(report))
    for item in report["verdicts"]:
        word = "pass" if item["pass"] else "FAIL"
        word = word if bench.real else "-"
        say(f"{word:5} {item['what']:34} asked {item['asked']:<7.3g} reached {item['reached']:.3g}")
    if chosen.sweep:
        keep("sweep", swept(bench, limits, chosen.sweep, say))
    return report


if __name__ == "__main__":
    sys.exit(main())
