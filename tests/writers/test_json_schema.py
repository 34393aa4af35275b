"""The JSON Schema of a scenario and the page of all keys: up to date, complete, and of one mind with `load`."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs.writers import reference
from docs.writers.json_schema import FILE, scenario_schema, text
from scenarios.schema.allowed import Schema
from scenarios.schema.loader import MODELINE, load, shipped
from scenarios.schema.source.yaml_source import read_yaml
from simulator.errors import InputError
from simulator.hardware.model_config import _FAMILIES
from simulator.policies import built_in_policies
from tests.command import batchlab

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "scenarios" / "library"
YAML = sorted([*LIBRARY.glob("*.yaml"), *(ROOT / "scenarios" / "templates").glob("*.yaml")])
LENGTH = {"dist": "fixed", "value": 8}
ARRIVAL = {"process": "poisson", "rate": 1}
SMALL: dict[str, Any] = {
    "model": "gpt2",
    "hardware": {"gpu": {"base": "h200", "memory_gib": 100}},
    "cost": {"kind": "linear", "base_s": 1, "per_token_s": 0, "per_context_token_s": 0},
    "workload": {"requests": 2, "classes": [{"name": "a", "arrival": ARRIVAL, "input": LENGTH, "output": LENGTH}]},
    "engine": {"policy": "chunked_prefill", "max_num_seqs": 4, "order": "sjf", "aging_s": 2.5, "version": 0.20},
    "slo": {"ttft_ms": 100},
}


@cache
def schema_of_scenarios() -> Schema:
    """Made where a test asks for it: every process collects this file."""
    return scenario_schema()


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of_scenarios())


def as_json(data: object) -> Any:
    """YAML's data as a JSON Schema knows them: keys are text."""
    if isinstance(data, dict):
        return {str(key): as_json(value) for key, value in data.items()}
    return [as_json(item) for item in data] if isinstance(data, list) else data


def test_the_shipped_schema_is_what_the_code_writes() -> None:
    """`make pages PAGES=schema` writes it again."""
    assert FILE.read_text(encoding="utf-8") == text()
    jsonschema.Draft202012Validator.check_schema(schema_of_scenarios())


