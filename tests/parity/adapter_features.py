"""Decisions of our engine on cases of LoRA, in the format of the recorded files."""

from collections.abc import Mapping
from typing import Any

from tests.parity.cases import decisions_of
from tests.parity.pipeline_features import pipeline, with_ids


def lora(case: Mapping[str, Any], *, fast_forward: bool | None = None) -> list[dict[str, Any]]:
    """The steps of a replica, perhaps of several stages, that serves adapters, which the case names by numbers."""
    count = len(case["requests"])
    fast = count % 2 == 0 if fast_forward is None else fast_forward
    if case["config"].get("stages"):
        steps = pipeline(case, fast_forward=fast, by_id=count % 3 == 0)
    else:
        steps = decisions_of(with_ids(case), fast_forward=fast, by_id=count % 3 == 0)
    return [{**step, "adapters": sorted(map(int, step["adapters"])), "t_end": step["t_end_s"]} for step in steps]
