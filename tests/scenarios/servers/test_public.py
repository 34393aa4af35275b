"""Published commands and manifests: what comes out of each, and what is refused."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import scenarios
from scenarios.from_server import Found, make
from scenarios.servers.sources import choose, read_source
from simulator.errors import InputError
from tests.scenarios.servers.public import CASES, Case


def found(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Found:
    monkeypatch.chdir(folder)
    for name, text in case.files.items():
        (folder / name).write_text(text)
    source = case.text
    if case.suffix:
        source = f"source{case.suffix}"
        (folder / source).write_text(case.text)
    start, _ = choose(read_source(source), None)
    return make([start], gpu=case.gpu)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_published_source_becomes_a_scenario_or_is_refused(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.refused:
        with pytest.raises(InputError) as error:
            found(case, tmp_path, monkeypatch)
        assert case.refused in error.value.message
        return
    result = found(case, tmp_path, monkeypatch)
    assert result.read.unknown == {}
    data = yaml.safe_load(result.text())
    flat = {key: value for key, value in data.items() if not isinstance(value, dict) or key == "model"}
    flat |= {f"{section}.{key}": value for section in ("hardware", "engine") for key, value in data[section].items()}
    resolved = scenarios.load(data)
    assert resolved == result.scenario
    for key, value in case.expected.items():
        section, _, name = key.partition(".")
        assert flat.get(key, resolved.resolved()[section] if not name else resolved.resolved()[section][name]) == value
    left = " ".join(result.read.not_modelled)
    assert all(flag in left for flag in case.left)
    for line in result.text().splitlines()[1:]:
        assert "#" in line or line in ("hardware:", "engine:"), "each key says where it was taken"


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*way, key)
        yield from places(inner, (*way, key))


@pytest.mark.parametrize("case", [case for case in CASES if case.suffix], ids=lambda case: case.name)
def test_a_manifest_with_anything_in_any_place_is_read_or_refused(case: Case, tmp_path: Path) -> None:
    """Others' rules for a manifest are not checked here: what cannot be a server is left out, or is an InputError."""
    file = tmp_path / "a.yaml"
    documents = list(yaml.safe_load_all(case.text))
    others = (None, 3, "x", [None], {"a": None})
    for number, way in enumerate(places(documents)):
        changed = copy.deepcopy(documents)
        holder: Any = changed
        for key in way[:-1]:
            holder = holder[key]
        holder[way[-1]] = others[number % len(others)]
        file.write_text(yaml.safe_dump_all(changed))
        with suppress(InputError):
            read_source(str(file))
