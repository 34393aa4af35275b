"""The workflows, and the dashboard: what they name is there."""

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_house import PYPROJECT, ROOT, targets

FOLDER = ROOT / ".github/workflows"
WORKFLOWS: dict[str, Any] = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in FOLDER.glob("*.yml")}
JOBS = [(name, job, what) for name, flow in WORKFLOWS.items() for job, what in flow["jobs"].items()]
TOOLS = {"build", "twine", "cibuildwheel", "pip", "pytest", "venv"}
MONITORING = ROOT / "docs/monitoring"


def commands() -> Iterator[tuple[str, str]]:
    """Every line of every step, with the values of its matrix written in, and its place."""
    for name, job, what in JOBS:
        matrix = what.get("strategy", {}).get("matrix", {})
        for step in what.get("steps", ()):
            script = step.get("run", "").replace("\\\n", " ")
            for key, values in matrix.items():
                if f"matrix.{key} " in script:
                    script = "\n".join(script.replace(f"${{{{ matrix.{key} }}}}", str(value)) for value in values)
            yield from ((f"{name}.{job}", line.strip()) for line in script.splitlines() if line.strip())


def test_there_is_a_workflow_for_each_purpose() -> None:
    assert {*WORKFLOWS} == {"checks", "wheels", "docs", "release", "weekly"}
    assert len([*commands()]) > 25


def test_targets_of_make_exist() -> None:
    asked = {(place, target) for place, line in commands() for target in re.findall(r"\bmake ([a-z-]+)", line)}
    assert len(asked) >= 6
    assert [(place, target) for place, target in asked if target not in targets()] == []


def test_modules_that_are_run_exist() -> None:
    named = {(place, name) for place, line in commands() for name in re.findall(r"python -m ([\w.]+)", line)}
    assert any(name.startswith("docs.writers") for _, name in named)
    assert [each for each in named if each[1] not in TOOLS and find_spec(each[1]) is None] == []


def test_tools_are_pinned_where_they_are_installed() -> None:
    """Ours come from constraints.txt, others with their version."""
    installs = [line for _, line in commands() if "pip install" in line and "dist/*.whl" not in line]
    assert installs
    assert [
        line
        for line in installs
        if "-c constraints.txt" not in line
        and not all("==" in word for word in line.partition("pip install ")[2].split())
    ] == []


def test_extras_exist() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    asked = [found for _, line in commands() for found in re.findall(r"(?:EXTRAS=|\.\[)([a-z,]+)", line)]
    assert asked
    assert {extra for found in asked for extra in found.split(",")} <= {*extras}


def test_files_named_in_commands_exist() -> None:
    named = [path for _, line in commands() for path in re.findall(r"(?<!\S)docs/[\w./-]+\w", line)]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_pythons_are_those_of_the_classifiers() -> None:
    ours = [
        found[1] for line in PYPROJECT["project"]["classifiers"] if (found := re.search(r"Python :: (3\.\d+)$", line))
    ]
    assert WORKFLOWS["checks"]["jobs"]["tests"]["strategy"]["matrix"]["python"] == ours
    built = PYPROJECT["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{python.replace('.', '')}-*" for python in ours]


@pytest.mark.parametrize(("name", "job", "what"), JOBS, ids=[f"{name}.{job}" for name, job, _ in JOBS])
def test_a_job_ends_and_may_do_little(name: str, job: str, what: dict[str, Any]) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert "concurrency" in WORKFLOWS[name]
    assert "uses" in what or what["timeout-minutes"] <= 120
    writes = {(job, right) for right, value in what.get("permissions", {}).items() if value == "write"}
    assert writes <= {("publish", "id-token"), ("announce", "contents"), ("deploy", "pages"), ("deploy", "id-token")}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yml")), ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (\S+)(.*)", path.read_text("utf-8"))
    assert used
    for action, comment in used:
        if action.startswith("./"):
            assert (ROOT / action).is_file()
        else:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment)


def test_one_action_has_one_version() -> None:
    pinned = {
        action for path in FOLDER.glob("*.yml") for action in re.findall(r"uses: ([\w/-]+@\w+)", path.read_text())
    }
    assert len({action.partition("@")[0] for action in pinned}) == len(pinned)


# Monitoring


def emitted() -> set[str]:
    """Names of the samples of /metrics."""
    pytest.importorskip("prometheus_client", reason="needs the extra `serve`")
    from scenarios.serve.prometheus import Meters
    from simulator.metrics.vllm_metrics import GAUGES, PREFIX

    ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    kinds = re.findall(r"^# TYPE (\S+) (\w+)$", Meters("a-model", 4096).text().decode(), re.MULTILINE)
    named = {name.removesuffix("_total") + end for name, kind in kinds for end in ends[kind]}
    return named | {PREFIX + name for name in GAUGES}


def test_every_query_of_the_dashboard_names_metrics_that_exist() -> None:
    dashboard = json.loads((MONITORING / "grafana/vllm.json").read_text("utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in dashboard["templating"]["list"]]
    assert len(queries) > 20
    for query in queries:
        names = re.findall(r"\w+:\w+", query)
        assert names, query
        assert {*names} <= emitted(), query


def test_every_panel_says_what_it_shows() -> None:
    panels = json.loads((MONITORING / "grafana/vllm.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in panels if not panel["description"].endswith(".")] == []
    assert {target["datasource"]["uid"] for panel in panels for target in panel["targets"]} == {
        yaml.safe_load((MONITORING / "grafana/datasources.yml").read_text("utf-8"))["datasources"][0]["uid"]
    }


def test_what_is_mounted_exists() -> None:
    services = yaml.safe_load((MONITORING / "compose.yaml").read_text("utf-8"))["services"]
    mounted = {
        source: target
        for service in services.values()
        for source, target in (volume.split(":")[:2] for volume in service.get("volumes", ()))
        if source.startswith(".")
    }
    assert len(mounted) == 4
    assert [source for source in mounted if not (MONITORING / source).is_file()] == []
    provider = yaml.safe_load((MONITORING / "grafana/dashboards.yml").read_text("utf-8"))["providers"][0]
    assert mounted["./grafana/vllm.json"] == provider["options"]["path"]
    assert (MONITORING / services["batchlab"]["build"] / "Dockerfile").is_file()
    scraped = yaml.safe_load((MONITORING / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == ["batchlab:8000"]
