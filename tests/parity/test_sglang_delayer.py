"""SGLang's own PrefillDelayer decided these cases: our decisions are the same."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.parity.sglang_cases import Recorded, decisions_of, first_difference, recorded
from tests.parity.sglang_record import DELAYER_FILE, KINDS, OF_EACH


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
    assert len(kept()) == OF_EACH * len(KINDS)
    assert [*differing(fast_forward=fast_forward)] == []
