"""The command `batchlab` in tests: in this process (fast), or in one of its own (for signals, imports, speed)."""

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from scenarios.cli.app import main

ROOT = Path(__file__).parents[1]
START = [sys.executable, "-c", "from scenarios.cli.app import main; main()"]

SMALL = """\
name: small
seed: 7
model: llama-3.1-8b
hardware: {gpu: a100-80gb, num_gpu_blocks: 400}
cost: {kind: linear, base_s: 0.005, per_token_s: 2.0e-5, per_context_token_s: 5.0e-7}
workload:
  requests: 60
  classes:
    - name: chat
      arrival: {process: poisson, rate: 20}
      input: {dist: uniform, min: 10, max: 900}
      output: {dist: uniform, min: 1, max: 60}
engine: {policy: chunked_prefill, max_num_seqs: 8, max_num_batched_tokens: 256}
slo: {ttft_ms: 500, tpot_ms: 50}
"""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


def batchlab(*arguments: str | Path, cwd: Path) -> Done:
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    before = signal.getsignal(signal.SIGTERM)
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", ["batchlab", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            signal.signal(signal.SIGTERM, before)
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """Start the command in a process of its own."""
    return subprocess.Popen(
        [*START, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def small(folder: Path, text: str = SMALL) -> Path:
    """Write a scenario of a second or less into `folder`."""
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder, and what it holds as a hash; folders end with a slash."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            found[f"{name}/"] = ""
        elif "__pycache__" not in path.parts:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
