"""`python -m tests.bench.peers`: CPU microseconds a request and megabytes of batchlab and of a peer on equal requests.

Each row is a process of its own, from its start to its summary; its CPU time and its largest memory are the operating
system's. `start` is the same process with ten requests. Both read one Mooncake file (JSON Lines), which is made from
Azure's chat hour of 2023 or Mooncake's hour, laid end to end with hashes of their own until there are enough requests,
and as much faster as there are replicas. Every step takes 20 ms, prefix caching is on, the router is round_robin.

The peer is NVIDIA's DynoSim, `dynamo.replay` of ai-dynamo, in a Python of its own:

    python -m venv dyn; dyn/bin/pip install --no-deps ai-dynamo-runtime==1.6.1 ai-dynamo==1.6.1 typing_extensions
    BATCHLAB_SHARED=... python -m tests.bench.peers --dynamo dyn/bin/python

`--ours` names Pythons that have batchlab: one with the sources and one with the compiled core are measured in turn.
With `--out FILE` rows that the file has are not measured again. The best of `--rounds` rounds counts.
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

from scenarios.traces import read_trace
from tests.bench.ratio import measured_in
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


Spent = tuple[float, float, str]


def spent(python: str, text: str, file: Path, replicas: int) -> Spent:
    """CPU seconds and megabytes of a process that replays a file, and what it prints last."""
    with tempfile.TemporaryFile("w+") as out:
        # The folder of the file: `-c` would take this one's sources before what is installed.
        child = subprocess.Popen([python, "-c", text, str(file), str(replicas)], stdout=out, cwd=file.parent)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{python} ended with {child.returncode}")
        out.seek(0)
        return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, out.read().strip().splitlines()[-1]


def _answer(python: str, text: str) -> str:
    """What a text prints in a Python that is run elsewhere than here."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", text]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dynamo", help="a Python that has ai-dynamo")
    parser.add_argument("--ours", nargs="+", default=(sys.executable,), help="Pythons that have batchlab")
    parser.add_argument("--traces", nargs="*", default=tuple(FILES), choices=tuple(FILES))
    parser.add_argument("--requests", nargs="*", type=int, default=(10_000, 100_000))
    parser.add_argument("--replicas", nargs="*", type=int, default=(1, 8))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file that rows are added to, as they come")
    chosen = parser.parse_args()
    asked = "from simulator.compiled import core_name; print(core_name())"
    tools = {_answer(python, asked): (python, OURS) for python in chosen.ours}
    if chosen.dynamo:
        asked = "from importlib.metadata import version; print('DynoSim', version('ai-dynamo'))"
        tools[_answer(chosen.dynamo, asked)] = (chosen.dynamo, DYNOSIM)
    done = measured_in(chosen.out, 4)
    print("| trace | requests | replicas | tool | us a request | start, s | MB | completed, mean TTFT in ms |")
    print("| --- | ---: | ---: | --- | ---: | ---: | ---: | --- |", flush=True)
    for trace, requests, replicas in product(chosen.traces, chosen.requests, chosen.replicas):
        rows = {tool: f" {trace} | {requests} | {replicas} | {tool} " for tool in tools}
        left = [tool for tool in tools if rows[tool] not in done]
        with tempfile.TemporaryDirectory() as folder:
            whole, few = Path(folder) / "whole.jsonl", Path(folder) / "few.jsonl"
            if left:
                made = islice(requests_of(trace, replicas / SLOWER[trace]), requests)
                whole.write_text("".join(json.dumps(each) + "\n" for each in made), encoding="utf-8")
                with whole.open(encoding="utf-8") as lines:
                    few.write_text("".join(islice(lines, START)), encoding="utf-8")
            found: dict[str, list[tuple[Spent, Spent]]] = {tool: [] for tool in left}
            for _, tool in product(range(chosen.rounds), left):
                found[tool].append((spent(*tools[tool], whole, replicas), spent(*tools[tool], few, replicas)))
        for tool in left:
            seconds = min(each[0][0] for each in found[tool])
            start_s = min(each[1][0] for each in found[tool])
            megabytes, said = min(each[0][1] for each in found[tool]), found[tool][0][0][2]
            figures = f"{(seconds - start_s) / requests * 1e6:.0f} | {start_s:.2f} | {megabytes:.0f} | {said}"
            text = f"|{rows[tool]}| {figures} |"
            print(text, flush=True)
            if chosen.out is not None:
                with chosen.out.open("a", encoding="utf-8") as file:
                    file.write(text + "\n")


if __name__ == "__main__":
    main()
