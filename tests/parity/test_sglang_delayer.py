"""SGLang's own PrefillDelayer decided these cases: our decisions are the same, and each of its rules is needed."""

import importlib
from collections.abc import Iterator
from functools import cache

import pytest

from simulator.policies.sglang import prefill_delayer
from tests.parity.sglang_cases import Recorded, decisions_of, first_difference, recorded
from tests.parity.sglang_record import DELAYER_FILE, DELAYS
from tests.parity.test_features import broken

POLICY = "simulator.policies.sglang"


@cache
def kept() -> list[Recorded]:
    return list(recorded(DELAYER_FILE))


def differing(*, fast_forward: bool = True) -> Iterator[str]:
    """The cases that are decided otherwise, with the first difference."""
    for item in kept():
        different = first_difference(item.case, decisions_of(item.case, fast_forward=fast_forward), item.steps)
        if different is not None:
            yield f"seed {item.seed}, {different}"


@pytest.mark.parametrize("fast_forward", [True, False])
def test_recorded_cases_are_delayed_as_sglang_did(fast_forward: bool) -> None:
    assert len(kept()) == sum(map(len, DELAYS.values()))
    assert [*differing(fast_forward=fast_forward)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if low is not None and", "if False and"),
        ("view.num_free_blocks) / view.num_blocks < low", "view.num_free_blocks) / view.num_blocks <= 2 * low"),
        ("self._running < most or", "self._running <= most or"),
        ("max(delays.sizes, default=0)", "(delays.sizes or [0])[-1]"),
        ("WINDOW = 16", "WINDOW = 2"),
        ("if not delays.has_let_pass:", "if False:"),
        ("delayer.max_delay_passes - 1", "delayer.max_delay_passes"),
        ("delays.since_s if delays.passes else view.now_s", "view.now_s"),
        ("computed or min", "min"),
        ("min(max(waiting, 1), max(slots, 1))", "max(slots, 1)"),
        ("min(max(waiting, 1), max(slots, 1))", "max(waiting, 1)"),
        ("int(self._running * delayer.queue_min_ratio)", "round(self._running * delayer.queue_min_ratio)"),
        ("most if delayer.prefill_max_requests is None else delayer.prefill_max_requests", "most"),
        (">= min(int", "> min(int"),
        (", capacity)", ", 10**9)"),
        (">= allowed_ms", "> allowed_ms"),
        ("            return self._delays.over()\n", "            return self._delays\n"),
        ("return self._replace(passes=0, since_s=0.0) if self.passes else self", "return self"),
    ],
)
def test_each_rule_of_the_delayer_is_needed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken(f"{POLICY}.prefill_delayer", old, new)
    for name in ("holds_back", "end", "_negotiate", "_lacks_requests"):
        monkeypatch.setattr(prefill_delayer.DelayerPass, name, getattr(made.DelayerPass, name))
    monkeypatch.setattr(prefill_delayer.Delays, "over", made.Delays.over)
    assert any(differing())


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("prefill_adder", "self.delayer.holds_back()  # others", "pass  # others"),
        ("prefill_adder", "if len(self.chunks) >= self.max_requests:", "if False:"),
        ("step", " + mixed * view.num_decoding", ""),
        ("step", "_first_note(view, limits, note.delays.over())", "None"),
        ("step", "    elif note.delays.passes:\n", "    elif False:\n"),
        ("step", "view.decode_steps + bool(stay), 0, note.delays)", "view.decode_steps + bool(stay))"),
    ],
)
def test_each_place_where_it_is_asked_is_needed(
    module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = broken(f"{POLICY}.{module}", old, new)
    step = made if module == "step" else broken(f"{POLICY}.step", "_ARRIVAL: Final", "_ARRIVAL: Final")
    if module == "prefill_adder":
        monkeypatch.setattr(step, "PrefillAdder", made.PrefillAdder)
    monkeypatch.setattr(importlib.import_module(POLICY), "step", step.step)
    assert any(differing())
