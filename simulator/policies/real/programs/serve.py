"""Runs in a user's own Python, which has an engine and nothing of batchlab: its scheduler, asked over a pipe.

usage: python serve.py vllm|sglang

JSON lines. The first one out names the engine and its version. Each one in is `{"start": settings}`, which makes a new
scheduler, or the next plan: `aborted` requests, `results` of the oldest steps in flight, `arrived` requests, in this
order, and `plan`: false where there is nothing to plan. Results name the requests whose answer `ended` with the step,
the number of `tokens` of those that got more than one, and of the `drafts` for their next step. The answer is what the
engine's file says, or `{"error": words, "key": the setting that is refused, or null}`.
"""

from __future__ import annotations  # the Python may be older than batchlab's

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


class SettingError(Exception):
    """A setting that this engine does not have: its key, and what is wrong."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def answer(engine: Any, told: dict[str, Any]) -> dict[str, Any]:
    """Carry out a line; `engine` is None before the first start."""
    for request_id in told["aborted"]:
        engine.abort(request_id)
    finished = [engine.settle(results) for results in told["results"]]
    found = {"finished": finished, "free_before": engine.free}
    for request in told["arrived"]:
        engine.add(request)
    if told["plan"]:
        return {**found, **engine.plan()}
    engine.rest()
    return found


def main() -> None:
    """Serve until the pipe is closed."""
    name = sys.argv[1]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print
    here = str(Path(__file__).resolve().parent)
    try:
        module = importlib.import_module(f"{name}_engine")
        sys.path[:] = [path for path in sys.path if path != here]
        first = {"engine": module.NAME, "version": module.VERSION}
    except Exception as error:
        first = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(first), file=out, flush=True)
    if "error" in first:
        return
    engine = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if "start" in told:
                engine = module.Engine(told["start"], SettingError)
                found: dict[str, Any] = {}
            else:
                found = answer(engine, told)
        except Exception as error:
            found = {"error": str(error) or type(error).__name__, "key": getattr(error, "key", None)}
            if not isinstance(error, SettingError):
                found["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(found), file=out, flush=True)


if __name__ == "__main__":
    main()
