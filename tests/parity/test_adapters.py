"""LoRA as vLLM's own scheduler decided it once: ours is the same, and each rule is needed for it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import PolicyError
from tests.mutations import change
from tests.parity.adapter_features import lora
from tests.parity.held import lines_of
from tests.parity.test_features import COLUMNS, is_noticed, recorded, same_steps

COLUMNS["lora"] = (*COLUMNS["cadence"], "adapters")
COLUMNS["hybrid"] = COLUMNS["cadence"]
OWN = Path(__file__).parent.parent / "data" / "adapter_rules.jsonl.gz"
RULES = "simulator.policies.chunked_prefill.adapters"
DRAFTED = "simulator.policies.chunked_prefill.drafted"
GROUPED = "simulator.policies.chunked_prefill.grouped"


def test_recorded_steps_are_decided_as_vllm_did() -> None:
    assert len(recorded("lora")) == 60
    assert all(same_steps("lora", item) for item in recorded("lora")[::3])


def test_runs_of_steps_change_nothing() -> None:
    for item in recorded("lora")[1::6]:
        assert lora(item["case"], fast_forward=True) == lora(item["case"], fast_forward=False)


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{RULES}:servable", "if lora is None or lora in in_use", "if True"),
        (f"{RULES}:servable", "if lora is None or lora in in_use", "if lora in in_use"),
        (f"{RULES}:servable", "if lora is None or lora in in_use", "if lora is None"),
        (f"{RULES}:servable", "len(in_use) < max_loras", "len(in_use) < max_loras - 1"),
        (f"{RULES}:servable", "set(view.running_loras)", "set()"),
        (f"{RULES}:servable", "                in_use.add(lora)", "                pass"),
        (f"{RULES}:servable", "    for request in view.waiting:", "    for request in list(view.waiting)[:1]:"),
    ],
)
def test_each_rule_of_adapters_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert is_noticed("lora")


def test_a_block_of_another_adapter_is_no_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    change(
        monkeypatch, "simulator.memory.block_keys:_of", "return name if lora is None else (lora, name)", "return name"
    )
    assert is_noticed("lora")


@cache
def own_cases(kind: str) -> Sequence[dict[str, Any]]:
    """Adapters on pipelines (`lora`) and beside KV groups (`hybrid`): small cases, as vLLM 0.33 decided them."""
    return [item for item in lines_of(OWN) if item["kind"] == kind]


def is_decided_otherwise(kind: str) -> bool:
    try:
        return not all(same_steps(kind, item) for item in own_cases(kind))
    except (AssertionError, LookupError, PolicyError):
        return True


@pytest.mark.parametrize(("kind", "cases"), [("lora", 3), ("hybrid", 3)])
def test_adapters_beside_other_parts_are_decided_as_vllm_did(kind: str, cases: int) -> None:
    assert len(own_cases(kind)) == cases
    assert not is_decided_otherwise(kind)


@pytest.mark.parametrize(
    ("kind", "place", "old", "new"),
    [
        ("lora", f"{DRAFTED}:_admit_next", "waiting = servable(view, limits.max_loras, ())", "pass"),
        (
            "lora",
            f"{DRAFTED}:_admit_next",
            "waiting = servable(view, limits.max_loras, ())",
            "waiting = list(waiting)[:1]",
        ),
        (
            "hybrid",
            f"{GROUPED}:_admit_next",
            "next(servable(view, limits.max_loras, ()), None) if limits.max_loras else head",
            "head",
        ),
    ],
)
def test_each_rule_beside_other_parts_is_needed(
    kind: str, place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, place, old, new)
    assert is_decided_otherwise(kind)
