"""A cost model of the user's own: what it must have, and what is said of one that is wrong."""

from pathlib import Path

import pytest

import scenarios
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.timing.cost import StepShape
from simulator.timing.own_cost import OwnCost, load_own_cost

SHAPE = StepShape(3, 300)


def own(folder: Path, body: str, **parameters: object) -> OwnCost:
    """Load a class of this body."""
    text = f"from dataclasses import dataclass\n@dataclass\nclass Mine:\n{body}"
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return load_own_cost("mine.py:Mine", parameters, MODELS["llama-3.1-8b"], GPUS["h200"], 2, folder)


LINEAR = (
    "    per_token_s: float = 0.5\n    def step_s(self, shape):\n        return 1 + self.per_token_s * shape.context\n"
)


def test_a_run_of_steps_is_its_steps(tmp_path: Path) -> None:
    cost = own(tmp_path, LINEAR, per_token_s=0.25)
    assert cost.step_s(SHAPE) == 76.0
    assert cost.step_s(StepShape(0, 0)) == 0.0
    assert cost.decode_run_s(SHAPE, 3) == [cost.step_s(SHAPE.later(step)) for step in range(3)]
    assert not cost.wants_context_stats


def test_it_is_told_the_model_and_the_gpus(tmp_path: Path) -> None:
    body = "    def start(self, model, gpu, ranks):\n        self.s = model.layers * ranks\n"
    assert own(tmp_path, f"{body}    def step_s(self, shape):\n        return self.s\n").step_s(SHAPE) == 64.0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    x: int = 0\n", "Mine is no cost model"),
        ("    def step_s(self, shape):\n        return -1.0\n", "a step takes -1.0 s"),
        ("    def step_s(self, shape):\n        return 0.0\n", "finite seconds above 0"),
        ("    def step_s(self, shape):\n        return None\n", "a step takes None s"),
        ("    def start(self, model, gpu, ranks):\n        1 / 0\n    def step_s(self, s): ...\n", "ZeroDivisionError"),
        (f"{LINEAR}    def decode_run_s(self, shape, repeat):\n        return [9.0] * repeat\n", "step_s differ"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(body: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as caught:
        own(tmp_path, body).decode_run_s(SHAPE, 2)
    assert "mine.py" in str(caught.value)


def test_unknown_parameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not use 'per_tokens_s'"):
        own(tmp_path, LINEAR, per_tokens_s=1.0)


def test_in_a_scenario(tmp_path: Path) -> None:
    """Its path is relative to the scenario's file, fast-forward changes nothing, and an error names file and line."""
    own(tmp_path, LINEAR.replace("0.5", "1e-5"))
    path = tmp_path / "s.yaml"
    path.write_text(
        "workload: {preset: chat, rate: 2, requests: 20}\ncost: {kind: ./mine.py:Mine, per_token_s: 1.0e-6}\n",
        encoding="utf-8",
    )
    scenario = scenarios.load(path)
    result = scenarios.run(scenario)
    assert result.summary == scenarios.run(scenario, fast_forward=False).summary
    assert result.summary["provenance"]["cost"] == {"kind": "mine.py:Mine", "error": "given"}
    assert scenarios.load(result.save(tmp_path / "run") / "scenario.yaml") == scenario
    own(tmp_path, "    per_token_s: float = 0.0\n    def step_s(self, shape):\n        raise KeyError('x')\n")
    with pytest.raises(InputError, match=r"mine.py:6: KeyError: 'x'"):
        scenarios.run(scenarios.load(path))
    path.write_text("workload: {preset: chat, rate: 2, requests: 20}\ncost: {kind: ./mane.py:Mine}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cost.kind: no such file(.|\n)*did you mean mine.py"):
        scenarios.load(path)
