"""No kernel of a lower precision that takes much longer than a wider one's goes into the tables."""

import copy
from pathlib import Path
from typing import Any

import pytest

from scenarios.profiles import shipped_parts, shipped_tables
from simulator.timing.tables import read_tables
from simulator.timing.tables.experts import KIND, SUFFIX, load_expert_tables, read_expert_tables
from tools.tables.experts_order import dearer_experts, dearer_kernels, without_dearer

EXPERTS = [path for path in shipped_parts() if path.name.endswith(SUFFIX)]


@pytest.mark.long
@pytest.mark.parametrize("path", EXPERTS, ids=lambda path: path.name)
def test_no_shipped_experts_of_a_lower_precision_are_dearer(path: Path) -> None:
    assert list(dearer_experts(read_expert_tables(path))) == []


@pytest.mark.long
@pytest.mark.parametrize("name", shipped_tables())
def test_no_shipped_kernels_of_a_lower_precision_are_dearer(name: str) -> None:
    assert list(dearer_kernels(read_tables(shipped_tables()[name]))) == []


def _slower(document: dict[str, Any], precision: str, more: int) -> dict[str, Any]:
    """The tables with all times of a precision so much longer (10^3 x log)."""
    found = copy.deepcopy(document)
    for shape in found["precisions"][precision]["shapes"]:
        for part in shape["parallel"].values():
            for load in part.keys() - {"kernel"}:
                part[load] = [None if value is None else value + more for value in part[load]]
    return found


def test_dearer_experts_are_left_out_and_said() -> None:
    document: Any = KIND.read(next(path for path in EXPERTS if path.name.startswith("l40s")))
    kept = {name: document["precisions"][name] for name in ("bf16", "fp8")}
    kept = {name: {**part, "shapes": part["shapes"][:6]} for name, part in kept.items()}
    small = {**document, "precisions": kept}
    assert without_dearer(small) == small
    found = without_dearer(_slower(small, "fp8", 2000))
    assert list(found["precisions"]) == ["bf16"]
    assert "times as long as in bf16" in found["left_out"]["experts fp8"]
    assert list(dearer_experts(load_expert_tables(found))) == []
