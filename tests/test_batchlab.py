"""`import batchlab`: the public names, loaded when they are used, and packaged."""

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import batchlab
import scenarios
from tests.command import small
from tests.test_wheel import in_the_wheel, modules

ROOT = Path(__file__).parents[1]


def python(code: str, *paths: Path) -> str:
    """What `code` prints in a new interpreter, outside the repository, that imports from `paths`."""
    start = f"import sys; sys.path[:0] = {[str(path) for path in paths]!r}\n{code}"
    command = [sys.executable, "-P", "-c", start]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout


def test_the_public_names_are_those_of_scenarios() -> None:
    assert {*batchlab.__all__} == {*scenarios.__all__, "__version__"}
    assert all(getattr(batchlab, name) is getattr(scenarios, name) for name in scenarios.__all__)
    assert {*batchlab.__all__} <= {*dir(batchlab)}
    with pytest.raises(AttributeError, match=r"has no attribute 'rum'; it has .*run"):
        _ = batchlab.rum


def test_importing_loads_nothing_heavy() -> None:
    code = "import batchlab; print(*(n for n in ('numpy', 'pydantic', 'pandas', 'matplotlib') if n in sys.modules))"
    assert python(code, ROOT) == "\n"


def test_a_run_draws_nothing(tmp_path: Path) -> None:
    code = (
        "import batchlab\n"
        f"result = batchlab.run({str(small(tmp_path))!r})\n"
        "print(repr(result).startswith('<Result small'), 'matplotlib' in sys.modules)\n"
    )
    assert python(code, ROOT) == "True False\n"


def test_the_version_is_that_of_the_distribution() -> None:
    assert version("batchlab") == batchlab.__version__


def test_a_wheel_holds_it(tmp_path: Path) -> None:
    """Built as pip builds it, and imported from the wheel alone."""
    pytest.importorskip("setuptools", reason="setuptools, which builds the wheel, is not installed")
    code = (
        f"import os; os.chdir({str(ROOT)!r})\n"
        "from setuptools import build_meta\n"
        f"settings = {{'--build-option': ['build', '--build-base', {str(tmp_path / 'build')!r}, 'egg_info',"
        f" '--egg-base', {str(tmp_path)!r}]}}\n"
        f"print('wheel:' + build_meta.build_wheel({str(tmp_path)!r}, settings))\n"
    )
    wheel = tmp_path / python(code).rpartition("wheel:")[2].strip()
    assert f"-{batchlab.__version__}-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert {"batchlab/__init__.py", "scenarios/version.py", "scenarios/library/quickstart.yaml"} <= {*names}
    sources = {name for name in names if name.endswith(".py") and "/templates/" not in name}
    assert sources == {modules()[name].as_posix() for name in in_the_wheel()}
    code = "import batchlab; print(batchlab.__file__, len(batchlab.shipped()) > 3, batchlab.__version__)"
    assert python(code, tmp_path / "installed").split() == [
        str(tmp_path / "installed/batchlab/__init__.py"), "True", batchlab.__version__,
    ]  # fmt: skip
