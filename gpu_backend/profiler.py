"""Measuring a device: shapes in shuffled passes with a canary among them, and the files of the result.

`rows.jsonl.gz` holds the rows that `batchlab calibrate fit` reads; `calibration.rows` tells its format. Beside it,
`measured.json` says what the device is, how steady it was, what the host takes for a step, and what swapping costs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from gpu_backend.backend import Backend
from gpu_backend.device import Device
from gpu_backend.probes import Grid, Probe, Probes
from gpu_backend.work import Swap
from simulator.errors import InputError

PASSES = 3
CANARY_EVERY = 20  # shapes
MAX_DRIFT = {"cuda": 0.03, "cpu": 0.30}
"""Of the canary, by device. The figures of a shared CPU drift; every lockstep reports its noise floor."""

ROWS, MEASURED = "rows.jsonl.gz", "measured.json"


@dataclass(frozen=True, slots=True)
class SwapRow:
    """Pages moved: `us` alone, and `beside_us` for the step that ran beside them, where the device can."""

    direction: str  # out | in
    blocks: int
    us: float
    beside_us: float | None = None


@dataclass(slots=True)
class Profile:
    """What was measured: microseconds of each probe in each pass."""

    rows: list[dict[str, Any]]
    passes: list[list[float]]
    canary_us: list[float]
    host: dict[str, float]
    swap: list[SwapRow]
    fingerprint: dict[str, str]
    health: list[dict[str, float]] = field(default_factory=list)

    @property
    def drift(self) -> float:
        """How far the canary's time wandered: its last quarter over its first, medians, as a fraction."""
        quarter = max(1, len(self.canary_us) // 4)
        return median(self.canary_us[-quarter:]) / median(self.canary_us[:quarter]) - 1.0

    @property
    def floor(self) -> float:
        """Mean distance of a pass from the median of all, as a fraction: what a shape's own figure is worth."""
        us = np.array(self.passes)
        return float(np.mean(np.abs(us / np.median(us, axis=0) - 1.0)))

    def swap_s_per_block(self) -> float | None:
        """Mean seconds to move a page, either way, in moves of many."""
        each = [row.us / row.blocks for row in self.swap if row.blocks >= 4]
        return mean(each) * 1e-6 if each else None


def profile(
    backend: Backend,
    grid: Grid,
    *,
    kernels: bool = True,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measure the backend: every probe three times, in another order each time. `say` is told how it goes.

    Without `kernels`, whole steps only.
    """
    device = backend.device
    probes = Probes(backend, grid, seed)
    listed, canary = probes.all() if kernels else list(probes.steps()), probes.canary()
    say(f"{len(listed)} shapes, {PASSES} times each")
    for probe in [canary, *listed[:: max(1, len(listed) // 20)]]:  # warm up: compile, allocate
        _us(device, probe)
    random = np.random.default_rng(seed)
    canary_us: list[float] = []
    health = [device.health()]
    passes = []
    for number in range(PASSES):
        us = [0.0] * len(listed)
        for count, index in enumerate(random.permutation(len(listed)).tolist()):
            if count % CANARY_EVERY == 0:
                canary_us.append(_us(device, canary))
            us[index] = _us(device, listed[index])
        passes.append(us)
        health.append(device.health())
        say(f"pass {number + 1} of {PASSES} done")
    middle = np.median(np.array(passes), axis=0).tolist()
    rows = _rows(listed, middle)
    host, swap = _host(backend, probes, grid), list(_swaps(backend, probes))
    return Profile(rows, passes, canary_us, host, swap, device.fingerprint(), health)


def _us(device: Device, probe: Probe) -> float:
    """Kernels are captured: launched one by one, small ones would take as long as the host does to launch them."""
    work = probe.make()
    if probe.kind not in ("step", "experts"):
        work = device.capture(work)
    return device.seconds(work) * 1e6 / probe.of


def _rows(probes: Sequence[Probe], us: Sequence[float]) -> list[dict[str, Any]]:
    """A row a probe. A skewed batch has its even one measured right after it, whose time is its `equal_us`."""
    rows = []
    for place, (probe, each) in enumerate(zip(probes, us, strict=True)):
        row = {"kind": probe.kind, **probe.columns, "us": round(each, 3)}
        if probe.kind == "skew":
            row["equal_us"] = round(us[place + 1], 3)
        rows.append(row)
    return rows


def _host(backend: Backend, probes: Probes, grid: Grid) -> dict[str, float]:
    """Seconds that the host takes to prepare a step, as a line over its requests."""
    device = backend.device
    sizes = sorted({1, max(1, grid.max_num_seqs // 4), grid.max_num_seqs})
    took = []
    for seqs in sizes:
        work = probes.work([32] * seqs, [])
        times = []
        for _ in range(5):
            start_s = device.host_s()
            backend.forward(work)
            times.append(device.host_s() - start_s)
        took.append(median(times))
    slope, first = np.polyfit(sizes, took, 1) if len(sizes) > 1 else (0.0, took[0])
    return {"step_s": max(0.0, float(first)), "seq_s": max(0.0, float(slope))}


def _swaps(backend: Backend, probes: Probes) -> Iterator[SwapRow]:
    """Pages moved out and in, by their number, with and without a step beside them."""
    pool, device = backend.pool, backend.device
    most = min(pool.num_blocks, len(pool.host))
    canary = probes.canary()
    for blocks in [count for count in (1, 4, 16, 64, 256, 1024) if count <= most]:
        swap = Swap(tuple(range(1, blocks + 1)), tuple(range(blocks)))
        back = Swap(swap.target, swap.source)
        moves: list[tuple[str, Callable[[], None]]] = [
            ("out", lambda swap=swap: pool.swap_out(swap)),  # type: ignore[misc] # a default is not inferred
            ("in", lambda back=back: pool.swap_in(back)),  # type: ignore[misc] # likewise
        ]
        for direction, move in moves:
            move()
            us = device.seconds(move) * 1e6
            beside = device.beside(canary.make(), move)
            yield SwapRow(direction, blocks, us, None if beside is None else beside * 1e6)


def write_profile(folder: Path, found: Profile, header: dict[str, Any]) -> None:
    """Write the rows and what was seen beside them.

    `header` names GPU, model, dtype. Raises InputError where the canary drifted too far: such rows fit nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    limit = MAX_DRIFT[header["device"]]
    seen = {
        "fingerprint": found.fingerprint,
        "health": found.health,
        "canary": {"us": [round(us, 2) for us in found.canary_us], "drift": round(found.drift, 4), "limit": limit},
        "floor": round(found.floor, 4),
        "host": found.host,
        "swap_s_per_block": found.swap_s_per_block(),
        "swap": [
            {"direction": s.direction, "blocks": s.blocks, "us": s.us, "beside_us": s.beside_us} for s in found.swap
        ],
        **header,
    }
    (folder / MEASURED).write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    if abs(found.drift) > limit:
        raise InputError(
            f"the device changed while it was measured: its canary drifted by {found.drift:+.1%}, over {limit:.0%}",
            hint=f"nothing else may run on it; what was seen is in {folder / MEASURED}",
        )
    first = {
        "schema": "batchlab rows",
        "version": 1,
        "gpu": header["gpu"],
        "model": header["model"],
        "tensor_parallel": 1,
        "dtype": header["dtype"],
        "software": f"torch {found.fingerprint['torch']}",
        "sources": [{"source": "batchlab calibrate measure", **found.fingerprint}],
    }
    lines = [json.dumps(first), *(json.dumps(row) for row in found.rows)]
    (folder / ROWS).write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
