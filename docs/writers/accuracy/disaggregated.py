"""Disaggregated runs of real servers (prefill and decode on workers of their own) as scenarios, and their errors.

A row says how many workers prefill and decode, and the parallel sizes of each. A worker in tensor parallel is a
replica. One with attention data parallel is a group whose replicas, its ranks, share the experts and step together.
Policy, kernels and host are those of the row's engine; a step is planned while the one before runs. Every GPU that
prefills has a port of 400 Gbit/s for the KV that it sends.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from docs.writers.accuracy.served import read_paired, scenario_of
from docs.writers.accuracy.served_row import Row
from docs.writers.accuracy.served_score import KIND, Scored, mean_ms
from scenarios.runs.runner import run
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.metrics.latency import finished, tpot_s, ttft_s

WAVES = 2
"""So many times the concurrency are the requests of a run."""
PORT_GB_S = 50.0
DECODES_ONLY = {"step_s": 0.31e-3}
"""The host of an SGLang worker that only decodes, of any model: one request before a mocked device (`SERVER` of the
policy). What states and indexers add by default was fitted to servers that prefill and decode."""
PREFILLS, DECODES = "prefill", "decode"
SIZES = ("num_workers", "tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
SETTING = (
    "image", "model_path", "system", "isl", "osl", "concurrency",
    *(f"{of}_{size}" for of in (PREFILLS, DECODES) for size in SIZES),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Workers:
    """Equal workers: GPUs in tensor parallel, ranks of attention data parallel, GPUs that the experts are spread over.

    `count` is 0 where the row does not say it.
    """

    count: int
    tensor_parallel: int
    data_parallel: int
    moe_expert: int

    @property
    def gpus(self) -> int:
        """GPUs of a worker."""
        return self.tensor_parallel * self.data_parallel


@dataclass(frozen=True, slots=True)
class Apart:
    """A disaggregated run: what a row says of any run, and its two kinds of workers."""

    row: Row
    prefill: Workers
    decode: Workers

    @property
    def contradiction(self) -> str:
        """Why the row cannot be scored; '' where it can.

        22 rows without a number of workers have a twin with one: TTFT and TPOT are the same to the last digit. The
        twins' parallel sizes are others.
        """
        if not self.prefill.count or not self.decode.count:
            return "no number of workers; where the same run is listed twice, the sizes beside it are wrong"
        if self.row.drafts:
            return "drafts (MTP), which the row does not say"
        if not self.row.concurrency:
            return "no number of users"
        return ""


def read_apart(folder: Path, engine: str) -> list[Apart]:
    """The disaggregated runs of an engine, in the file's order."""
    found = []
    for row, below_ms in read_paired(folder / f"disagg_{engine}.csv.gz", SETTING):
        each = _apart(engine, row)
        found.append(replace(each, row=replace(each.row, drafts=each.row.tpot_ms < below_ms)))
    return found


def _apart(engine: str, row: Mapping[str, str]) -> Apart:
    def whole(name: str, missing: int = 1) -> int:
        return max(missing, int(float(row[name] or missing)))

    def workers(of: str) -> Workers:
        sizes = whole(f"{of}_tp_size"), whole(f"{of}_attention_dp_size"), whole(f"{of}_moe_ep_size")
        return Workers(whole(f"{of}_num_workers", 0), *sizes)

    decode = workers(DECODES)
    said = Row(
        name=row["id"],
        engine=engine,
        version=row["backend_version"],
        model=row["model_path"],
        system=row["system"],
        precision=row["precision"] or "bf16",
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        concurrency=whole("concurrency", 0),
        tensor_parallel=decode.gpus,
        data_parallel=1,
        moe_tensor=1,
        moe_expert=decode.moe_expert,
        ttft_ms=float(row["silicon_ttft_ms"] or math.nan),
        tpot_ms=float(row["silicon_tpot_ms"] or math.nan),
    )
    return Apart(said, workers(PREFILLS), decode)


