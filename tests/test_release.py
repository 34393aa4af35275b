"""A release: its version, its files, its notes, what it promises."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import scenarios
from docs.writers.release import HOME, PLACEHOLDER, main, missing, notes
from scenarios.cli.app import app
from scenarios.version import __version__
from tests.test_house import PYPROJECT, ROOT, TOPS, pins, texts, walk

CHANGELOG = """# Changelog

## 1.1.0 (2027-01-02)

Added

- `this`.

## 1.0.0 (2026-12-01)

The first.
"""


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_version_has_one_owner() -> None:
    """Whatever else names it is built from it, or is compared with it here."""
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "scenarios.version.__version__"}
    assigned = [str(path) for path, code in texts().items() if re.search(r"^__version__ = ", code, re.MULTILINE)]
    assert assigned == ["scenarios/version.py"]
    assert str(yaml.safe_load(text("CITATION.cff"))["version"]) == __version__
    assert re.findall(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)[0] == __version__


def test_the_sdist_is_the_repository(tmp_path: Path) -> None:
    """Nothing that a build or a test needs is left out, and nothing that a tool left is taken along."""
    pytest.importorskip("setuptools", reason="setuptools, which builds the sdist, is not installed")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    listed = (tmp_path / "batchlab.egg-info/SOURCES.txt").read_text(encoding="utf-8").splitlines()
    found = {path.replace("\\", "/") for path in listed if ".egg-info" not in path}
    assert found ^ {path.relative_to(ROOT).as_posix() for path in walk(ROOT)} == set()


def test_links_of_the_readme_work_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="setuptools, which builds the wheel, is not installed")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    about = (tmp_path / "batchlab.egg-info/PKG-INFO").read_text(encoding="utf-8")
    home = PYPROJECT["project"]["urls"]["Source"]
    assert f"[ARCHITECTURE.md]({home}/blob/v{__version__}/ARCHITECTURE.md)" in about
    assert f"]({home}/raw/v{__version__}/docs/pictures/" in about
    assert re.findall(r"\]\((?!https?:|#)[^)]*\)", about) == []


def test_the_licences_of_shipped_measurements_are_shipped() -> None:
    told = text("calibration/LICENSE-data")
    sources = {
        (source["source"], source["licence"])
        for path in (ROOT / "calibration/profiles").glob("*.json")
        for source in json.loads(path.read_text("utf-8"))["sources"]
    }
    assert len(sources) > 1
    assert [name for name, _ in sources if name not in told] == []
    assert {licence for _, licence in sources} == {"Apache-2.0", "MIT"}
    assert "calibration/LICENSE-data" in PYPROJECT["project"]["license-files"]


@pytest.mark.parametrize("package", TOPS)
def test_a_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").read_bytes() == b""


def test_the_readme_begins_with_the_two_ways_to_start() -> None:
    block = re.search(r"```\n(.*?)```", text("README.md"), re.DOTALL)
    assert block is not None
    assert [line.partition("#")[0].split()[:2] for line in block[1].splitlines()][:2] == [
        ["pip", "install"],
        ["make", "demo"],
    ]


def test_extras_named_in_pages_exist() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    named = {
        extra
        for path, page in texts().items()
        if path.suffix in (".md", ".py", ".yml", "")
        for listed in re.findall(r"(?:batchlab|\.)\[([a-z,]+)\]'", page)
        for extra in listed.split(",")
    }
    assert {"serve", "parquet", "gpu", "ray"} <= named <= {*extras}


# The tag


def test_notes_are_the_part_of_the_changelog() -> None:
    assert notes("v1.1.0", CHANGELOG) == "Added\n\n- `this`.\n"
    assert notes("v1.0.0", CHANGELOG) == "The first.\n"
    with pytest.raises(LookupError, match=r"no part for v2\.0\.0"):
        notes("v2.0.0", CHANGELOG)


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """The files of a repository that is ready for its tag."""
    for path in HOME:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("https://github.com/somebody/batchlab", encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {__version__} (2026-12-01)\n", encoding="utf-8")
    (tmp_path / "CITATION.cff").write_text(f'version: {__version__}\ndate-released: "2026-12-01"\n', encoding="utf-8")
    return tmp_path


def test_nothing_is_missing_from_what_is_ready(ready: Path) -> None:
    assert missing(f"v{__version__}", ready) == []


@pytest.mark.parametrize(
    ("path", "written", "said"),
    [
        ("CHANGELOG.md", f"## {__version__} (unreleased)", "CHANGELOG.md must begin with"),
        ("CHANGELOG.md", "## 0.0.1 (2026-12-01)", "CHANGELOG.md must begin with"),
        ("CITATION.cff", f'version: {__version__}\ndate-released: "2026-12-02"\n', "CITATION.cff must say"),
        ("pyproject.toml", 'Source = "https://github.com/OWNER/batchlab"', "pyproject.toml names no public home"),
    ],
)
def test_what_is_missing_is_said(ready: Path, path: str, written: str, said: str) -> None:
    (ready / path).write_text(written, encoding="utf-8")
    found = missing(f"v{__version__}", ready)
    assert len(found) == 1
    assert found[0].startswith(said)


def test_another_tag_is_refused(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert missing("v0.0.1", ready)[0].startswith("the tag is v0.0.1, and scenarios/version.py says")
    assert main(["check", "v0.0.1"]) == 1
    assert "the tag is v0.0.1" in capsys.readouterr().err
    assert main(["notes", "v0.0.1"]) == 1
    assert main([]) == 2


def test_the_placeholder_of_the_home_stands_in_the_listed_files_alone() -> None:
    """So one command writes the account into all of them."""
    others = [str(path) for path, page in texts().items() if PLACEHOLDER.search(page) and str(path) not in HOME]
    assert [path for path in others if path != "tests/test_release.py"] == []
    urls = PYPROJECT["project"]["urls"].values()
    assert len({bool(PLACEHOLDER.search(url)) for url in urls}) == 1


# The promise


def test_the_promised_names_are_there() -> None:
    table = re.findall(r"^\| (`[\w.]+`(?:, `[\w.]+`)*) \| (`\w+`(?:, `\w+`)*) \|$", text("docs/stability.md"), re.M)
    promised = [(m, n) for ms, ns in table for m in re.findall(r"[\w.]+", ms) for n in re.findall(r"\w+", ns)]
    assert len(promised) > 30
    assert [(m, n) for m, n in promised if not hasattr(importlib.import_module(m), n)] == []
    assert {n for m, n in promised if m == "scenarios"} == {*scenarios.__all__}


def test_what_templates_import_is_promised() -> None:
    page = text("docs/stability.md")
    templates = sorted((ROOT / "scenarios/templates").glob("*.py"))
    assert templates
    for path in templates:
        for module, names in re.findall(
            r"^from ((?:simulator|scenarios)[\w.]*) import (.+)$", path.read_text("utf-8"), re.M
        ):
            row = re.search(rf"^\| `{re.escape(module)}` \| (.+) \|$", page, re.M)
            assert row, f"{path.name} imports {module}, which docs/stability.md does not promise"
            assert {*names.split(", ")} <= {*re.findall(r"\w+", row[1])}


def test_the_schema_lies_where_editors_look_for_it() -> None:
    entry: dict[str, Any] = json.loads(text("docs/schemastore.json"))
    assert {"name", "description", "fileMatch", "url"} == {*entry}
    assert entry["url"].startswith(PYPROJECT["project"]["urls"]["Homepage"])
    place = entry["url"].removeprefix(PYPROJECT["project"]["urls"]["Homepage"])
    schema = json.loads(text(place))  # docs/hooks.py puts the library into the site as it lies in the repository
    assert schema["title"] == entry["name"]


def test_the_notebook_installs_what_is_missing_first() -> None:
    cells = json.loads(text("docs/notebook.ipynb"))["cells"]
    first = next("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert 'find_spec("batchlab") is None' in first
    assert "%pip install -q batchlab" in first


def test_ruff_is_the_same_everywhere() -> None:
    assert {*re.findall(r"ruff==([\w.]+)", text(".pre-commit-config.yaml"))} == {pins()["ruff"]}


def test_the_image_starts_the_server_with_its_flags() -> None:
    entry = json.loads(re.findall(r"^ENTRYPOINT (.+)$", text("Dockerfile"), re.MULTILINE)[0])
    whole: Any = get_command(app())
    serve = whole.commands[entry[1]]
    assert {word for word in entry if word.startswith("--")} <= {flag for one in serve.params for flag in one.opts}
    assert entry[0].endswith(f"/{next(iter(PYPROJECT['project']['scripts']))}")
    assert not re.findall(r"\[[^]]*gpu[^]]*\]|torch", text("Dockerfile"))
    context = {line[1:] for line in text(".dockerignore").splitlines() if line.startswith("!")}
    assert [name for name in context if not (ROOT / name).exists()] == []
    assert {*TOPS, "pyproject.toml", "setup.py", "build_backend.py", "constraints.txt"} <= context
