"""The byte code of what dataclasses write: kept at exit, taken at the next start, never needed; what a start sets."""

import marshal
import os
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from tests.command import ROOT

ONE = """\
import sys
from pathlib import Path
from scenarios.cli.app import keep_byte_code
keep_byte_code(Path(sys.argv[1]))
from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class One:
    first: int
print(One(1), One(1) == One(1), hash(One(2)) == hash((2,)))
"""
SHOWN = "One(first=1) True True\n"


def said(file: Path, **settings: str) -> str:
    """What a process prints that makes a class and keeps its byte code in `file`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", ONE, str(file)]
    done = subprocess.run(
        command, env={**environment, "PYTHONPATH": str(ROOT), **settings}, check=True, capture_output=True, text=True
    )
    assert not done.stderr
    return done.stdout


def test_code_is_taken_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "kept"
    assert said(file) == SHOWN
    magic, kept = marshal.loads(file.read_bytes())

    def told(code: CodeType) -> CodeType:
        """The same code that says another name for the field."""
        constants = [told(each) if isinstance(each, CodeType) else each for each in code.co_consts]
        return code.replace(co_consts=tuple("(other=" if each == "(first=" else each for each in constants))

    file.write_bytes(marshal.dumps((magic, {text: told(code) for text, code in kept.items()})))
    assert said(file) == SHOWN.replace("first", "other")
    file.write_bytes(marshal.dumps((b"of another Python", marshal.loads(file.read_bytes())[1])))
    assert said(file) == SHOWN
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("text", [b"", b"no byte code", marshal.dumps(1)])
def test_broken_files_are_written_anew(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "kept"
    file.write_bytes(text)
    assert said(file) == SHOWN
    assert marshal.loads(file.read_bytes())[1]


def test_nothing_is_written_where_python_writes_nothing(tmp_path: Path) -> None:
    assert said(tmp_path / "kept", PYTHONDONTWRITEBYTECODE="1") == SHOWN
    assert said(Path("/dev/null/kept")) == SHOWN
    assert not list(tmp_path.iterdir())


WHOLE = """\
import atexit, gc, os, sys
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # the first to be registered is the last to be called
from scenarios.cli.app import main
sys.argv = ["batchlab", "--version"]
try:
    main()
except SystemExit:
    import dataclasses
    print(os.environ["OPENBLAS_NUM_THREADS"], vars(dataclasses)["exec"].__module__)
"""


def test_the_command_starts_and_ends_with_little(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environment = {**clean, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WHOLE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ["1 scenarios.cli.app", "True"]
