"""Who imports whom, and what starting the command line loads."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest
from packaging.requirements import Requirement

from tests.command import small

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"

# One import for each arrow that must not be there, and none that may.
FORBIDDEN = [
    ("simulator.engine.replica", "scenarios.schema.scenario"),
    ("simulator.engine.replica", "calibration.fit"),
    ("simulator.engine.replica", "gpu_backend.device"),
    ("simulator.policies.static", "reports.tables.verdict_table"),
    ("simulator.metrics.summary", "scipy"),
    ("simulator.metrics.summary", "pandas"),
    ("simulator.hardware.models", "pydantic"),
    ("calibration.fit", "scenarios.schema.scenario"),
    ("calibration.fit", "gpu_backend.device"),
    ("calibration.fit", "reports.tables.verdict_table"),
    ("gpu_backend.device", "scenarios.schema.scenario"),
    ("gpu_backend.device", "calibration.fit"),
    ("gpu_backend.device", "reports.tables.verdict_table"),
    ("reports.tables.verdict_table", "scenarios.schema.scenario"),
    ("reports.tables.verdict_table", "calibration.fit"),
    ("reports.tables.verdict_table", "gpu_backend.device"),
    ("scenarios.runs.runner", "reports.tables.verdict_table"),
    ("scenarios.runs.runner", "calibration.fit"),
    ("scenarios.traces.formats.azure", "gpu_backend.device"),
    ("scenarios.runs.runner", "scenarios.cli.app"),
    ("scenarios.runs.runner", "torch"),
    ("scenarios.runs.runner", "docs.writers.claims.page"),
    ("scenarios.cli.app", "tools.campaign.parts"),
    ("calibration.fit", "tools.tables.profiles"),
    ("gpu_backend.device", "tools.kernel_bench.speed"),
    ("simulator.policies.static", "simulator.engine.replica"),
    ("simulator.memory.blocks", "simulator.policies.static"),
    ("simulator.timing.cost", "simulator.engine.state"),
    ("scenarios.schema.scenario", "scenarios.runs.runner"),
    ("scenarios.assembly.replica_parts", "scenarios.validate.compare"),
]
ALLOWED = [
    ("scenarios.runs.runner", "simulator.engine.replica"),
    ("scenarios.runs.runner", "pandas"),
    ("scenarios.cli.app", "reports.tables.verdict_table"),
    ("scenarios.cli.app", "calibration.fit"),
    ("scenarios.cli.app", "gpu_backend.device"),
    ("reports.tables.verdict_table", "simulator.metrics.summary"),
    ("calibration.fit", "simulator.metrics.summary"),
    ("gpu_backend.device", "simulator.engine.replica"),
    ("gpu_backend.device", "torch"),
    ("tools.campaign.parts", "calibration.fit"),
    ("tools.campaign.parts", "gpu_backend.session"),
    ("tools.campaign.parts", "tools.kernel_bench.speed"),
    ("docs.writers.claims.page", "scenarios.runs.runner"),
    ("docs.writers.claims.page", "tools.tables.profiles"),
    ("docs.writers.claims.page", "reports.tables.verdict_table"),
    ("simulator.engine.replica", "numpy"),
]


def python(code: str, cwd: Path = ROOT) -> str:
    """What `code` prints, run by a new interpreter in `cwd`."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("start", ["", "main(['--help'])", "main(['run', '--help'])"])
def test_command_line_loads_nothing_heavy(start: str) -> None:
    """Checked in a new interpreter: this one has loaded them all long ago."""
    argv = start.removeprefix("main(").removesuffix(")") or "[]"
    printed = python(
        "import sys\n"
        f"sys.argv = ['batchlab', *{argv}]\n"
        "from scenarios.cli.app import main\n"
        "try:\n"
        f"    {'main()' if start else 'pass'}\n"
        "except SystemExit as stop:\n"
        "    assert stop.code in (None, 0), stop.code\n"
        "heavy = ('pandas', 'matplotlib', 'torch', 'scipy', 'ray', 'pyarrow', 'jinja2')\n"
        "print('loaded:', *(name for name in heavy if name in sys.modules))\n"
    )
    assert printed.splitlines()[-1] == "loaded:"
    assert not start or "Usage" in printed


