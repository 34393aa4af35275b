"""`python -m tests.bench.peers`: CPU microseconds a request and megabytes of batchlab and of a peer on equal requests.

Each row is a process of its own, from its start to its summary; its CPU time and its largest memory are the operating
system's. `start` is the same process with ten requests. Both read one Mooncake file (JSON Lines), which is made from
Azure's chat hour of 2023 or Mooncake's hour, laid end to end with hashes of their own until there are enough requests,
and as much faster as there are replicas. Every step takes 20 ms, prefix caching is on, the router is round_robin.

The peer is NVIDIA's DynoSim, `dynamo.replay` of ai-dynamo, in a Python of its own:

    python -m venv dyn; dyn/bin/pip install --no-deps ai-dynamo-runtime==1.6.1 ai-dynamo==1.6.1 typing_extensions
    BATCHLAB_SHARED=... python -m tests.bench.peers --dynamo dyn/bin/python

Where batchlab is compiled, the sources are measured too (BATCHLAB_PURE), all in turn. With `--out FILE` rows that the
file has are not measured again. The best of `--rounds` rounds counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from scenarios.traces import read_trace
from tests.bench.ratio import measured_in
from tests.bench.test_start import as_installed
from tests.shared_data import shared

FILES = {"azure": "AzureLLMInferenceTrace_conv.csv.gz", "mooncake": "mooncake_conversation_trace.jsonl.gz"}
SLOWER = {"azure": 1.0, "mooncake": 4.0}  # one replica cannot serve Mooncake's prompts as they come
HASHED = 512  # tokens of a hash
BLOCKS, SIZE, STEP_MS = 60_000, 16, 20.0
START = 10  # requests of the row that says what a start costs

OURS = f"""
import sys
from scenarios.runs.runner import run
found = run({{
    "name": "peers", "model": "llama-3.1-8b", "hardware": {{"gpu": "h200", "num_gpu_blocks": {BLOCKS}}},
    "cost": {{"kind": "linear", "base_s": {STEP_MS / 1e3}, "per_token_s": 0.0, "per_context_token_s": 0.0}},
    "workload": {{"trace": {{"path": sys.argv[1]}}}}, "replicas": int(sys.argv[2]), "router": "round_robin",
    "engine": {{"policy": "chunked_prefill", "max_num_seqs": 256, "max_num_batched_tokens": 2048,
               "block_size": {SIZE}, "enable_prefix_caching": True}},
}}).summary
print(found["completed"], found["mean_ttft_ms"])
"""
OURS_IS = "import scenarios.runs.runner; from simulator import core_name; print(core_name())"
DYNOSIM = f"""
import sys
from dynamo.replay import run_trace_replay
engine = {{"num_gpu_blocks": {BLOCKS}, "block_size": {SIZE}, "max_num_seqs": 256, "max_num_batched_tokens": 2048,
          "enable_prefix_caching": True,
          "timing_model": {{"type": "fixed", "prefill_ms": 0.0, "decode_ms": {STEP_MS}}}}}
