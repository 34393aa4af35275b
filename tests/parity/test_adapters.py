"""LoRA as vLLM's own scheduler decided it once: ours is the same, and each rule is needed for it."""

from importlib import import_module

import pytest

from tests.parity.adapter_features import lora
from tests.parity.test_features import COLUMNS, broken, is_noticed, recorded, same_steps, source_of

COLUMNS["lora"] = (*COLUMNS["cadence"], "adapters")
RULES = "simulator.policies.chunked_prefill.adapters"


def test_recorded_steps_are_decided_as_vllm_did() -> None:
    assert len(recorded("lora")) == 60
    assert all(same_steps("lora", item) for item in recorded("lora")[::3])


def test_runs_of_steps_change_nothing() -> None:
    for item in recorded("lora")[1::6]:
        assert lora(item["case"], fast_forward=True) == lora(item["case"], fast_forward=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if lora is None or lora in in_use", "if True"),
        ("if lora is None or lora in in_use", "if lora in in_use"),
        ("if lora is None or lora in in_use", "if lora is None"),
        ("len(in_use) < max_loras", "len(in_use) < max_loras - 1"),
        ("set(view.running_loras)", "set()"),
        ("                in_use.add(lora)", "                pass"),
        ("    for request in view.waiting:", "    for request in list(view.waiting)[:1]:"),
    ],
)
def test_each_rule_of_adapters_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("simulator.policies.chunked_prefill.step")  # the package has a function of this name
    monkeypatch.setattr(module, "servable", broken(RULES, old, new).servable)
    assert is_noticed("lora")


def test_a_block_of_another_adapter_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    source_of("simulator.memory.block_keys")
    monkeypatch.setattr("simulator.memory.block_keys._of", lambda lora, name: name)
    assert is_noticed("lora")
