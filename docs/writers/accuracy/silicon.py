"""Closed-loop runs of real vLLM servers (aiconfigurator's silicon samples): their TPOT against ours.

Each run keeps `concurrency` requests of `isl` prompt and `osl` answer tokens in flight. A request that ends is followed
by the next at once, so a server with that many slots and all requests waiting at its door does the same, but for the
time to first token, which is not compared. What a server adds to each step beyond its kernels is two constants, a base
and a share for each request of the step; they are fitted to the runs of low concurrency alone.
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.kv import MemorySettings
from simulator.hardware.models import MODELS, Model
from simulator.metrics.latency import finished, tpot_s
from simulator.policies import load_policy
from simulator.results.records import Floats, Records
from simulator.simulate import simulate
from simulator.timing.cost import CostModel
from simulator.timing.host import Host, WithHost
from simulator.workload import Workload

LOW_CONCURRENCY = 16
"""The constants are fitted to runs of at most this concurrency, and scored on all others."""

WAVES = 4
"""So many times the concurrency are the requests of a run; the first and the last of these are not counted."""

_SYSTEMS = {"h100_sxm": "h100", "h200_sxm": "h200"}
_MODELS = {
    "Qwen/Qwen3-32B": "qwen3-32b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "openai/gpt-oss-120b": "gpt-oss-120b",
}
_DTYPES = {"fp8": "fp8", "fp4": "mxfp4"}

BACKENDS = {"gpt-oss-120b": "marlin"}
"""Kernels of experts that the servers were told to take. InferenceMAX's script for gpt-oss on H200 sets
VLLM_MXFP4_USE_MARLIN=1, and beside it max-num-batched-tokens 8192, max-cudagraph-capture-size 2048, no prefix caching
(SemiAnalysisAI/InferenceX at 3b8a2f9, benchmarks/single_node/gptoss_fp4_h200.sh). vLLM 0.18 left alone takes Triton's
kernels there."""
_BUDGET = 8192  # max_num_batched_tokens of `vllm serve` on these GPUs


@dataclass(frozen=True, slots=True)
class SiliconRun:
    """One closed-loop run: what ran, and the TPOT (s) that was measured."""

    name: str
    model: str
    gpu: str
    tensor_parallel: int
    dtype: str  # bf16 or fp8, of weights and KV cache alike; mxfp4: of experts, beside bf16
    isl: int
    osl: int
    concurrency: int
    tpot_s: float
    version: str = ""  # of vLLM, as the sample says; "" where it does not
    ttft_s: float = math.nan  # as measured, where the sample says; it depends on how the run began, and is not compared

    @property
    def is_low(self) -> bool:
        """True if the constants are fitted to this run."""
        return self.concurrency <= LOW_CONCURRENCY

    def resolve_model(self) -> Model:
        """The model as it was served."""
        model = MODELS[self.model]
        return replace(model, dtype_bytes=1, kv_dtype_bytes=1) if self.dtype == "fp8" else model

    def resolve_gpu(self) -> Gpu:
        """The GPU's figures."""
        return GPUS[self.gpu]


@dataclass(frozen=True, slots=True)
class Scored:
    """A run and the TPOT (s) that was simulated for it; `kernels` says what its kernel times come from."""

    run: SiliconRun
    tpot_s: float
    kernels: str = ""

    @property
    def error(self) -> float:
        """Signed fraction."""
        return self.tpot_s / self.run.tpot_s - 1.0


@dataclass(frozen=True, slots=True)
class Kernels:
    """Cost of a run's kernels, without any host, and its source; `host` is given where it is not fitted."""

    source: str
    cost: CostModel
    host: Host | None = None


KernelsOf = Callable[[SiliconRun], Kernels]
Hosts = Mapping[str, Host]
"""By the source of the kernels: they may count some of a server's host among them."""


def read_silicon(path: Path) -> list[SiliconRun]:
    """The runs of models that are known. Raises InputError for a row that cannot be read."""
    runs = []
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            if row.get("model_path") not in _MODELS or row.get("system") not in _SYSTEMS:
                continue
            try:
                runs.append(_run(row))
            except (KeyError, ValueError) as error:
                raise InputError(f"not a row of a silicon sample: {error}", file=str(path), line=line) from None
    if not runs:
        raise InputError("no run of a model that is known", file=str(path))
    return runs