def test_a_run_loads_neither_pictures_nor_profiles(tmp_path: Path) -> None:
    """Its costs are linear: the modules of profiles and their tables are a tenth of all that it would import."""
    argv = ["batchlab", "run", str(small(tmp_path)), "--out", str(tmp_path / "run"), "--quiet"]
    printed = python(
        "import sys\n"
        f"sys.argv = {argv!r}\n"
        "from scenarios.cli.app import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    assert stop.code in (None, 0), stop.code\n"
        "unused = ('pandas', 'matplotlib', 'jinja2', 'simulator.timing.profile', 'simulator.timing.tables')\n"
        "print('loaded:', *(name for name in unused if name in sys.modules))\n"
    )
    assert printed.splitlines()[-1] == "loaded:"


def test_simulator_loads_little() -> None:
    printed = python(
        "import importlib, pkgutil, sys\n"
        "before = set(sys.modules)\n"
        "import simulator\n"
        "names = [module.name for module in pkgutil.walk_packages(simulator.__path__, 'simulator.')]\n"
        "names = [name for name in names if '.programs.' not in name]  # they run in an engine's Python\n"
        "for name in names:\n"
        "    importlib.import_module(name)\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(len(names), *sorted(tops - set(sys.stdlib_module_names)))\n"
    )
    count, *loaded = printed.split()
    assert int(count) > 5
    # Cython, in NumPy, registers modules of its own: cython_runtime, _cython_ and a version.
    assert {name for name in loaded if not name.startswith("_") and not name.endswith("_runtime")} <= {
        "simulator",
        "numpy",
        "simpy",
        "sortedcontainers",
        "annotated_types",
        "typing_extensions",  # by annotated_types, where it is there
    }


def test_base_install_has_no_torch() -> None:
    base = {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]}
    assert base.isdisjoint({"torch", "ray", "pyarrow", "triton", "vllm"})
    assert [Requirement(text).name for text in PYPROJECT["project"]["optional-dependencies"]["gpu"]] == ["torch"]


def test_no_two_files_import_each_other() -> None:
    """Not for their types either, nor inside a function."""
    graph = grimp.build_graph(
        "calibration", "gpu_backend", "reports", "scenarios", "simulator", "tools", cache_dir=None
    )
    arrows = {(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)}
    assert len(arrows) > 1000
    assert {(one, other) for one, other in arrows if one <= other and (other, one) in arrows} == set()


def contracts(tmp_path: Path, imports: list[tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """Run this project's import-linter contracts over a tree of empty modules that holds just `imports`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = re.sub(r"^ignore_imports = \[\n.*?^\]\n", "", text, flags=re.MULTILINE | re.DOTALL)  # of files not made here
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    roots = PYPROJECT["tool"]["importlinter"]["root_packages"]
    modules = {name for pair in FORBIDDEN + ALLOWED for name in pair if name.partition(".")[0] in roots}
    for contract in PYPROJECT["tool"]["importlinter"]["contracts"]:
        for layer in contract.get("layers", []):
            modules.update(f"{room}.some_module" for room in layer.split(" | "))
    for name in sorted(modules):
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / package / "__init__.py").touch()
        lines = [f"import {imported}" for importer, imported in imports if importer == name]
        if file.with_suffix("").is_dir() or name in roots:
            file = file.with_suffix("") / "__init__.py"
            file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-c", LINT_IMPORTS, "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_contracts_allow_what_the_design_allows(tmp_path: Path) -> None:
    done = contracts(tmp_path, ALLOWED)
    assert done.returncode == 0, done.stdout + done.stderr


def test_contracts_catch_every_forbidden_arrow(tmp_path: Path) -> None:
    done = contracts(tmp_path, FORBIDDEN)
    assert done.returncode == 1, done.stdout + done.stderr
    # A chain of imports is listed link by link; only its first has the dash.
    caught = set(re.findall(r"^- +([\w.]+) -> ([\w.]+) \(", done.stdout, flags=re.MULTILINE))
    assert set(FORBIDDEN) - caught == set(), done.stdout
