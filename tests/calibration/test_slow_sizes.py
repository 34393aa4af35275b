"""No time of experts that is longer than one of more tokens goes into the tables."""

import copy
from pathlib import Path
from typing import Any

import pytest

from scenarios.profiles import shipped_parts
from simulator.timing.tables.experts import KIND, SUFFIX
from tools.tables.experts_order import slow_sizes, without_slow_sizes

EXPERTS = [path for path in shipped_parts() if path.name.endswith(SUFFIX)]
SLOW = 1500  # added to 10^3 x log(microseconds): 4.5 times as long


@pytest.mark.long
@pytest.mark.parametrize("path", EXPERTS, ids=lambda path: path.name)
def test_no_size_of_shipped_experts_takes_longer_than_more_tokens(path: Path) -> None:
    document: Any = KIND.read(path)
    for part in document["precisions"].values():
        assert slow_sizes(part["shapes"]) == {}


def small() -> dict[str, Any]:
    """Tables of a few shapes without slow sizes."""
    document: Any = KIND.read(next(path for path in EXPERTS if path.name.startswith("l40s")))
    part = document["precisions"]["bf16"]
    found = {**document, "left_out": {}, "precisions": {"bf16": {**part, "shapes": part["shapes"][:3]}}}
    assert without_slow_sizes(found) == found
    return found


def test_a_slow_size_is_left_out_and_said() -> None:
    tables = small()
    slow = copy.deepcopy(tables)
    times = slow["precisions"]["bf16"]["shapes"][0]["parallel"]["4/1"]["balanced"]
    for place in (5, 6, 9):
        times[place] += SLOW
    expected = copy.deepcopy(tables)["precisions"]
    kept = expected["bf16"]["shapes"][0]["parallel"]["4/1"]["balanced"]
    kept[5] = kept[6] = kept[9] = None
    found = without_slow_sizes(slow)
    assert found["precisions"] == expected
    (said,) = found["left_out"].values()
    assert said.startswith("3 of ")
    assert without_slow_sizes(found) == found


def test_a_size_at_which_the_kernel_is_slow_stays() -> None:
    slow = copy.deepcopy(small())
    for shape in slow["precisions"]["bf16"]["shapes"]:
        for part in shape["parallel"].values():
            for load in part.keys() - {"kernel"}:
                if part[load][5] is not None:
                    part[load][5] += SLOW
    assert without_slow_sizes(slow) == slow
