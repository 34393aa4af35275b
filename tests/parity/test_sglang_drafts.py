"""SGLang's own scheduler decided these cases with drafts: our decisions are the same, and the rules are needed."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.mutations import change
from tests.parity import held
from tests.parity.sglang_cases import Recorded, decisions_of, first_difference, recorded
from tests.parity.sglang_record import DRAFTS, DRAFTS_FILE


@cache
def kept() -> list[Recorded]:
    return list(recorded(DRAFTS_FILE))


def differing(*, fast_forward: bool = True) -> Iterator[str]:
    """The cases that are decided otherwise, with the first difference."""

    def difference(item: Recorded) -> str | None:
        return first_difference(item.case, decisions_of(item.case, fast_forward=fast_forward), item.steps)

    return held.differences(kept(), difference)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_recorded_cases_are_decided_as_sglang_did(fast_forward: bool) -> None:
    assert len(kept()) == sum(map(len, DRAFTS.values()))
    assert [*differing(fast_forward=fast_forward)] == []


AHEAD = "simulator.speculative"
PART = "simulator.engine.parts.ahead"
STEP = "simulator.policies.sglang.next_batch_to_run"
RULES = [
    # the memory of a decode step
    (f"{AHEAD}:tokens_ahead", "2 * max(steps * branches, verified)", "max(steps * branches, verified)"),
    (f"{AHEAD}:tokens_ahead", "2 * max(steps * branches, verified)", "2 * max(steps, verified)"),
    (f"{AHEAD}:tokens_ahead", "2 * max(steps * branches, verified)", "2 * steps * branches"),
    (f"{AHEAD}:tokens_ahead", "2 * max(cdiv(page_size - 1 + steps, page_size)", "2 * max(cdiv(steps, page_size)"),
    (f"{AHEAD}:tokens_ahead", "* page_size * branches, verified)", "* page_size, verified)"),
    (f"{AHEAD}:tokens_ahead", "page_size == 1 or branches == 1", "page_size == 1"),
    (f"{AHEAD}:tokens_ahead", "page_size == 1 or branches == 1", "True"),
    (f"{PART}:take_ahead", "owned = max(live.reserved_tokens, live.base_computed)", "owned = live.base_computed"),
    (f"{PART}:AheadBatch.blocks_needed",
     "cdiv(live.base_computed + ahead, size)", "cdiv(live.base_computed + 1, size)"),
    (f"{PART}:take_ahead", "(len(decoders) if size > 1 else 0)", "0"),
    (f"{PART}:take_ahead", "cdiv(tokens, size) + (", "needed + ("),
    # retraction
    (f"{STEP}:_blocks_to_decode", "if view.drafting is None:", "if True:"),
    (f"{STEP}:_blocks_to_decode", "size), size) - request.num_blocks", "size), size) - request.num_blocks - 1"),
    (f"{PART}:AheadResults.forget",
     "step.scheduled = [part for part in step.scheduled if part.live is not live]", "pass"),
    (f"{PART}:AheadResults.forget", "part.live.in_flight_tokens = 0", "pass"),
    # results
    (f"{PART}:AheadResults.next_is",
     "live.base_outputs + 1 >= live.max_tokens", "live.base_outputs >= live.max_tokens"),
    (f"{PART}:AheadResults.next_is",
     "live.base_outputs + 1 >= live.max_tokens", "live.base_outputs + 2 >= live.max_tokens"),
    (f"{PART}:AheadResults._commit",
     "min(live.base_computed + returned, live.num_tokens)", "live.base_computed + returned - 1"),
    (f"{PART}:AheadResults._commit", "min(live.base_computed + returned, live.num_tokens)", "live.base_computed"),
    (f"{PART}:AheadResults._commit", "tokens = min(returned, left)", "tokens = 1"),
    (f"{PART}:AheadResults._commit", "elif part.drafts:", "else:"),
    # steps
    (f"{PART}:AheadPlans.apply", "1 if prompts else self._verified", "self._verified"),
    (f"{PART}:AheadPlans.apply", "part.computed += live.in_flight_tokens", "pass"),
    (f"{PART}:Ahead.launch", "self._state.decode_clock.ticks += 1", "pass"),
    (f"{PART}:Ahead.launch_part", "min(accepted, self._most_accepted)", "min(accepted, part.drafts)"),
    (f"{PART}:Ahead.launch_part", "state.cut = live", "pass"),
    (f"{AHEAD}:most_accepted",
     "min(config.num_speculative_tokens, verified_tokens(config) - 1)", "config.num_speculative_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "old", "new"), RULES)
def test_each_rule_is_needed(place: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, place, old, new)
    assert next(differing(), None) is not None
