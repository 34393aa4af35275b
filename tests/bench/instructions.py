"""Machine instructions of a piece of work, counted by valgrind's cachegrind: what a busy machine does not disturb.

They leave out what memory costs, and the compiler's and the interpreter's version matter; a ratio of two is of use.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_FOLDER = "BATCHLAB_CACHEGRIND"  # the folder of the counts, in the environment of a process that is counted
_SUMMARY = re.compile(r"^summary: (\d+)", re.MULTILINE)


def is_counted() -> bool:
    """True in a process whose instructions are counted."""
    return _FOLDER in os.environ


def again_counted(module: str, arguments: Sequence[str]) -> None:
    """Run `python -m module` with these arguments, counted, so that `instructions` works there; it needs valgrind."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, _FOLDER: folder, "PYTHONHASHSEED": "0"}
        command = [*_valgrind(f"{folder}/%p"), sys.executable, "-m", module, *arguments]
        subprocess.run(command, env=environment, check=True)


def of_process(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Instructions of a whole process, which runs in a folder with this environment."""
    with tempfile.NamedTemporaryFile() as counts:
        environment = {**environment, "PYTHONHASHSEED": "0"}
        subprocess.run([*_valgrind(counts.name), *command], cwd=folder, env=environment, check=True)
        return _total(Path(counts.name))


def _valgrind(file: str) -> tuple[str, ...]:
    return "valgrind", "--quiet", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={file}"


def _total(counts: Path) -> int:
    return int(_SUMMARY.findall(counts.read_text(encoding="utf-8"))[0])


def instructions(work: Callable[[], object]) -> int:
    """Instructions of `work`, in a child of this process, which is as it was afterwards."""
    children = [_child(work), _child(lambda: None)]  # both start with the count of this process
    with_work, without = (_total(Path(os.environ[_FOLDER], str(child))) for child in children)
    return with_work - without


def _child(work: Callable[[], object]) -> int:
    """Let a child do this and end; returns its number."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if ended:
        raise RuntimeError(f"the process that was counted ended with {ended}")
    return child
