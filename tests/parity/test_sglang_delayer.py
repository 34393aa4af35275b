"""SGLang's own PrefillDelayer decided these cases: our decisions are the same, and each of its rules is needed."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.mutations import change
from tests.parity.sglang_cases import Recorded, decisions_of, first_difference, recorded
from tests.parity.sglang_record import DELAYER_FILE, DELAYS

DELAYER = "simulator.policies.sglang.next_batch_to_run"
ADDER = "simulator.policies.sglang.next_batch_to_run"
STEP = "simulator.policies.sglang.next_batch_to_run"


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
    ("place", "old", "new"),
    [
        (f"{DELAYER}:DelayerPass._negotiate", "if low is not None and", "if False and"),
        (
            f"{DELAYER}:DelayerPass._negotiate",
            "view.num_free_blocks) / view.num_blocks < low",
            "view.num_free_blocks) / view.num_blocks <= 2 * low",
        ),
        (f"{DELAYER}:DelayerPass._negotiate", "self._running < most or", "self._running <= most or"),
        (f"{DELAYER}:DelayerPass._negotiate", "max(delays.sizes, default=0)", "(delays.sizes or [0])[-1]"),
        (f"{DELAYER}:WINDOW", "16", "2"),
        (f"{DELAYER}:DelayerPass._negotiate", "if not delays.has_let_pass:", "if False:"),
        (f"{DELAYER}:DelayerPass._negotiate", "delayer.max_delay_passes - 1", "delayer.max_delay_passes"),
        (f"{DELAYER}:DelayerPass._negotiate", "delays.since_s if delays.passes else view.now_s", "view.now_s"),
        (f"{DELAYER}:DelayerPass.end", "computed or min", "min"),
        (f"{DELAYER}:DelayerPass.end", "min(max(waiting, 1), max(slots, 1))", "max(slots, 1)"),
        (f"{DELAYER}:DelayerPass.end", "min(max(waiting, 1), max(slots, 1))", "max(waiting, 1)"),
        (
            f"{DELAYER}:DelayerPass._lacks_requests",
            "int(self._running * delayer.queue_min_ratio)",
            "round(self._running * delayer.queue_min_ratio)",
        ),
        (
            f"{DELAYER}:DelayerPass._lacks_requests",
            "most if delayer.prefill_max_requests is None else delayer.prefill_max_requests",
            "most",
        ),
        (f"{DELAYER}:DelayerPass._lacks_requests", ">= min(int", "> min(int"),
        (f"{DELAYER}:DelayerPass._lacks_requests", ", capacity)", ", 10**9)"),
        (f"{DELAYER}:DelayerPass._lacks_requests", ">= allowed_ms", "> allowed_ms"),
        (f"{DELAYER}:DelayerPass.end", "            return self._delays.over()\n", "            return self._delays\n"),
        (
            f"{DELAYER}:Delays.over",
            "return self._replace(passes=0, since_s=0.0) if self.passes else self",
            "return self",
        ),
    ],
)
def test_each_rule_of_the_delayer_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert any(differing())


@pytest.mark.parametrize(
    ("place", "old", "new"),
    [
        (f"{ADDER}:PrefillAdder.continue_prompt", "self.delayer.holds_back()  # others", "pass  # others"),
        (f"{ADDER}:PrefillAdder.admit", "if len(self.chunks) >= self.max_requests:", "if False:"),
        (f"{STEP}:_prefill", " + mixed * view.num_decoding", ""),
        (f"{STEP}:step", "_first_note(view, limits, note.delays.over())", "None"),
        (f"{STEP}:step", "    elif note.delays.passes:\n", "    elif False:\n"),
        (f"{STEP}:_retract", "view.decode_steps + bool(stay), 0, note.delays)", "view.decode_steps + bool(stay))"),
    ],
)
def test_each_place_where_it_is_asked_is_needed(
    place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, place, old, new)
    assert any(differing())
