"""Scenarios from files, names and mappings; overrides; and back to YAML."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from scenarios.schema import loader
from scenarios.schema.loader import dump, load, shipped
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.yaml_source import parse_mapping
from scenarios.schema.trace import TraceWorkload
from simulator.errors import InputError
from tests.examples import examples
from tests.shared_data import shared_for

TEXT = """\
seed: 3
workload:
  requests: 10
  classes:
    - name: chat
      arrival: {process: poisson, rate: 6}
      input: {dist: lognormal, median: 350, p99: 4000, max: 8192}
      output: {dist: empirical, quantiles: {0.05: 41, 0.5: 129, 1.0: 1000}}
    - name: batch
      arrival: {process: gamma, rate: 1, cv: 2, profile: [[0, 1], [60, 2.5]]}
      input: {dist: uniform, min: 5, max: 9}
      output: {dist: fixed, value: 10}
      priority: 5
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "rush hour (1).yaml"
    found.write_text(TEXT, encoding="utf-8")
    return found


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is not the scenario's folder."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


# ------------------------------------------------------------------------------------------------------------- sources


def test_a_path_a_text_and_a_mapping_give_the_same(path: Path) -> None:
    data = parse_mapping(TEXT, "x").data
    assert isinstance(data, dict)
    found = load(path)
    assert found.name == "rush-hour-1"
    assert found == load(str(path)) == load({**data, "name": "rush-hour-1"}) == load(found)
    assert found.base_dir == path.parent
    assert load(data).name == "scenario"