def scenario_apart(apart: Apart, waves: int = WAVES) -> dict[str, Any] | None:
    """The scenario of a row; None where its model cannot be said."""
    row = apart.row
    found = scenario_of(row, waves)
    if found is None:
        return None
    hardware = found.pop("hardware")
    hardware.pop("enable_expert_parallel", None)
    has_experts = load(found | {"hardware": {"gpu": hardware["gpu"]}}).resolve_model().experts > 0
    users = math.ceil(row.concurrency / apart.decode.count)
    fleet = [
        *_groups(PREFILLS, apart.prefill, hardware, row.concurrency, has_experts),
        *_groups(DECODES, apart.decode, hardware, users, has_experts),
    ]
    if row.engine == "sglang":
        fleet = [{**group, **({"host": DECODES_ONLY} if group["role"] == DECODES else {})} for group in fleet]
    del found["replicas"], found["engine"]["max_num_seqs"]
    for key in ("scheduler_recv_interval", "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio"):
        found["engine"].pop(key, None)  # the recipe of one server
    return {
        **found,
        "hardware": {"gpu": hardware["gpu"]},
        "engine": {**found["engine"], "async_scheduling": True, "enable_prefix_caching": False},
        "fleet": fleet,
        "kv_transfer": {
            "bandwidth_gb_s": PORT_GB_S * apart.prefill.count * apart.prefill.gpus,
            **({"connector": "nixl"} if row.engine == "vllm" else {}),
        },
        "router": "least_loaded",
        "front_end": {"per_prompt_token_s": 0.0},  # Dynamo's front ends tokenise side by side
    }


def _groups(
    role: str, workers: Workers, hardware: Mapping[str, Any], users: int, has_experts: bool
) -> Iterator[dict[str, Any]]:
    """The groups of equal workers of so many users each: one by one where a worker's GPUs share the experts."""
    ranks = workers.data_parallel
    group = {"role": role, "engine": {"max_num_seqs": max(1, math.ceil(users / ranks))}, "replicas": ranks}
    sizes = {**hardware, "tensor_parallel": workers.tensor_parallel}
    if has_experts and workers.gpus > 1 and (ranks > 1 or workers.moe_expert > 1):
        for place in range(workers.count):
            yield {"name": f"{role}-{place}", **group, "hardware": {**sizes, "enable_expert_parallel": True}}
    else:
        yield {"name": role, **group, "hardware": sizes, "replicas": ranks * workers.count}


def score_apart(apart: Apart) -> Scored:
    """Simulate a row, and compare the means of TPOT and TTFT."""
    if apart.contradiction:
        return Scored(apart.row, contradiction=apart.contradiction)
    try:
        scenario = scenario_apart(apart)
    except InputError as error:
        return Scored(apart.row, refused=error.message)
    return Scored(apart.row, refused=KIND) if scenario is None else compared(apart.row, scenario)


def compared(row: Row, scenario: Mapping[str, Any]) -> Scored:
    """Run a scenario of a row, and compare the means of TPOT and TTFT."""
    try:
        records = run(scenario).records
    except InputError as error:
        return Scored(row, refused=error.message)
    known = finished(records)
    if not known[row.concurrency :].any():
        return Scored(row, refused="no request was served")
    tpot_ms, ttft_ms = (mean_ms(seconds(records), known, row.concurrency) for seconds in (tpot_s, ttft_s))
    return Scored(row, tpot_ms / row.tpot_ms - 1.0, ttft_ms / row.ttft_ms - 1.0)


def sizes_words(apart: Apart) -> str:
    """ "1 x TP 4 + 5 x TP 8", or DP where attention is data parallel."""

    def words(workers: Workers) -> str:
        kind = f"DP {workers.data_parallel}" if workers.data_parallel > 1 else f"TP {workers.tensor_parallel}"
        return f"{workers.count} x {kind}"

    return f"{words(apart.prefill)} + {words(apart.decode)}"
