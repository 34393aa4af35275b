"""`model: path/to/config.json` in a scenario, and on the command line."""

import json
from pathlib import Path

import pytest

from scenarios.assembly.replica_parts import build
from scenarios.schema.loader import dump, load
from simulator.errors import InputError
from simulator.hardware.models import find_model
from simulator.timing.cost import StepShape
from tests.command import batchlab
from tests.simulator.hardware.published_configs import CONFIGS

LENGTH = {"dist": "fixed", "value": 8}
CHAT = {"name": "chat", "arrival": {"process": "constant", "rate": 1}, "input": LENGTH, "output": LENGTH}
WORKLOAD = {"requests": 2, "classes": [CHAT]}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config.json of four layers, in a folder called Tiny."""
    path = tmp_path / "models" / "Tiny" / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**CONFIGS["llama-3.1-8b"], "num_hidden_layers": 4}))
    return path


def scenario_file(folder: Path, model: str) -> Path:
    path = folder / "s.yaml"
    path.write_text(f"model: {model}\nworkload: {json.dumps(WORKLOAD)}\n")
    return path


def test_a_model_is_read_from_a_config_beside_the_scenario(config: Path, tmp_path: Path) -> None:
    scenario = load(scenario_file(tmp_path, "models/Tiny/config.json"))
    model = scenario.resolve_model()
    assert (model.name, model.layers, model.kv_bytes_per_token()) == ("Tiny", 4, 16 * 1024)
    text = dump(scenario)
    config.unlink()
    (tmp_path / "again.yaml").write_text(text)
    assert load(tmp_path / "again.yaml").resolve_model() == model, "a run folder does not need the file"


def test_a_config_is_changed_by_a_mapping(config: Path, tmp_path: Path) -> None:
    path = scenario_file(tmp_path, "{base: models/Tiny/config.json, kv_dtype_bytes: 1}")
    model = load(path).resolve_model()
    assert (model.name, model.layers, model.kv_dtype_bytes) == ("Tiny (changed)", 4, 1)


def test_the_config_of_a_built_in_model_finds_its_profile(config: Path, tmp_path: Path) -> None:
    config.write_text(json.dumps(CONFIGS["llama-3.1-8b"]))
    scenario = load(scenario_file(tmp_path, str(config)), ["cost={kind: profile}", "hardware.gpu=h200"])
    assert build(scenario).cost.step_s(StepShape(1, 100)) > 0


def test_an_override_names_a_config_from_the_working_directory(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(config.parent)
    assert load(scenario_file(tmp_path, "gpt2"), ["model=config.json"]).resolve_model().name == "Tiny"


@pytest.mark.parametrize(
    ("model", "place", "said"),
    [
        ("models/absent.json", "s.yaml:1:1: model: cannot read", "No such file"),
        ("models/window.json", "s.yaml:1:1: model: config.json: sliding_window 4096", "set sliding_window to null"),
        ("{base: models/window.json}", "s.yaml:1:9: model.base: config.json: sliding_window", "null"),
        ("{base: models/Tiny/config.json, layers: few}", "s.yaml:1:40: model.layers: layers must be", "whole number"),
    ],
)
def test_a_config_that_is_refused_is_named_with_its_place(
    model: str, place: str, said: str, config: Path, tmp_path: Path
) -> None:
    window = {**CONFIGS["mistral-7b"], "sliding_window": 4096}
    (tmp_path / "models" / "window.json").write_text(json.dumps(window))
    with pytest.raises(InputError) as caught:
        load(scenario_file(tmp_path, model))
    assert place in str(caught.value)
    assert said in str(caught.value)


def test_kv_takes_a_config(config: Path) -> None:
    done = batchlab("kv", "--model", "config.json", "--gpu", "h200", "--json", cwd=config.parent)
    found = json.loads(done.out)
    assert (found["model"], found["kv_bytes_per_token"]) == ("Tiny", 16 * 1024)
    assert found["parameters"] < find_model("llama-3.1-8b").num_parameters
    config.write_text("{}")
    done = batchlab("kv", "--model", "config.json", "--gpu", "h200", cwd=config.parent)
    assert done.code == 2
    assert "config.json: no model_type" in done.err