found = run_trace_replay(
    sys.argv[1], extra_engine_args={{"engine": engine}}, num_workers=int(sys.argv[2]), router_mode="round_robin",
    trace_block_size={HASHED}, trace_format="mooncake",
).summary
print(found["completed_requests"], found["mean_ttft_ms"])
"""
DYNOSIM_IS = "import dynamo.replay; from importlib.metadata import version; print('DynoSim', version('ai-dynamo'))"


def requests_of(trace: str, faster: float) -> Iterator[dict[str, object]]:
    """The requests of a trace without end: each pass begins where the one before ends, with hashes of its own."""
    workload = read_trace(shared(f"traces/{FILES[trace]}"))
    times = workload.arrival_s.tolist()
    lengths = list(zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True))
    begun_s, number = 0.0, 0
    while True:
        first = number
        for row, (arrival_s, (prompt, answer)) in enumerate(zip(times, lengths, strict=True)):
            known = None if workload.content is None else workload.content[row]
            count = -(-prompt // HASHED)
            if known is None or not known.block_hashes:
                hashes = list(range(number, number + count))
                number += count
            else:
                hashes = [first + int(name) for name in known.block_hashes[:count]]
                number = max(number, *(name + 1 for name in hashes))
            stamp = round((begun_s + arrival_s) * 1e3 / faster)
            yield {"timestamp": stamp, "input_length": prompt, "output_length": answer, "hash_ids": hashes}
        begun_s += times[-1] * len(times) / (len(times) - 1)


class Tool(NamedTuple):
    """What replays a file: a Python, what it runs, and its environment."""

    python: str
    text: str
    environment: dict[str, str]

    def answer(self, text: str, folder: Path) -> str:
        """What it prints if it runs a text instead."""
        command = [self.python, "-c", text]
        environment = self.environment
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment)
        return done.stdout.strip()


def tools_of(dynamo: str | None, folder: Path) -> dict[str, Tool]:
    """Those to be compared, by name; their byte code is kept in a folder."""
    environment = as_installed(folder / "byte-code")
    found = {}
    for pure in "10":
        tool = Tool(sys.executable, OURS, {**environment, "BATCHLAB_PURE": pure})
        found[tool.answer(OURS_IS, folder)] = tool
    if dynamo is not None:
        tool = Tool(dynamo, DYNOSIM, {name: value for name, value in environment.items() if name != "PYTHONPATH"})
        found[tool.answer(DYNOSIM_IS, folder)] = tool
    return found


Spent = tuple[float, float, str]


def spent(tool: Tool, file: Path, replicas: int) -> Spent:
    """CPU seconds and megabytes of a process that replays a file, and what it prints last."""
    command = [tool.python, "-c", tool.text, str(file), str(replicas)]
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, env=tool.environment, cwd=file.parent)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{tool.python} ended with {child.returncode}")
        out.seek(0)
        return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, out.read().strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # An absolute path that follows no link: a link's target would not find the packages.
    parser.add_argument("--dynamo", type=os.path.abspath, help="a Python that has ai-dynamo")
    parser.add_argument("--traces", nargs="*", default=tuple(FILES), choices=tuple(FILES))
    parser.add_argument("--requests", nargs="*", type=int, default=(10_000, 100_000))
    parser.add_argument("--replicas", nargs="*", type=int, default=(1, 8))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file that rows are added to, as they come")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(chosen, Path(folder))


def measure(chosen: argparse.Namespace, folder: Path) -> None:
    """Print the rows that are asked for."""
    tools = tools_of(chosen.dynamo, folder)
    done = measured_in(chosen.out, 4)
    print("| trace | requests | replicas | tool | us a request | start, s | MB | completed, mean TTFT in ms |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | --- |", flush=True)
    for trace, requests, replicas in product(chosen.traces, chosen.requests, chosen.replicas):
        rows = {name: f" {trace} | {requests} | {replicas} | {name} " for name in tools}
        left = [name for name in tools if rows[name] not in done]
        whole, few = folder / "whole.jsonl", folder / "few.jsonl"
        if left:
            made = islice(requests_of(trace, replicas / SLOWER[trace]), requests)
            whole.write_text("".join(json.dumps(each) + "\n" for each in made), encoding="utf-8")
            with whole.open(encoding="utf-8") as lines:
                few.write_text("".join(islice(lines, START)), encoding="utf-8")
        found: dict[str, list[tuple[Spent, Spent]]] = {name: [] for name in left}
        for _, name in product(range(chosen.rounds), left):
            found[name].append((spent(tools[name], whole, replicas), spent(tools[name], few, replicas)))
        for name in left:
            seconds = min(each[0][0] for each in found[name])
            start_s = min(each[1][0] for each in found[name])
            megabytes, said = min(each[0][1] for each in found[name]), found[name][0][0][2]
            figures = f"{(seconds - start_s) / requests * 1e6:.0f} | {start_s:.2f} | {megabytes:.0f} | {said}"
            text = f"|{rows[name]}| {figures} |"
            print(text, flush=True)
            if chosen.out is not None:
                with chosen.out.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")


if __name__ == "__main__":
    main()