def simulated_tpot_s(run: SiliconRun, cost: CostModel) -> float:
    """Mean TPOT of the run's requests, those of the first and the last wave left out. Deterministic."""
    count = WAVES * run.concurrency
    model, gpu = run.resolve_model(), run.resolve_gpu()
    parameters = {"max_num_seqs": run.concurrency, "max_num_batched_tokens": _BUDGET}
    records = simulate(
        _workload(run, count),
        make_policy=lambda: load_policy("vllm", parameters, None),
        kv=MemorySettings(model, gpu, run.tensor_parallel, max_num_batched_tokens=_BUDGET).kv_cache(),
        cost=cost,
    ).records
    return _mean_tpot_s(records, run.concurrency)


def fit_hosts(runs: Sequence[SiliconRun], kernels_of: KernelsOf) -> Hosts:
    """The constants that bring the runs of low concurrency closest, by relative least squares, none below 0.

    Kernels that come with a host keep it: nothing is fitted to their runs.

    What the host adds goes into TPOT as it is, so the fit is linear in what the kernels alone leave unexplained.
    """
    rows: dict[str, list[list[float]]] = {}
    known: dict[str, Host] = {}
    for run in runs:
        kernels = kernels_of(run)
        if kernels.host is not None:
            known[kernels.source] = kernels.host
            continue
        left = rows.setdefault(kernels.source, [])
        if run.is_low:
            unexplained = 1.0 - simulated_tpot_s(run, kernels.cost) / run.tpot_s
            left.append([1.0 / run.tpot_s, run.concurrency / run.tpot_s, unexplained])
    return known | {source: _fit(np.array(left).reshape(-1, 3)) for source, left in rows.items()}


def score(runs: Sequence[SiliconRun], kernels_of: KernelsOf, hosts: Hosts) -> list[Scored]:
    """Each run with its simulated TPOT."""
    found = []
    for run in runs:
        kernels = kernels_of(run)
        cost = WithHost(kernels.cost, hosts[kernels.source])
        found.append(Scored(run, simulated_tpot_s(run, cost), kernels.source))
    return found


def median_error(scored: Sequence[Scored]) -> float:
    """The median size of the errors; NaN for none."""
    return float(np.median([abs(each.error) for each in scored])) if scored else math.nan


Group = tuple[str, str, str, int, int]
"""GPU, model, dtype, tensor parallelism, concurrency."""


def grouped(scored: Sequence[Scored]) -> dict[Group, list[Scored]]:
    """The runs by group, both in order."""
    groups: dict[Group, list[Scored]] = {}
    for each in sorted(scored, key=lambda each: (each.run.isl, each.run.osl)):
        run = each.run
        groups.setdefault((run.gpu, run.model, run.dtype, run.tensor_parallel, run.concurrency), []).append(each)
    return dict(sorted(groups.items()))


def _run(row: Mapping[str, str]) -> SiliconRun:
    return SiliconRun(
        name=row["id"],
        model=_MODELS[row["model_path"]],
        gpu=_SYSTEMS[row["system"]],
        tensor_parallel=int(float(row["tp_size"])),
        dtype=_DTYPES.get(row["precision"], "bf16"),
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        concurrency=int(float(row["concurrency"] or row["batch_size"])),
        tpot_s=float(row["silicon_tpot_ms"]) / 1e3,
        version=row.get("backend_version") or "",
        ttft_s=float(row.get("silicon_ttft_ms") or math.nan) / 1e3,
    )


def _workload(run: SiliconRun, count: int) -> Workload:
    whole = np.ones(count, dtype=np.int64)
    return Workload(
        arrival_s=np.zeros(count),
        input_tokens=run.isl * whole,
        output_tokens=run.osl * whole,
        max_tokens=run.osl * whole,
        priority=0 * whole,
        class_index=0 * whole,
    )


def _mean_tpot_s(records: Records, concurrency: int) -> float:
    done = finished(records)
    if not done.any():
        raise InputError("not one request of a closed-loop run could be served")
    inner = done.copy()
    inner[:concurrency] = inner[-concurrency:] = False
    return float(np.mean(tpot_s(records)[inner if inner.any() else done]))


def _fit(rows: Floats) -> Host:
    """Least squares for two unknowns that must not be below 0: the best of the four ways to bind them.

    A row holds the two unknowns' factors and the value wanted.
    """
    factors, wanted = rows[:, :2], rows[:, 2]
    best, found = float(wanted @ wanted), (0.0, 0.0)
    for used in ((0, 1), (0,), (1,)):
        solution, *_ = np.linalg.lstsq(factors[:, used], wanted, rcond=None)
        left = wanted - factors[:, used] @ solution
        if (solution >= 0).all() and float(left @ left) < best:
            values = dict(zip(used, solution.tolist(), strict=True))
            best, found = float(left @ left), (values.get(0, 0.0), values.get(1, 0.0))
    return Host(*found)
