"""The command as a process of its own, in CPU seconds: `--help`, and a thousand requests from start to run folder."""

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT, START


def children_s() -> float:
    """CPU seconds of the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def as_installed(folder: Path) -> dict[str, str]:
    """The environment of a command that finds byte code in `folder` from the second time on, as pip leaves it.

    Where Python is told to write none, every start would compile all modules: a quarter of a second.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder)}


@pytest.mark.benchmark(timer=children_s, warmup=False)
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["run", "azure-conv", "--set", "workload.requests=1000", "--quiet", "--overwrite"],
    ],
    ids=["help", "a-thousand-requests"],
)
def test_start(benchmark: Any, tmp_path: Path, arguments: list[str]) -> None:
    environment = as_installed(tmp_path / "byte-code")

    def command() -> None:
        subprocess.run([*START, *arguments], cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)

    command()
    benchmark.pedantic(command, rounds=5)
