"""vLLM's own scheduler, asked in an interpreter of its own: BATCHLAB_VLLM_PYTHON names one that has vLLM."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.parity import draft_cases
from tests.parity.cases import Case

VARIABLE = "BATCHLAB_VLLM_PYTHON"
DRIVER = Path(__file__).with_name("vllm_driver.py")
DRAFT_DRIVER = DRIVER.with_name("draft_driver.py")

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
    found = asked(DRIVER, oracle, cases)
    for case, answer in zip(cases, found, strict=True):
        if isinstance(answer, dict):
            raise RefusedError(f"{answer['refused']}: {json.dumps(case)}")
    return found


def drafted(kind: str, seeds: Sequence[int], features: Path) -> Iterator[tuple[int, Case, Steps]]:
    """Seed, case and records of the cases of a kind that vLLM finishes, from the harness in the folder `features`."""
    cases = [(draft_cases.draw(kind, seed), seed) for seed in seeds]
    for seed, answer in zip(seeds, asked(DRAFT_DRIVER, features, cases), strict=True):
        if "records" in answer:
            yield seed, answer["case"], answer["records"]


def asked(driver: Path, harness: Path, questions: Sequence[Any]) -> list[Any]:
    """What a driver answers to each question, with the harness in that folder. Raises RuntimeError if it fails."""
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(
        [python(), str(driver), str(harness)], input=lines, capture_output=True, text=True, check=False
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(found) != len(questions):
        said = f"{len(found)} answers to {len(questions)} cases, exit status {done.returncode}"
        raise RuntimeError(f"{said}: {done.stderr}")
    return found