def test_a_mapping_may_hold_what_python_has(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.touch()
    found = load({"seed": np.int64(4), "slo": {"ttft_ms": np.float32(0.5)}, "workload": {"trace": {"path": trace}}})
    assert found.seed == 4
    assert found.slo is not None
    assert found.slo.ttft_ms == 0.5
    assert isinstance(found.workload, TraceWorkload)
    assert found.workload.path == trace
    classes = ({"name": "a", "input": {"dist": "fixed", "value": 1}, "output": {"dist": "fixed", "value": 1}},)
    arrival = {"process": "poisson", "rate": 1}
    assert load({"workload": {"requests": 1, "arrival": arrival, "classes": classes}}).name == "scenario"


def test_loading_changes_no_mapping_of_the_callers() -> None:
    data = parse_mapping(TEXT, "x").data
    assert isinstance(data, dict)
    load(data, ["workload.classes.0.priority=7", "seed=9"])
    assert data == parse_mapping(TEXT, "x").data


def test_shipped_scenarios_load_by_name() -> None:
    assert {"quickstart", "long-tail", "memory-pressure", "priorities", "chunk-size"} <= set(shipped())
    for name in shipped():
        assert load(name, check_files=False).name == name


def test_a_name_comes_before_a_file_and_a_path_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    monkeypatch.setattr(loader, "_LIBRARY", tmp_path / "library")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "demo.yaml").write_text(f"name: shipped\n{TEXT}", encoding="utf-8")
    (tmp_path / "demo").write_text(f"name: local\n{TEXT}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load("demo").name == "shipped"
    assert load("./demo").name == "local"
    assert load(path.name).name == "rush-hour-1"


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("quikstart", ["'quikstart'", "did you mean `quickstart`?", "memory-pressure"]),
        ("zzz", ["'zzz'", "shipped scenarios: "]),
        ("quickstart.yaml", ["quickstart.yaml: no such file", "is called `quickstart`"]),
        ("./absent.yaml", ["./absent.yaml: no such file"]),
        ("no/such/folder/x.yml", ["no such file"]),
        (".", ["is a folder"]),
        ("a\0b", ["no shipped scenario and no file is called"]),
        ("x" * 5000, ["no shipped scenario and no file is called"]),
        ("y/" + "x" * 5000, ["no such file"]),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_a_scenario_that_is_not_there(source: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load(source)
    for part in parts:
        assert part in str(caught.value)


def test_a_misspelt_file_names_its_neighbour(path: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean .*rush hour \(1\)\.yaml"):
        load(str(path.parent / "rush_hour.yaml"))


def test_what_is_no_source_at_all() -> None:
    with pytest.raises(InputError, match="a path, a name or a mapping, not 5"):
        load(5)  # type: ignore[arg-type] # wrong on purpose


# ----------------------------------------------------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("seed=7", lambda s: s.seed, 7),
        ("slo.ttft_ms=2.5e2", lambda s: s.slo.ttft_ms, 250.0),
        ("slo={ttft_ms: 1, tpot_ms: 2}", lambda s: s.slo.tpot_ms, 2.0),
        ("engine.policy=static", lambda s: s.engine.policy, "static"),
        ("engine.stream=false", lambda s: s.engine.stream, False),
        ("workload.classes.1.priority=-2", lambda s: s.workload.classes[1].priority, -2),
        ("workload.classes.batch.priority=8", lambda s: s.workload.classes[1].priority, 8),
        (
            "workload.classes.chat.output.quantiles.0.5=200",
            lambda s: s.workload.classes[0].output.quantiles[0.5],
            200.0,
        ),
        ("workload.requests=1_000", lambda s: s.workload.requests, 1000),
        ("name=a=b", None, None),
        ("name= spaced name ", lambda s: s.name, "spaced name"),
        ("cost={kind: linear, base_s: 1e-3, per_token_s: 0, per_context_token_s: 0}", lambda s: s.cost.base_s, 1e-3),
        ("hardware.num_gpu_blocks=", lambda s: s.hardware.num_gpu_blocks, None),
    ],
)
def test_an_override_sets_one_value(path: Path, override: str, read: Any, value: object) -> None:
    if read is None:
        with pytest.raises(InputError, match="--set"):
            load(path, [override])
        return
    found = read(load(path, [override]))
    assert found == value
    assert type(found) is type(value)


def test_overrides_apply_in_order(path: Path) -> None:
    found = load(path, ["slo.ttft_ms=1", "slo={tpot_ms: 3}", "slo.tpot_ms=4"])
    assert found.slo is not None
    assert found.slo.model_dump() == {"ttft_ms": None, "tpot_ms": 4.0, "e2el_ms": None}


def test_an_override_mends_the_file(path: Path) -> None:
    path.write_text(TEXT.replace("seed: 3", "seed: three"), encoding="utf-8")
    with pytest.raises(InputError, match=":1:1: seed: must be a whole number"):
        load(path)
    assert load(path, ["seed=3"]).seed == 3


def test_an_override_by_a_class_name_is_blamed(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(path, ["workload.classes.batch.arrival.cv=-1"])
    assert caught.value.file == "--set workload.classes.batch.arrival.cv=-1"
    assert caught.value.message.startswith("workload.classes.1.arrival.cv: must be")


def test_an_override_that_another_replaces_is_not_blamed(path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(path, ["slo.ttft_ms=1", "slo={ttft_ms: -1}"])
    assert caught.value.file == "--set slo={ttft_ms: -1}"


# --------------------------------------------------------------------------------------------------------------- paths


def test_paths_count_from_the_file_and_those_of_overrides_from_here(tmp_path: Path, elsewhere: Path) -> None:
    for folder in (tmp_path, elsewhere):
        (folder / "t.csv").touch()
        (folder / "mine.py").touch()
    path = tmp_path / "s.yaml"
    path.write_text("workload: {trace: {path: t.csv}}\nengine: {policy: 'mine.py:Mine'}\n", encoding="utf-8")

    def paths(*overrides: str) -> tuple[Path, Path]:
        found = load(os.path.relpath(path), overrides)
        assert isinstance(found.workload, TraceWorkload)
        assert found.engine.policy_file is not None
        return found.workload.path, found.engine.policy_file

    assert paths() == (tmp_path / "t.csv", tmp_path / "mine.py")
    assert paths("workload.trace.path=t.csv") == (elsewhere / "t.csv", tmp_path / "mine.py")
    assert paths("workload.trace={path: t.csv}") == (elsewhere / "t.csv", tmp_path / "mine.py")
    assert paths("engine.policy=./mine.py:Mine") == (tmp_path / "t.csv", elsewhere / "mine.py")
    again = parse_mapping(dump(load(path)), "x").data
    assert isinstance(again, dict)
    assert load(again) == load(path)


def test_files_need_not_be_there_if_nobody_reads_them(tmp_path: Path) -> None:
    data = {"workload": {"trace": {"path": str(tmp_path / "gone.csv")}}}
    with pytest.raises(InputError, match=r"workload\.trace\.path: no such file"):
        load(data)
    assert load(data, check_files=False).name == "scenario"


def test_a_later_error_still_has_its_place(path: Path) -> None:
    found = load(path, ["engine.order=priority"])
    error = found.error("workload.classes.1.priority", "too low", "raise it")
    assert str(error) == f"{path}:13:7: workload.classes.1.priority: too low\n  raise it"
    assert found.error("engine.order", "not used").file == "--set engine.order=priority"
    assert found.error("replicas", "too few").file == str(path)


# ---------------------------------------------------------------------------------------------------------------- dump


def test_dump_shows_every_default_and_loads_back(path: Path, tmp_path: Path) -> None:
    found = load(path, ["slo.ttft_ms=1e-5"])
    text = dump(found)
    for line in ("  watermark: 0.0", "router: round_robin", "  gpu: h200", "  warmup_s: 0.0", "  ttft_ms: 1.0e-05"):
        assert line in text.splitlines()
    copy = tmp_path / "copy.yaml"
    copy.write_text(text, encoding="utf-8")
    assert load(copy) == found
    assert dump(load(copy)) == text


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_survive_a_dump(name: str) -> None:
    shared_for(name)
    data = parse_mapping(dump(load(name)), "x").data
    assert isinstance(data, dict)
    assert load(data) == load(name)


_words = st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp")), max_size=8)
_tricky = st.sampled_from(
    ["1e5", "on", "null", "~", "", "0x1F", "0o7", "1_0", "12:30", "true", ".inf", "- a", "a: b", "<<"]
)
_numbers = st.floats(1e-12, 1e6, allow_subnormal=False)


@examples(150, deadline=None)
@given(
    extra=st.dictionaries(
        st.from_regex(r"[a-z]{3,8}_x", fullmatch=True),
        _words | _tricky | _numbers | st.none() | st.booleans(),
        max_size=4,
    ),
    ttft_ms=_numbers,
    seed=st.integers(0, 2**63 - 1),
    quantiles=st.dictionaries(st.floats(0, 1), st.just(10.0), min_size=2, max_size=5),
)
def test_any_scenario_survives_a_dump(
    extra: dict[str, object], ttft_ms: float, seed: int, quantiles: dict[float, float]
) -> None:
    entry = {
        "name": "a",
        "arrival": {"process": "poisson", "rate": 1},
        "input": {"dist": "empirical", "quantiles": quantiles},
        "output": {"dist": "fixed", "value": 1},
    }
    found = load(
        {
            "seed": seed,
            "slo": {"ttft_ms": ttft_ms},
            "workload": {"requests": 1, "classes": [entry]},
            "engine": {"policy": "/p.py:P", **extra},
        },
        check_files=False,
    )
    text = dump(found)
    data = parse_mapping(text, "x").data
    assert isinstance(data, dict)
    again = load(data, check_files=False)
    assert again == found
    assert dump(again) == text
    assert again.engine.given() == found.engine.given()


# ------------------------------------------------------------------------------------------------------------- anything


def _places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


_PLACES = [place for place in _places(parse_mapping(TEXT, "x").data) if place]
_JUNK = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from([[], {}, [1], {"a": 1}, "5ms", "yes", "poisson", "trace", 10**30, {0.5: 1}, [[1, 2], [0, "x"]]])
)


@examples(300, deadline=None)
@given(data=st.data())
def test_whatever_a_file_holds_it_loads_or_is_refused_with_a_place(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = parse_mapping(TEXT, "x").data
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(_PLACES))
        holder: Any = document
        try:
            for key in place[:-1]:
                holder = holder[key]
            change = data.draw(st.sampled_from(["replace", "remove", "add"]))
            if change == "replace":
                holder[place[-1]] = data.draw(_JUNK)
            elif change == "remove":
                del holder[place[-1]]
            elif isinstance(holder, dict):
                holder[data.draw(st.text(max_size=3) | st.sampled_from(["trace", "cv", "min", "rate_ms"]))] = 1
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(yaml.dump(document, Dumper=loader._Dumper), encoding="utf-8")
    try:
        outcome: object = load(path)
    except InputError as error:
        outcome = (error.file, error.line is not None, error.column is not None)
    assert isinstance(outcome, Scenario) or outcome == (str(path), True, True)
