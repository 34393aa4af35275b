"""Decisions of our engine on cases of LoRA, in the format of the recorded files."""

from collections.abc import Mapping
from typing import Any

from tests.parity.cases import decisions_of
from tests.parity.pipeline_features import with_ids


def lora(case: Mapping[str, Any], *, fast_forward: bool | None = None) -> list[dict[str, Any]]:
    """The steps of a replica that serves adapters, which are named by their numbers in the case."""
    count = len(case["requests"])
    fast = count % 2 == 0 if fast_forward is None else fast_forward
    steps = decisions_of(with_ids(case), fast_forward=fast, by_id=count % 3 == 0)
    return [{**step, "adapters": sorted(map(int, step["adapters"])), "t_end": step["t_end_s"]} for step in steps]
