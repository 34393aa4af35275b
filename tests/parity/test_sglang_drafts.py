"""SGLang's own scheduler decided these cases with drafts: our decisions are the same, and the rules are needed."""

import importlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from simulator.engine.parts import ahead
from simulator.policies import sglang
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


AHEAD, BATCH, RESULTS = "speculative.ahead", "engine.speculative.ahead_batch", "engine.speculative.ahead_results"
REPLICA, STEP = "engine.speculative.ahead_replica", "policies.sglang.step"
RULES = [
    # the memory of a decode step
    (AHEAD, "2 * max(steps * branches, verified)", "max(steps * branches, verified)"),
    (AHEAD, "2 * max(steps * branches, verified)", "2 * max(steps, verified)"),
    (AHEAD, "2 * max(steps * branches, verified)", "2 * steps * branches"),
    (AHEAD, "2 * max(cdiv(page_size - 1 + steps, page_size)", "2 * max(cdiv(steps, page_size)"),
    (AHEAD, "* page_size * branches, verified)", "* page_size, verified)"),
    (AHEAD, "page_size == 1 or branches == 1", "page_size == 1"),
    (AHEAD, "page_size == 1 or branches == 1", "True"),
    (BATCH, "owned = max(live.reserved_tokens, live.base_computed)", "owned = live.base_computed"),
    (BATCH, "cdiv(live.base_computed + ahead, size)", "cdiv(live.base_computed + 1, size)"),
    (BATCH, "(len(decoders) if size > 1 else 0)", "0"),
    (BATCH, "cdiv(tokens, size) + (", "needed + ("),
    # retraction
    (STEP, "if view.drafting is None:", "if True:"),
    (STEP, "size), size) - request.num_blocks", "size), size) - request.num_blocks - 1"),
    (RESULTS, "step.scheduled = [part for part in step.scheduled if part.live is not live]", "pass"),
    (RESULTS, "part.live.in_flight_tokens = 0", "pass"),
    # results
    (RESULTS, "live.base_outputs + 1 >= live.max_tokens", "live.base_outputs >= live.max_tokens"),
    (RESULTS, "live.base_outputs + 1 >= live.max_tokens", "live.base_outputs + 2 >= live.max_tokens"),
    (RESULTS, "min(live.base_computed + returned, live.num_tokens)", "live.base_computed + returned - 1"),
    (RESULTS, "min(live.base_computed + returned, live.num_tokens)", "live.base_computed"),
    (RESULTS, "tokens = min(returned, left)", "tokens = 1"),
    (RESULTS, "elif part.drafts:", "else:"),
    # steps
    (REPLICA, "self._verified if verifies else 1", "self._verified"),
    (REPLICA, "part.computed += live.in_flight_tokens", "pass"),
    (REPLICA, "clock.ticks += 1", "pass"),
    (REPLICA, "min(accepted, self._most_accepted)", "min(accepted, part.drafts)"),
    (REPLICA, "state.cut = live", "pass"),
    (AHEAD, "min(config.num_speculative_tokens, verified_tokens(config) - 1)", "config.num_speculative_tokens"),
]  # fmt: skip

# Where each module's parts are taken from. The package has a function of the name of this module.
sglang_step = importlib.import_module("simulator.policies.sglang.step")
PARTS: dict[str, list[tuple[Any, str]]] = {
    AHEAD: [(ahead, "tokens_ahead"), (ahead, "most_accepted"), (sglang_step, "tokens_ahead")],
    BATCH: [(ahead, "AheadBatch"), (ahead, "take_ahead")],
    RESULTS: [(ahead, "AheadResults")],
    REPLICA: [(ahead, "AheadReplica")],
    STEP: [(sglang, "step")],
}


@pytest.mark.parametrize(("module", "old", "new"), RULES)
def test_each_rule_is_needed(module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held.change_rule(monkeypatch, module, old, new, PARTS[module])
    assert next(differing(), None) is not None
