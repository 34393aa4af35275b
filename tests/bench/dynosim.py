"""`python -m tests.bench.dynosim`: mean TTFT and prefix hits of batchlab and of NVIDIA's DynoSim on equal requests.

Both read one file in Mooncake's layout: the first requests of Mooncake's conversation trace, or conversations that
batchlab drew and served once, at the times at which they came; where several came in one millisecond, they come in
several. Both schedule vLLM's way, in blocks of 64 tokens with
prefix caching, and a step takes what DynoSim's own polynomial says (`MockStep`). The router is round robin, or Dynamo's
KV router with its defaults. That one breaks ties at random: each tool runs `--runs` times, batchlab with other seeds.
Then ours makes the choices of DynoSim's last run: what is left apart is the engine's and the cache's, and the last
column says how many of these choices cost the least by our sum.

    python -m venv dyn; dyn/bin/pip install --no-deps ai-dynamo-runtime==1.6.1 ai-dynamo==1.6.1 typing_extensions
    BATCHLAB_SHARED=... python -m tests.bench.dynosim --dynamo dyn/bin/python
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

from annotated_types import Gt, doc

import scenarios
from simulator.fleet.routers.dynamo_kv import DynamoKv
from simulator.memory.block_keys import BlockKeys, Chains
from simulator.timing.cost import StepShape
from tests.shared_data import shared

SIZE, BUDGET, SEQS = 64, 8192, 256
CHAT = {
    "name": "chat", "prefix": {"tokens": 1024},
    "input": {"dist": "lognormal", "median": 500, "p99": 8000, "max": 20000},
    "output": {"dist": "lognormal", "median": 200, "p99": 1000, "max": 2000},
    "session": {"turns": {"dist": "uniform", "min": 2, "max": 10},
                "think_time_s": {"dist": "lognormal", "median_s": 4, "p99_s": 30}},
}  # fmt: skip
DYNOSIM = f"""
import json, sys
from dynamo.replay import run_trace_replay
path, hashed, blocks, workers, router, runs = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5], int(sys.argv[6])
engine = {{"num_gpu_blocks": blocks, "block_size": {SIZE}, "max_num_seqs": {SEQS}, "max_num_batched_tokens": {BUDGET},
          "enable_prefix_caching": True, "timing_model": {{"type": "polynomial"}}}}
for _ in range(runs):
    replay = run_trace_replay(path, extra_engine_args={{"engine": engine}}, num_workers=workers, router_mode=router,
                              trace_block_size=hashed, trace_format="mooncake", capture_per_request=True)
    names = "completed_requests", "mean_ttft_ms", "mean_tpot_ms", "prefix_cache_reused_ratio"
    print(json.dumps([replay.summary[name] for name in names]))
took = [each["decode_worker_idx"] for each in sorted(replay.per_request, key=lambda each: each["arrival_time_ms"])]
print(json.dumps({{"took": took}}))
"""


@dataclass(slots=True)
class MockStep:
    """DynoSim's polynomial: measured on its replay of single requests, to the last digit of its report.

    Prompt tokens p in a step take 16.5014 + 0.01518344 p + 4.209989e-7 p^2 ms. Decodes whose contexts fill the share u
    of the KV memory take 5.74 + 54.01 u - 25.74 u^2 ms. A step with both takes both.
    """

    kv_tokens: Annotated[int, Gt(0), doc("KV tokens of a replica")]

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        step_ms = 0.0
        if shape.prefill_tokens:
            step_ms += 16.50142 + 1.518344e-02 * shape.prefill_tokens + 4.209989e-07 * shape.prefill_tokens**2
        if shape.decode_seqs:
            used = shape.decode_context / self.kv_tokens
            step_ms += 5.74 + 54.01 * used - 25.74 * used * used
        return step_ms / 1e3


@contextmanager
def making(choices: Sequence[int]) -> Iterator[list[bool]]:
    """Let our router make these choices; the list comes to say of each whether it costs the least."""
    own, least = DynamoKv._draw, list[bool]()

    def draw(self: DynamoKv, costs: list[float]) -> int:
        place = choices[len(least)]
        least.append(costs[place] <= min(costs) + 1e-9)
        return place

    DynamoKv._draw = draw  # type: ignore[method-assign] # for the time of one run
    try:
        yield least
    finally:
        DynamoKv._draw = own  # type: ignore[method-assign] # as it was


def scenario_of(workload: Mapping[str, Any], replicas: int, blocks: int, router: Any, seed: int) -> dict[str, Any]:
    """The scenario beside DynoSim."""
    return {
        "name": "dynosim", "seed": seed, "model": "llama-3.1-8b", "replicas": replicas, "router": router,
        "hardware": {"gpu": "h200", "num_gpu_blocks": blocks + 1},  # one of ours is vLLM's null block
        "cost": {"kind": f"{__file__}:MockStep", "kv_tokens": blocks * SIZE}, "workload": workload,
        "engine": {"policy": "chunked_prefill", "max_num_seqs": SEQS, "max_num_batched_tokens": BUDGET,
                   "block_size": SIZE, "enable_prefix_caching": True},
    }  # fmt: skip


def chats(requests: int, replicas: int, rate: float, blocks: int) -> Iterator[dict[str, object]]:
    """Conversations that batchlab draws, as they came when least loaded served them; hashes are of 64 tokens."""
    told = CHAT | {"arrival": {"process": "poisson", "rate": rate}}
    workload = {"requests": requests, "classes": [told]}
    result = scenarios.run(scenario_of(workload, replicas, blocks, "least_loaded", 0))
    whole = {} if result.workload is None else {each.request_id: each for each in result.workload.requests()}
    chains = Chains()
    numbers: dict[object, int] = {}
    now_ms = -1
    columns = result.records.requests
    for row in columns.arrival_s.argsort(kind="stable").tolist():
        request = whole[result.records.request_id(row)]
        keys = BlockKeys(request, SIZE, chains)
        full = request.input_tokens // SIZE
        names = [*keys.first(full)[:full], *([("rest", request.row)] if request.input_tokens % SIZE else [])]
        now_ms = max(now_ms + 1, round(columns.arrival_s.item(row) * 1e3))  # of equal times the tools' orders differ
        yield {
            "timestamp": now_ms, "input_length": request.input_tokens,
            "output_length": columns.output_tokens.item(row),
            "hash_ids": [numbers.setdefault(name, len(numbers)) for name in names],
        }  # fmt: skip


def mooncake(requests: int, faster: float) -> Iterator[dict[str, object]]:
    """The first requests of Mooncake's conversation trace, so much faster; hashes are of 512 tokens."""
    import gzip

    now_ms = -1
    with gzip.open(shared("traces/mooncake_conversation_trace.jsonl.gz"), "rt", encoding="utf-8") as lines:
        for line, _ in zip(lines, range(requests), strict=False):
            row = json.loads(line)
            now_ms = max(now_ms + 1, round(row["timestamp"] / faster))
            yield row | {"timestamp": now_ms}


