"""Decisions of real schedulers on random cases, as the harnesses of shared/oracle/engines record them, beside ours.

A line of such a file is a case: a configuration, requests with arrival times, a linear cost, and a record a step.
"""

import gzip
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from simulator.memory.blocks import BlockLedger, BlockManager, KVBlocks
from simulator.memory.ledger import PrefixLedger
from simulator.memory.prefix_cache import PrefixCache
from simulator.plan import Policy
from simulator.policies.fastgen import Fastgen
from simulator.policies.sarathi import Sarathi
from simulator.policies.vllm_v0 import VllmV0
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from tests.parity.cases import COMPARED, Case, Memory, policy_of, workload_of

Config = dict[str, Any]
VARIABLE = "BATCHLAB_ENGINES"  # a folder: bin/python, and vllm_VERSION folders beside it


def vllm_v0(config: Config) -> VllmV0:
    return VllmV0(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        watermark=config["watermark"],
        preemption_mode=config["preemption_mode"],
        order=config["policy"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
    )


def sarathi(config: Config) -> Sarathi:
    return Sarathi(config["max_num_seqs"], config["chunk_size"], config["watermark"])


def fastgen(config: Config) -> Fastgen:
    return Fastgen(config["max_num_seqs"], config["max_ragged_batch_size"])


def vllm(version: str, config: Config) -> Policy:
    return replace(policy_of({"config": config}), version=version)


@dataclass(frozen=True, slots=True)
class Engine:
    """A real scheduler: our policy for one of its configurations, and what of a step is compared, times apart."""

    policy: Callable[[Config], Policy]
    columns: Sequence[str]
    null_block: bool = False  # its count of blocks includes one that is never used, as ours does


_FREE = ("num_free_blocks", "num_free_blocks_end")
V0 = Engine(vllm_v0, ("scheduled", "preempted", "finished", "waiting", "swapped", *_FREE))
SARATHI = Engine(sarathi, ("scheduled", "preempted", "finished", "waiting", "running", *_FREE))
FASTGEN = Engine(fastgen, ("scheduled", "preempted", "finished"))
UNORDERED = ("finished", "running", "swapped")


def v1(version: str) -> Engine:
    """vLLM's v1 scheduler of a version."""
    return Engine(partial(vllm, version), COMPARED, null_block=True)


def read(path: Path, step: int = 1) -> Iterator[tuple[int, Case, list[dict[str, Any]]]]:
    """The seed, the case and the real records of every `step`-th case that the real scheduler finished."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            if number % step == 0 and "records" in (item := json.loads(line)):
                yield item["seed"], item["case"], item["records"]


def decisions_of(engine: Engine, case: Case, *, fast_forward: bool, by_id: bool) -> list[dict[str, Any]]:
    """Our decisions. Swapping takes no time, and a host has room for everything, as in the harnesses."""
    config, cost = case["config"], case["cost"]
    blocks = config["num_gpu_blocks"] + (not engine.null_block)
    make_blocks: Callable[[int, int], KVBlocks] = BlockManager if by_id else BlockLedger
    if config.get("enable_prefix_caching"):
        make_blocks = partial(PrefixCache if by_id else PrefixLedger, block_size=config["block_size"])
    run = simulate(
        workload_of(case),
        make_policy=lambda: engine.policy(config),
        kv=Memory(blocks, config["block_size"], 10_000 if config.get("preemption_mode") == "swap" else 0),
        cost=Linear(cost["a"], cost["b"], cost["c"]),
        make_blocks=make_blocks,
        fast_forward=fast_forward,
        log_decisions=True,
    )
    assert run.decisions is not None
    return _without_swapped(run.decisions)


def _without_swapped(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, the swapped requests apart from those that wait for a prefill."""
    swapped: dict[str, None] = {}
    for step in steps:
        swapped |= dict.fromkeys(step["swapped_out"])
        for request_id in step["swapped_in"]:
            del swapped[request_id]
        step["swapped"] = list(swapped)
        step["waiting"] = [request_id for request_id in step["waiting"] if request_id not in swapped]
    return steps


def first_difference(engine: Engine, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> str | None:
    """Where the two part, in words; None if they never do."""
    for step, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        for column in engine.columns:
            same = sorted(a[column]) == sorted(b[column]) if column in UNORDERED else a[column] == b[column]
            if not same:
                return f"step {step}, {column}: ours {a[column]}, theirs {b[column]}"
        if abs(a["t_end_s"] - b["t_end"]) > 1e-9:
            return f"step {step}: ours ends at {a['t_end_s']} s, theirs at {b['t_end']} s"
    return None if len(ours) == len(theirs) else f"{len(ours)} steps, theirs {len(theirs)}"


def compare(engine: Engine, path: Path, step: int = 1) -> str:
    """Hold our decisions against a recorded file; AssertionError names the cases that differ."""
    cases = steps = preemptions = 0
    wrong: list[str] = []
    for seed, case, theirs in read(path, step):
        ours = decisions_of(engine, case, fast_forward=seed % 2 == 0, by_id=seed % 3 == 0)
        different = first_difference(engine, ours, theirs)
        if different is not None:
            wrong.append(f"case {seed}: {different}\n{json.dumps(case)}")
        cases, steps = cases + 1, steps + len(theirs)
        preemptions += sum(len(record["preempted"]) for record in theirs)
    assert cases
    assert not wrong, f"{path.name}: {len(wrong)} of {cases} cases differ:\n" + "\n".join(wrong)
    return f"{path.name}: {cases} cases, {steps} steps, {preemptions} preemptions"


def missing(folder: str) -> str | None:
    """Why a real scheduler in `folder` of the environment cannot be asked, or None."""
    named = os.environ.get(VARIABLE)
    if not named:
        return f"{VARIABLE} names no folder with bin/python and {folder}"
    return None if (Path(named) / folder).is_dir() else f"{named} holds no {folder}"


def ask(harness: Path, folder: str, out: Path, *arguments: str) -> None:
    """Record a real scheduler's decisions with a harness, which imports it from `folder` of the environment."""
    root = Path(os.environ[VARIABLE])
    paths = os.pathsep.join([str(root / folder), str(harness.parent)])
    done = subprocess.run(
        [str(root / "bin" / "python"), str(harness), *arguments[:2], str(out), *arguments[2:]],
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
