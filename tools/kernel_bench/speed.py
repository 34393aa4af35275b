"""The speed of the attention kernels, against the limits of the device and other kernels: one command.

    python -m tools.kernel_bench.speed --out DIR [--device cuda|cpu] [--sweep] [--no-rivals]

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
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from traceback import clear_frames
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpu_backend.attention.worklist import Tiling, Tilings, tilings
from gpu_backend.weights import E4M3
from simulator.engine.clock import no_garbage_collection
from simulator.hardware.gpus import GPUS
from tools.kernel_bench.cases import (
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
    reference_attention,
)
from tools.kernel_bench.rivals import RIVALS, NotHereError

# Timing on a device, and what the device can do at most: the copy and the matrix product that it is measured by.

REPEATS = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of one call, the spread of the middle half over the median, and how it was measured."""

    seconds: float
    spread: float
    method: str


def measure(calls: Sequence[Callable[[], object]], device: torch.device, repeats: int = REPEATS) -> Timing:
    """Seconds a call: the calls in turn, so that none finds its data in the cache, `repeats` times.

    On a GPU as one CUDA graph, whose replay has no launches of the host between kernels; calls that cannot be captured
    are queued one after another instead ("queued").
    """
    for call in calls:
        call()
    if device.type != "cuda":
        return _summary([_host_seconds(calls) for _ in range(repeats)], len(calls), "host clock")
    torch.cuda.synchronize()
    replay, method = _captured(calls)
    for _ in range(3):
        replay()
    samples = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]  # torch's stubs
        begin.record()
        replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) / 1000)
    return _summary(samples, len(calls), method)


def _captured(calls: Sequence[Callable[[], object]]) -> tuple[Callable[[], None], str]:
    def queue() -> None:
        for call in calls:
            call()

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            queue()
    except RuntimeError:
        torch.cuda.synchronize()
        return queue, "queued"
    return graph.replay, "graph"


def _host_seconds(calls: Sequence[Callable[[], object]]) -> float:
    with no_garbage_collection():
        start = time.perf_counter()
        for call in calls:
            call()
        return time.perf_counter() - start


def _summary(samples: Sequence[float], calls: int, method: str) -> Timing:
    low, middle, high = statistics.quantiles(samples, n=4)
    return Timing(middle / calls, (high - low) / middle, method)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured ceilings of a device, bytes counted as read and written; and those that its maker states.

    The maker's numbers are None for a device that is not in the table.
    """

    copy_gb_s: float
    matmul_tflops: float
    peak_gb_s: float | None
    peak_tflops: float | None


def ceilings(device: torch.device, dtype: torch.dtype, *, copy_bytes: int, matmul: int) -> Ceilings:
    """A copy of `copy_bytes` and products of `matmul` square matrices of random numbers."""
    source = torch.empty(copy_bytes // dtype.itemsize, dtype=dtype, device=device).normal_()
    target = torch.empty_like(source)
    copied = measure([lambda: target.copy_(source)], device).seconds
    left, right, out = (torch.randn(matmul, matmul, device=device).to(dtype) for _ in range(3))
    product = measure([lambda: torch.mm(left, right, out=out)], device).seconds
    peak_gb_s, peak_tflops = peaks(device)
    return Ceilings(2 * copy_bytes / copied / 1e9, 2 * matmul**3 / product / 1e12, peak_gb_s, peak_tflops)


def peaks(device: torch.device) -> tuple[float | None, float | None]:
    """The data sheet's bandwidth (GB/s) and bf16 rate (TFLOP/s) of a device whose name holds one of the table's."""
    if device.type != "cuda":
        return None, None
    words = torch.cuda.get_device_name(device).upper().replace("-", " ").split()
    for name, gpu in GPUS.items():
        if name.upper().split("-")[0] in words:
            return gpu.bandwidth_gb_s, gpu.bf16_tflops
    return None, None


# Work items of a decode step, and the rounds in which a persistent grid gets through them. numpy only.


def decode_items(context_lens: npt.ArrayLike, kv_heads: int, chunk: int) -> int:
    """Work items of a decode step: a chunk of one KV head's keys each. `context_lens`: keys a sequence, 0 for none."""
    context = np.asarray(context_lens, dtype=np.int64)
    return int((-(-context // chunk)).sum()) * kv_heads


def decode_waves(context_lens: npt.ArrayLike, kv_heads: int, chunk: int, programs: int) -> int:
    """Rounds in which a persistent grid of `programs` gets through a decode step: exact, and a feature of its cost.

    Program p takes items p, p + programs, and so on, heaviest first; the last round may not be full, and the shorter
    last chunks of the sequences are in it.
    """
    return -(-decode_items(context_lens, kv_heads, chunk) // programs)


# The bench.

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
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_bench.speed", description=__doc__.split("\n")[0])
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