Figures = list[float]
"""Completed requests, mean TTFT and TPOT in ms, and hits."""


def told_by(dynamo: str, path: Path, size: int, blocks: int, replicas: int, router: str, runs: int) -> Any:
    """The figures of DynoSim's runs, and the workers that the last one took."""
    command = [dynamo, "-c", DYNOSIM, str(path), str(size), str(blocks), str(replicas), router, str(runs)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in said if line.startswith("[")], json.loads(said[-1])["took"]


def ours(path: Path, replicas: int, blocks: int, router: Any, seed: int) -> Figures:
    """Our figures."""
    given = {"trace": {"path": str(path), "format": "mooncake"}}
    summary = scenarios.run(scenario_of(given, replicas, blocks, router, seed)).summary
    names = ("completed", "mean_ttft_ms", "mean_tpot_ms", "prefix_cache_hit_rate")
    return [float(summary[name]) for name in names]


def row(what: str, theirs: Sequence[Figures], mine: Sequence[Figures], least: str = "") -> str:
    """A row of the table: means, with the standard error of the TTFT."""
    assert {each[0] for each in theirs} == {each[0] for each in mine}
    means = [[fmean(each[place] for each in runs) for runs in (theirs, mine)] for place in (1, 2, 3)]
    errors = [stdev(each[1] for each in runs) / len(runs) ** 0.5 if runs[1:] else 0.0 for runs in (theirs, mine)]
    ttft = " | ".join(f"{mean:.2f} ± {error:.2f}" for mean, error in zip(means[0], errors, strict=True))
    apart = 100 * (means[0][1] / means[0][0] - 1)
    hits = " | ".join(f"{100 * mean:.2f}" for mean in means[2])
    return f"| {what} | {ttft} | {apart:.2f} | {means[1][0]:.2f} | {means[1][1]:.2f} | {hits} | {least} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dynamo", required=True, help="a Python that has ai-dynamo")
    parser.add_argument("--traces", nargs="*", default=("mooncake", "chat"))
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--replicas", nargs="*", type=int, default=(8, 64))
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--blocks", type=int, default=16_384, help="KV blocks of a replica")
    chosen = parser.parse_args()
    print("| trace | replicas | router | TTFT, ms: DynoSim | ours | apart, % | TPOT | ours | hits, % | ours | least |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    for trace, replicas in product(chosen.traces, chosen.replicas):
        blocks, size = chosen.blocks, 512 if trace == "mooncake" else SIZE
        made = mooncake(chosen.requests, replicas / 8) if trace == "mooncake" else chats(
            chosen.requests, replicas, replicas / 4, blocks
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "requests.jsonl"
            path.write_text("".join(json.dumps(each) + "\n" for each in made), encoding="utf-8")
            what = f"{trace} | {replicas}"
            theirs, _ = told_by(chosen.dynamo, path, size, blocks, replicas, "round_robin", 1)
            print(row(f"{what} | round_robin", theirs, [ours(path, replicas, blocks, "round_robin", 0)]), flush=True)
            theirs, took = told_by(chosen.dynamo, path, size, blocks, replicas, "kv_router", chosen.runs)
            router = {"kind": "dynamo_kv", "block_size": SIZE}
            mine = [ours(path, replicas, blocks, router, seed) for seed in range(chosen.runs)]
            print(row(f"{what} | kv_router", theirs, mine), flush=True)
            with making(took) as least:
                mine = [ours(path, replicas, blocks, router, 0)]
            said = f"{sum(least)} of {len(least)}"
            print(row(f"{what} | kv_router, its choices", theirs[-1:], mine, said), flush=True)


if __name__ == "__main__":
    main()
