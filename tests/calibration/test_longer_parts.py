"""No part of a layer's experts that takes longer than more of them goes into the tables."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.profiles import shipped_parts
from simulator.timing.tables.experts import KIND, SUFFIX, Cell, load_expert_tables, read_expert_tables
from tools.tables.experts_order import longer_parts, without_longer_parts

EXPERTS = [path for path in shipped_parts() if path.name.endswith(SUFFIX)]


@pytest.mark.long
@pytest.mark.parametrize("path", EXPERTS, ids=lambda path: path.name)
def test_no_part_of_shipped_experts_takes_longer_than_more(path: Path) -> None:
    for kernels in read_expert_tables(path).precisions.values():
        assert longer_parts(kernels) == set()


@pytest.mark.long
@pytest.mark.parametrize("path", EXPERTS, ids=lambda path: path.name)
def test_an_eighth_of_the_experts_takes_less_than_all(path: Path) -> None:
    """Of each precision in the median: the source of mxfp4 under vLLM 0.19 computed all experts on each GPU."""
    for kernels in read_expert_tables(path).precisions.values():
        shares = []
        for cell, of in kernels.cells.items():
            whole = kernels.cells.get(cell._replace(held=cell.experts))
            if whole is None or whole.kernel != of.kernel or cell.held * 8 > cell.experts:
                continue
            for load in of.log_us.keys() & whole.log_us.keys():
                large = whole.log_us[load] > np.nanmin(whole.log_us[load]) + np.log(4)
                shares.append(np.exp(of.log_us[load] - whole.log_us[load])[large])
        known = np.concatenate(shares) if shares else np.zeros(1)
        assert np.nanmedian(known) < 0.6


def test_a_longer_part_is_left_out_and_said() -> None:
    document: Any = KIND.read(next(path for path in EXPERTS if path.name.startswith("l40s")))
    part = document["precisions"]["bf16"]
    small = {**document, "precisions": {"bf16": {**part, "shapes": part["shapes"][:2]}}}
    small = {**small, "left_out": {}}
    assert without_longer_parts(small) == small
    slow = copy.deepcopy(small)
    shape = slow["precisions"]["bf16"]["shapes"][0]
    one = shape["parallel"]["4/1"]
    one["balanced"] = [None if value is None else value + 2000 for value in one["balanced"]]  # 10^3 x log
    cell = Cell(shape["hidden"], shape["intermediate"] // 4, shape["experts"], shape["experts"], shape["top_k"])
    assert longer_parts(load_expert_tables(slow).precisions["bf16"]) == {(cell, "balanced")}
    found = without_longer_parts(slow)
    assert set(found["precisions"]["bf16"]["shapes"][0]["parallel"]["4/1"]) == set(one) - {"balanced"}
    cells = sum(len(each) - 1 for shape in small["precisions"]["bf16"]["shapes"] for each in shape["parallel"].values())
    assert found["left_out"] == {"parts of experts bf16": f"1 of {cells} cells, longer than one that holds more"}