def test_the_page_of_keys_is_what_the_code_writes() -> None:
    """`make pages PAGES=reference` writes it again."""
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == reference.page()


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.stem)
def test_every_shipped_scenario_names_the_schema_and_keeps_to_it(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(MODELINE)
    assert (path.parent / first.removeprefix(MODELINE)).resolve() == FILE
    assert [error.message for error in validator().iter_errors(as_json(read_yaml(path).data))] == []


def test_all_scenarios_are_checked() -> None:
    assert {path.stem for path in YAML} > set(shipped())


@pytest.mark.parametrize("policy", [*built_in_policies(), "./mine.py:Mine"])
def test_a_small_scenario_is_valid_with_every_policy(policy: str) -> None:
    data = deepcopy(SMALL)
    data["engine"] = {"policy": policy, "max_num_seqs": 4}
    validator().validate(data)
    load(data, check_files=False)


@pytest.mark.parametrize("version", ["0.9.2", "v0.20.1", 0.34, "1.0.0", "nightly-5b8c", "0.33.1rc2"])
def test_a_release_that_is_not_known_is_valid_for_both(version: object) -> None:
    """The nearest known one stands for it."""
    data = deepcopy(SMALL)
    data["engine"]["version"] = version
    validator().validate(data)
    load(data)


BROKEN: list[tuple[str, object]] = [
    ("modle", "gpt2"),
    ("seed", "0"),
    ("seed", -1),
    ("model", "gpt3"),
    ("model", {"layers": 3}),
    ("model", {"base": "gpt2", "layer": 3}),
    ("model", {"base": "gpt2", "layers": 3.5}),
    ("hardware.gpu", "h2000"),
    ("hardware.tensor_parallel", 1.5),
    ("hardware.gpu_memory_utilization", 1.1),
    ("cost.kind", "linaer"),
    ("cost.base_ms", 1),
    ("cost.base_s", None),
    ("workload.rate", 3),
    ("workload.trace", {"path": "a.csv", "format": "azuer"}),
    ("workload.classes", []),
    ("workload.classes.0.share", "half"),
    ("workload.classes.0.input.dist", "gaussian"),
    ("workload.classes.0.input.value", 0),
    ("workload.classes.0.arrival.cv", 2),
    ("engine.policy", "chunkd"),
    ("engine.max_seqs", 4),
    ("engine.max_num_seqs", 0),
    ("engine.max_num_seqs", True),
    ("engine.order", "lifo"),
    ("engine.stream", True),  # a key of static
    ("engine.version", "20.1"),
    ("engine.version", 20.1),
    ("engine.version", "0.20-1"),
    ("router", "nearest"),
    ("router", {"kind": "power_of_two", "choices": 0}),
    ("router", {"kind": "random", "choices": 2}),
    ("fleet", [{"name": "a", "gpu": "h200"}]),
    ("slo.ttft_s", 1),
    ("measure", {"warmup_s": -1}),
]


@pytest.mark.parametrize(("key", "value"), BROKEN, ids=[f"{key}={value}" for key, value in BROKEN])
def test_what_is_broken_is_refused_by_both(key: str, value: object) -> None:
    """Unknown keys, wrong types, values out of range. The scenario is valid without the change."""
    validator().validate(SMALL)
    load(SMALL)
    data = deepcopy(SMALL)
    holder: Any = data
    *way, last = key.split(".")
    for step in way:
        holder = holder[int(step) if step.isdigit() else step]
    holder[last] = value
    assert not validator().is_valid(data)
    if key != "engine.stream":  # `run` refuses it, once it knows what the policy makes of its keys
        with pytest.raises(InputError):
            load(data)


def keys_of(schema: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Every key that a schema lists, with the way to it."""
    if isinstance(schema, list):
        for item in schema:
            yield from keys_of(item, way)
    elif isinstance(schema, dict):
        for key, inside in (schema.get("properties") or {}).items():
            if way[-1:] != ("if",):
                yield (*way, key), inside
        for key, inside in schema.items():
            yield from keys_of(inside, (*way, key))


def test_every_key_has_a_line_that_says_what_it_means() -> None:
    """By `doc(...)` in its annotation: a fragment, as a cell of a table."""
    for way, schema in keys_of(schema_of_scenarios()):
        key, text = ".".join(way), schema.get("description", "")
        assert text, f"{key} has no doc(...) in its annotation"
        assert re.match(r"[a-z0-9]|[A-Z]{2}|GPU|Poisson|Weibull", text), f"{key}: {text}"
        assert not text.endswith("."), f"{key}: {text}"
        assert len(text) <= 110, f"{key}: {text}"


def test_the_page_names_every_key_and_every_family_of_models() -> None:
    page = reference.page()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, flags=re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"\w+", row)} == {
        way[-1] for way, _ in keys_of(schema_of_scenarios())
    }
    assert f"{', '.join(_FAMILIES)}." in " ".join(page.split())
    for line in page.splitlines():
        assert "| None" not in line
        assert not re.search(r"scenarios\.|simulator\.", line)


def test_a_new_scenario_names_the_schema_from_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for options in ([], ["--out", "a"]):
        assert batchlab("new", "scenario", "mine", *options, cwd=tmp_path).code == 0
    for path in (tmp_path / "mine.yaml", tmp_path / "a" / "mine.yaml"):
        first, second = path.read_text(encoding="utf-8").splitlines()[:2]
        assert (path.parent / first.removeprefix(MODELINE)).resolve() == FILE
        assert second == "# batchlab run ./mine.yaml"
        json.dumps(as_json(read_yaml(path).data))
        validator().validate(as_json(read_yaml(path).data))
