"""Installing from a checkout into an empty environment: the compiled core where it is asked for, or an error."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_house import ROOT, left_by_a_tool, pins

SETUP = ROOT / "setup.py"
BACKEND = ROOT / "build_backend.py"
pytestmark = pytest.mark.skipif(not SETUP.exists(), reason="an installation has no setup.py")
BROKEN = "no-such-compiler"


def setup_options(monkeypatch: pytest.MonkeyPatch, **environment: str) -> dict[str, Any]:
    """What setup.py adds to pyproject.toml in an environment."""
    pytest.importorskip("setuptools", reason="setuptools, which builds the wheel, is not installed")
    for name in ("BATCHLAB_COMPILE", "CC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options: dict[str, Any] = runpy.run_path(str(SETUP))["options"]()
    return options


def test_nothing_is_compiled_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup_options(monkeypatch) == {}
    assert setup_options(monkeypatch, BATCHLAB_COMPILE="0", CC=BROKEN) == {}


def test_asked_for_without_a_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=f"the C compiler '{BROKEN}' does not work") as stop:
        setup_options(monkeypatch, BATCHLAB_COMPILE="1", CC=f"{BROKEN} -pthread")
    assert "Without BATCHLAB_COMPILE the sources are installed" in str(stop.value)


def test_a_compiler_that_works_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    asked = setup_options(monkeypatch, BATCHLAB_COMPILE="1", CC="cc")
    assert [extension.name for extension in asked["ext_modules"]] == ["batchlab__mypyc"]


def test_the_build_needs_what_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("setuptools", reason="setuptools, which builds the wheel, is not installed")
    needs: list[str] = runpy.run_path(str(BACKEND))["compiler_needs"]()
    assert dict(need.replace("[mypyc]", "").split("==") for need in needs).items() <= pins().items()
    assert any(need.startswith("mypy[mypyc]==") for need in needs)
    assert any(need.startswith("numpy==") for need in needs)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout: building leaves files in the folder that it builds."""

    def leave_out(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder) / name for name in names}
        return {name for name, path in paths.items() if (path.is_dir() and left_by_a_tool(path)) or name == ".git"}

    copy = tmp_path_factory.mktemp("install") / "source"
    shutil.copytree(ROOT, copy, ignore=leave_out)
    return copy


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an empty environment, from which a package index can be reached."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    found = next(path for path in (tmp_path / "empty").glob("*/python*") if path.is_file())
    asked = subprocess.run(
        [found, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, f"simpy=={pins()['simpy']}"],
        capture_output=True,
        check=False,
    )
    if asked.returncode:
        pytest.skip("pip reaches no package index")
    return found


def install(python: Path, source: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`pip install` as the README says it."""
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "-c",
        "constraints.txt",
        *options,
        ".",
    ]
    env = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
    env |= {"BATCHLAB_COMPILE": "1", **environment}
    return subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_an_empty_environment_gets_the_compiled_core(python: Path, source: Path) -> None:
    done = install(python, source)
    assert done.returncode == 0, done.stdout + done.stderr
    command = [str(python.with_name("batchlab")), "--version"]
    said = subprocess.run(command, cwd=python.parent, capture_output=True, text=True, check=True).stdout
    assert said.endswith(", compiled core\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "environment", "why"),
    [
        ([], {"CC": "false"}, "the C compiler 'false' does not work"),
        (["-e"], {}, "an editable install runs the sources"),
    ],
    ids=["broken-compiler", "editable"],
)
def test_a_core_that_cannot_be_compiled_is_an_error(
    python: Path, source: Path, options: list[str], environment: dict[str, str], why: str
) -> None:
    done = install(python, source, *options, **environment)
    assert done.returncode != 0
    assert why in done.stdout + done.stderr
    assert not python.with_name("batchlab").exists()
