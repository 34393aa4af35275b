"""The state of the repository itself: sizes, packages, pins, words."""

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOPS = ("batchlab", "simulator", "scenarios", "calibration", "gpu_backend", "reports")
BESIDE = ("tools", "tests", "docs")  # not in the wheel
FIND: dict[str, Any] = PYPROJECT["tool"]["setuptools"]["packages"]["find"]
MAX_LINES = 700
MIN_LINES = 60
# Here a file is one plug-in, however short: a policy, an order, a router, a format, a rule, an exporter, an engine, ...
PLUG_INS = (
    *("simulator/policies", "simulator/queues", "simulator/fleet/routers"),
    *("scenarios/traces/formats", "scenarios/measured/formats", "scenarios/schema/arrivals"),
    *("scenarios/diagnosis/rules", "scenarios/servers", "scenarios/templates"),
    *("reports/exports/formats", "reports/plots"),
)
# Short for a reason.
SHORT = {
    "simulator/division.py": "compiled, below all other modules, and public",
    "simulator/errors.py": "below all other modules, and public",
    "scenarios/version.py": "read by the build, which imports nothing",
}
# A module in backticks or behind `python -m`, and the path of a file or a folder, as texts name them.
MODULE = re.compile(rf"(?:`|python -m )((?:{'|'.join(TOPS)}|tools|tests)(?:\.\w+)+)")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join((*TOPS, *BESIDE))})/(?:[\w.-]+/)*[\w.-]*\w(?![\w*{{<])")

# A path of somebody's machine, the host of a package registry, or an option that names one.
PRIVATE = re.compile(
    r"(?<![\w.])/(?:work|root|tmp|opt|home|Users)/|pypi\.org|pythonhosted\.org|npmjs\.org|(?:index|find)-(?:url|links)"
)
# What may follow a switched-off check, and must: the reason.
SWITCHED_OFF = re.compile(
    r"#\s*(?:noqa(?P<codes>:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)?|type:\s*ignore(?:\[[\w, -]+\])?)(?P<why>.*)"
)


@cache
def texts() -> dict[Path, str]:
    """Every text file of the repository, without what tools and runs leave beside it."""
    found: dict[Path, str] = {}
    for file in walk(ROOT):
        try:
            found[file.relative_to(ROOT)] = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture, a gzip
    return found


def walk(folder: Path) -> Iterator[Path]:
    """The files below `folder`, in order."""
    for path in sorted(folder.iterdir()):
        if path.is_file():
            if path.name != ".git":  # a worktree's says where the repository is
                yield path
        elif not left_by_a_tool(path):
            yield from walk(path)


def left_by_a_tool(folder: Path) -> bool:
    """Whether a folder is an environment, a cache or an output, which git ignores."""
    name = folder.name
    top = folder.parent == ROOT
    return (
        (name.startswith(".") and name not in (".ci", ".github"))
        or name == "__pycache__"
        or name.endswith(".egg-info")
        or (top and name in ("runs", "build", "dist"))
        or (folder / "pyvenv.cfg").exists()
    )


def python_files() -> dict[Path, str]:
    return {path: text for path, text in texts().items() if path.suffix == ".py"}


def pins() -> dict[str, str]:
    """constraints.txt: distribution -> version."""
    found: dict[str, str] = {}
    for line in texts()[Path("constraints.txt")].splitlines():
        if line and not line.startswith("#"):
            name, equals, version = line.partition("==")
            assert equals, f"constraints.txt pins versions with ==, and nothing else: {line!r}"
            assert canonicalize_name(name) not in found, f"twice in constraints.txt: {name}"
            found[canonicalize_name(name)] = version
    return found


def is_data(path: Path) -> bool:
    """Whether a file of a package is read, not imported: a template that ends in .py is."""
    return path.parent.name in ("templates", "library", "profiles")


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", texts()[Path("Makefile")], flags=re.MULTILINE))


def test_walk_sees_the_repository() -> None:
    seen = set(texts())
    assert {Path("pyproject.toml"), Path(".ci/run"), Path("simulator/errors.py"), Path("tests/test_house.py")} <= seen


def test_no_python_file_is_long() -> None:
    lengths = {str(path): len(text.splitlines()) for path, text in python_files().items()}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_module_is_short_but_plug_ins() -> None:
    """What a reader needs together stands together: a short file joins its importer or its neighbours."""
    assert [folder for folder in PLUG_INS if not (ROOT / folder).is_dir()] == []
    assert [file for file in SHORT if not (ROOT / file).is_file()] == []
    short = {
        str(path): lines
        for path, text in python_files().items()
        if path.parts[0] in TOPS
        and path.name not in ("__init__.py", "__main__.py")
        and path.parent.as_posix() not in PLUG_INS
        and str(path) not in SHORT
        and (lines := len(text.splitlines())) < MIN_LINES
    }
    assert short == {}


def test_no_machine_path_or_registry_host() -> None:
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if PRIVATE.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("line", ["see /" + "tmp/x", "'/" + "work/main'", "https://pypi" + ".org/simple"])
def test_private_words_are_found(line: str) -> None:
    assert PRIVATE.search(line)


@pytest.mark.parametrize("line", ["runs/tmp/x", "../work/x", "https://example.org/home/x", "a /tmpfs/ mount"])
def test_harmless_words_are_not(line: str) -> None:
    assert not PRIVATE.search(line)


def prose() -> Iterator[tuple[str, str]]:
    """Every line of code and pages with its place; not of the changelog, which tells of files that are gone."""
    for path, text in texts().items():
        if path.suffix in (".py", ".md", ".yaml", ".toml", "") and path.name != "CHANGELOG.md":
            for number, line in enumerate(text.splitlines(), start=1):
                yield f"{path}:{number}", line


def has_module(name: str) -> bool:
    """Whether there is a module or a package of this dotted name, or one whose text has the word that follows it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        found = [texts()[file] for file in sources(Path(*parts[:count])) if file in texts()]
        if found:
            return count == len(parts) or any(re.search(rf"\b{parts[count]}\b", text) for text in found)
    return False


def sources(module: Path) -> tuple[Path, Path]:
    """The files that may hold a module."""
    return module.with_suffix(".py"), module / "__init__.py"


def test_modules_named_in_texts_exist() -> None:
    named = [(place, name) for place, line in prose() for name in MODULE.findall(line)]
    assert len(named) > 50
    assert [(place, name) for place, name in named if not has_module(name)] == []
    assert not has_module("simulator.no_such_module")
    assert not has_module("simulator.errors.NoSuchError")


def test_paths_named_in_texts_exist() -> None:
    named = [(place, path) for place, line in prose() for path in PATH.findall(line) if "some_" not in path]
    assert len(named) > 50
    assert [(place, path) for place, path in named if not (ROOT / path).exists()] == []


def test_every_package_is_found() -> None:
    """setuptools takes along the folders that have an `__init__.py`, and no others."""
    found = {".".join(path.parent.parts) for path in python_files() if path.parts[0] in TOPS and not is_data(path)}
    assert {f"{top}*" for top in TOPS} == set(FIND["include"])
    assert {str(path.parent) for path in python_files() if path.name == "__init__.py"} >= {
        name.replace(".", "/") for name in found
    }


def test_every_data_file_is_package_data() -> None:
    """What a wheel would leave out is missed by nobody who works in the repository."""
    patterns = [
        f"{package}/{pattern}"
        for package, listed in PYPROJECT["tool"]["setuptools"]["package-data"].items()
        for pattern in listed
    ]
    data = [str(path) for path in texts() if path.parts[0] in TOPS and (path.suffix != ".py" or is_data(path))]
    assert [file for file in data if not any(fnmatch.fnmatch(file, pattern) for pattern in patterns)] == []


def test_every_dependency_is_pinned() -> None:
    """Those in pyproject.toml, and what they need in turn as far as they are installed here."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].values()
    queue = [Requirement(text) for listed in (project["dependencies"], *extras) for text in listed]
    seen: set[tuple[str, frozenset[str]]] = set()
    unpinned: set[str] = set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in seen:
            continue
        seen.add((name, frozenset(requirement.extras)))
        if name not in pins():
            unpinned.add(name)
        else:
            assert requirement.specifier.contains(pins()[name]), f"{requirement} excludes the pinned {pins()[name]}"
        queue += installed_needs(requirement)
    # torch pins the CUDA packages of its build itself, with ==.
    assert {name for name in unpinned if not name.startswith(("nvidia-", "cuda-", "triton"))} == set()


def installed_needs(requirement: Requirement) -> list[Requirement]:
    """What an installed distribution needs, with the extras asked of it; nothing where it is not installed."""
    try:
        needs = [Requirement(text) for text in requires(requirement.name) or []]
    except PackageNotFoundError:
        return []
    extras = ["", *requirement.extras]
    return [
        need for need in needs if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def test_every_switched_off_check_has_its_reason() -> None:
    bare = [
        f"{path}:{number}: {line.strip()}"
        for path, text in python_files().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if (off := SWITCHED_OFF.search(line)) and not re.search(r"\w{2}", off["why"])
    ]
    assert bare == []


LATER = "from __future__ import annotations\n"
# `array.array` takes a type in brackets from Python 3.12 on; Triton reads annotations of kernels as they are written.
NOT_AT_RUN_TIME = re.compile(r"TYPE_CHECKING|\barray\[|triton")


def test_annotations_are_put_off_only_where_they_must_be(tmp_path: Path) -> None:
    """Where one names what comes later, or what is there for types alone (PEP 749 ends the rest)."""
    for path, text in python_files().items():
        if LATER in text and not NOT_AT_RUN_TIME.search(text) and "gpu_backend" not in path.parts:
            copy = tmp_path / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text.replace(LATER, ""), encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "json"]
    done = subprocess.run([*ruff, str(tmp_path)], capture_output=True, text=True, check=False)
    needed = {Path(found["filename"]).relative_to(tmp_path.resolve()) for found in json.loads(done.stdout)}
    put_off = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.py")}
    assert sorted(map(str, put_off - needed)) == []


def test_every_ruff_ignore_has_its_reason() -> None:
    text = texts()[Path("pyproject.toml")]
    start = text.index("[tool.ruff.lint]")
    lines = [line.strip() for line in text[start : text.index("[tool.mypy]")].splitlines()]
    ignores = [line for line in lines if re.match(r'"[A-Z]+\d+",', line)]
    assert ignores
    assert [line for line in ignores if not re.search(r"# \w+", line)] == []


def test_readme_needs_two_commands() -> None:
    readme = texts()[Path("README.md")]
    asked = set(re.findall(r"\bmake ([a-z][\w-]*)", readme))
    assert {"demo", "test"} <= asked
    assert asked <= targets(), "README names a make target that is not there"


def test_ci_runs_the_tests() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    assert script.read_text(encoding="utf-8").splitlines()[-1] == "make test"
