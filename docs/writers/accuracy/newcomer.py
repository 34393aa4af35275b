"""What a key that is left out of a scenario costs in error: on servers whose runs were measured.

A newcomer writes model, GPU, parallel sizes, version and traffic. The full scenario has every key that is known of the
server. Each key is taken out of the full one alone, and all of them together. What is left out is then as the server
of that version has it by default on that GPU, and `cost` is `auto`.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docs.writers.accuracy.cases import CASES, Case
from docs.writers.accuracy.disaggregated import compared
from docs.writers.accuracy.served import ENGINES, contradiction_of, read_rows, scenario_of
from docs.writers.accuracy.served_row import Row
from scenarios.measured import read_measured
from scenarios.runs.runner import run
from scenarios.schema.loader import load
from scenarios.validate.compare import validate
from simulator.errors import InputError

WAVES = 3
USERS = 32
FULL, NEWCOMER = "full", "newcomer"
KEYS: Mapping[str, tuple[str, ...]] = {
    "cost": ("cost",),
    "async_scheduling": ("engine.async_scheduling",),
    "enable_prefix_caching": ("engine.enable_prefix_caching",),
    "version": ("engine.version",),
    "max_num_seqs": ("engine.max_num_seqs",),
    "max_num_batched_tokens": ("engine.max_num_batched_tokens",),
    "gpu_memory_utilization": ("hardware.gpu_memory_utilization",),
    "front_end": ("front_end",),
    "scheduler_recv_interval": ("engine.scheduler_recv_interval",),
    "batch_wait_timeout_iters": ("engine.batch_wait_timeout_iters", "engine.batch_wait_max_tokens_ratio"),
}
"""What is taken out, by the name in the tables."""
SAID = {"engine": ("policy", "version"), "hardware": ("gpu", "tensor_parallel", "enable_expert_parallel")}
"""What a newcomer says of these; of the rest the model, the replicas and the traffic."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A server with a log of its requests: errors (signed fractions) by scenario, or why it is refused."""

    title: str
    errors: Mapping[str, Mapping[str, float] | str]


@dataclass(frozen=True, slots=True)
class Looped:
    """A server in a closed loop: signed errors of TPOT and TTFT by scenario; NaN where it is refused."""

    row: Row
    tpot: Mapping[str, float]
    ttft: Mapping[str, float]

    @property
    def name(self) -> str:
        """Cell, version, parallel sizes and users."""
        row = self.row
        sizes = f"TP {row.tensor_parallel}" + (f" DP {row.data_parallel}" if row.data_parallel > 1 else "")
        return f"{row.cell} {row.version} {sizes}, {row.concurrency} users".replace("  ", " ")


def variants(full: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The scenario, without each of its keys, and without all that a newcomer does not say."""
    found = {FULL: deepcopy(dict(full))}
    found |= {name: without(full, paths) for name, paths in KEYS.items() if any(_has(full, path) for path in paths)}
    unsaid = [f"{room}.{key}" for room, said in SAID.items() for key in full.get(room, {}) if key not in said]
    found[NEWCOMER] = without(full, [*unsaid, "cost", "host", "front_end"])
    return found


def without(full: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """A scenario without some keys."""
    found = deepcopy(dict(full))
    for path in paths:
        *rooms, key = path.split(".")
        place: Any = found
        for room in rooms:
            place = place.get(room, {})
        place.pop(key, None)
    return found


def _has(full: Mapping[str, Any], path: str) -> bool:
    return without(full, [path]) != full


def logged(case: Case) -> Logged:
    """Score a server that has a log."""
    log = read_measured(case.path / "vllm_requests.jsonl.gz")
    full = load(case.scenario).model_dump(exclude_unset=True)
    errors: dict[str, Mapping[str, float] | str] = {}
    for name, scenario in variants(full).items():
        try:
            ours = validate(log, run(load(scenario)).records)
        except InputError as error:
            errors[name] = error.message
            continue
        means = {metric: ours.errors[metric]["mean"] for metric in ("ttft", "tpot", "e2e")}
        errors[name] = {"score": ours.score, **means}
    return Logged(case.title, errors)


def servers(folder: Path) -> list[Row]:
    """A run of each server (cell, version, parallel sizes): that of the number of users nearest to `USERS`."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for engine in ENGINES:
        for row in read_rows(folder, engine):
            if not contradiction_of(row) and scenario_of(row, WAVES) is not None:
                key = (row.cell, row.version, row.tensor_parallel, row.data_parallel, row.moe_expert)
                found.setdefault(key, []).append(row)
    nearest = [min(rows, key=lambda row: (abs(math.log(row.concurrency / USERS)), row.isl, row.osl, row.name))
               for rows in found.values()]  # fmt: skip
    return sorted(nearest, key=lambda row: (row.cell, row.version, row.tensor_parallel, row.data_parallel))


def looped(row: Row) -> Looped:
    """Score a server in a closed loop."""
    full = scenario_of(row, WAVES)
    assert full is not None
    scored = {name: compared(row, scenario) for name, scenario in variants(full).items()}
    return Looped(row, {n: each.tpot for n, each in scored.items()}, {n: each.ttft for n, each in scored.items()})


def of_cases() -> list[Logged]:
    """The servers with logs."""
    return [logged(case) for case in CASES]


def size_of(errors: Sequence[float], share: float = 0.5) -> float:
    """A quantile of the size of the errors that are known; NaN without any."""
    known = np.abs([error for error in errors if error == error])
    return float(np.quantile(known, share)) if len(known) else float("nan")
