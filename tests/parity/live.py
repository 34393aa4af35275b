"""vLLM's own scheduler, asked in an interpreter of its own: BATCHLAB_VLLM_PYTHON names one that has vLLM."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.parity.cases import Case

VARIABLE = "BATCHLAB_VLLM_PYTHON"
DRIVER = Path(__file__).with_name("vllm_driver.py")

Steps = list[dict[str, Any]]


class RefusedError(Exception):
    """vLLM does not accept the case, or gets stuck in it."""


def python() -> str:
    """The interpreter that has vLLM."""
    return os.environ[VARIABLE]


def missing() -> str | None:
    """Why vLLM cannot be asked, or None."""
    named = os.environ.get(VARIABLE)
    if not named:
        return f"{VARIABLE} names no python with vLLM"
    if shutil.which(named) is None:
        return f"{VARIABLE} is {named!r}, which is no program"
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    found = subprocess.run([named, "-c", look], capture_output=True, check=False)
    return None if found.returncode == 0 else f"{VARIABLE} is {named!r}, which finds no vLLM"


def version() -> str:
    """The version of vLLM that answers."""
    look = "import importlib.metadata; print(importlib.metadata.version('vllm'))"
    return subprocess.run([python(), "-c", look], capture_output=True, text=True, check=True).stdout.strip()


def hit_tokens(steps: Steps) -> int:
    """Tokens that were found in the prefix cache."""
    return sum(sum(step["admitted"].values()) for step in steps)


def answers(cases: Sequence[Case], oracle: Path) -> list[Steps]:
    """A record a step for each case, from the harness in the folder `oracle`; one process for all cases.

    Raises RefusedError for a case that vLLM does not accept.
    """
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run(
        [python(), str(DRIVER), str(oracle)], input=lines, capture_output=True, text=True, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(found) != len(cases):
        raise RuntimeError(f"{len(found)} answers to {len(cases)} cases, exit status {done.returncode}: {done.stderr}")
    for case, answer in zip(cases, found, strict=True):
        if isinstance(answer, dict):
            raise RefusedError(f"{answer['refused']}: {json.dumps(case)}")
    return found
