"""What clients of `batchlab serve` see against what its run folder says, and how late the server's event loop is.

    python -m tests.bench.serve [--streams 500] [--tokens 40] [--step-s 0.25] [--gap-s 0.005]

Starts a server on the loopback interface, lets so many streams begin one after another, and ends it with SIGTERM. The
engine's step takes `step_s`, so all streams get their tokens in one burst: the hardest case for one event loop.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scenarios.runs.storage.run_tables import read_csv

_MAIN = "from scenarios.cli.app import main; main()"


@dataclass
class Stream:
    """A stream as its client sees it, in seconds of the loop's clock."""

    begun_s: float = 0.0
    name: str = ""
    token_s: list[float] = field(default_factory=list)


async def stream(host: str, port: int, tokens: int) -> Stream:
    """Ask for `tokens` tokens, and note when each comes."""
    body = {"prompt": list(range(100)), "max_tokens": tokens, "ignore_eos": True, "stream": True}
    raw = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, port)
    loop = asyncio.get_running_loop()
    found = Stream(loop.time())
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    while line := await reader.readline():
        if line.startswith(b'data: {"id"'):
            found.token_s.append(loop.time())
            found.name = found.name or json.loads(line[6:])["id"]
    writer.close()
    return found


async def measure(args: argparse.Namespace, out: Path) -> tuple[list[Stream], str]:
    """Serve, stream, and stop; returns the streams and what the server wrote on stderr."""
    settings = [
        f"cost={{kind: linear, base_s: {args.step_s}, per_token_s: 0, per_context_token_s: 0}}",
        "engine.max_num_seqs=1024",
    ]
    settings += ["engine.max_num_batched_tokens=65536", f"replicas={args.replicas}"]
    flags = [part for each in settings for part in ("--set", each)]
    command = [sys.executable, "-c", _MAIN, "serve", "quickstart", "--port", "0", "--out", str(out), *flags]
    server = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert server.stdout is not None
    ready = (await server.stdout.readline()).decode()
    if not ready:
        raise SystemExit((await server.communicate())[1].decode())
    port = int(ready.rpartition(":")[2].partition("/")[0])
    tasks = []
    for _ in range(args.streams):
        tasks.append(asyncio.create_task(stream("127.0.0.1", port, args.tokens)))
        await asyncio.sleep(args.gap_s)
    found = await asyncio.gather(*tasks)
    server.send_signal(signal.SIGTERM)
    _, told = await server.communicate()
    if server.returncode != 0:
        raise SystemExit(told.decode())
    return found, told.decode()


def compare(streams: list[Stream], out: Path) -> list[str]:
    """Lines on what clients saw against the run folder."""
    table = read_csv(out / "requests.csv.gz")
    rows = {name: row for row, name in enumerate(table["request_id"])}
    mine = [rows[each.name] for each in streams]
    seen = {
        "TTFT": np.array([1000 * (each.token_s[0] - each.begun_s) for each in streams]),
        "TPOT": np.array([1000 * (each.token_s[-1] - each.token_s[0]) / (len(each.token_s) - 1) for each in streams]),
        "E2EL": np.array([1000 * (each.token_s[-1] - each.begun_s) for each in streams]),
    }
    lines = []
    for name, here in seen.items():
        there = np.asarray(table[f"{name.lower()}_ms"])[mine]
        off = here - there
        ok = np.abs(off) <= np.maximum(5.0, 0.03 * there)
        lines.append(
            f"{name}: run folder mean {there.mean():.1f} ms, client {here.mean():.1f} ms; difference p50"
            f" {np.median(off):.2f}, p99 {np.quantile(off, 0.99):.2f}, max {off.max():.2f} ms;"
            f" within 5 ms or 3 %: {ok.mean():.1%} of {len(off)}"
        )
    gaps = 1000 * np.concatenate([np.diff(each.token_s) for each in streams])
    lines.append(f"gaps between tokens at the client: mean {gaps.mean():.2f} ms, p99 {np.quantile(gaps, 0.99):.2f} ms")
    begun = min(each.begun_s for each in streams)
    ended = max(each.token_s[-1] for each in streams)
    count = sum(len(each.token_s) for each in streams)
    lines.append(f"{count:,} tokens in {ended - begun:.1f} s: {count / (ended - begun):,.0f} a second")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--step-s", type=float, default=0.25)
    parser.add_argument("--gap-s", type=float, default=0.005)
    parser.add_argument("--replicas", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        streams, told = asyncio.run(measure(args, out))
        print(
            f"{args.streams} streams of {args.tokens} tokens, steps of {args.step_s} s, load {os.getloadavg()[0]:.1f}"
        )
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"server: {spent.ru_utime + spent.ru_stime:.1f} CPU seconds in all, its start and its end included")
        for line in [*compare(streams, out), *[each for each in told.splitlines() if "event loop" in each]]:
            print(line)


if __name__ == "__main__":
    main()
