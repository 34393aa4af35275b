"""A part of a layer's experts takes no longer than more of them: narrower experts, or fewer.

A GPU that has half of the width of each expert, or half of the experts, reads and computes half. Tiles that are not
filled cost something: SGLang's experts of 768 take 1.5 times as long as those of 1,024 on all Blackwell GPUs. Beyond
`MOST` the source's run chose a bad kernel: one cell in ten of TensorRT-LLM's CUTLASS on H100 and H200 in bf16 and fp8
lasts two to four times as long as the next larger one, without any order by size. Such cells are left out, and so
estimated from their neighbours.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from simulator.timing.profile.surface import Array
from simulator.timing.tables.expert_tables import Cell, ExpertKernels, load_expert_tables

MOST = 1.6
Place = tuple[Cell, str]  # and its load


def without_longer_parts(document: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of tables of experts without the cells that take longer than one that holds more."""
    tables = load_expert_tables(document)
    left, precisions = dict(document["left_out"]), {}
    for name, part in document["precisions"].items():
        kernels = tables.precisions[name]
        longer = longer_parts(kernels)
        if longer:
            cells = sum(len(each.log_us) for each in kernels.cells.values())
            left[f"parts of experts {name}"] = f"{len(longer)} of {cells:,} cells, longer than one that holds more"
        precisions[name] = {**part, "shapes": [_shape(shape, longer) for shape in part["shapes"]]}
    return {**document, "left_out": left, "precisions": precisions}


def longer_parts(kernels: ExpertKernels) -> set[Place]:
    """The cells that take more than `MOST` times as long, by the median, as a cell of the same kernel with more."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell, of in kernels.cells.items():
        for load in of.log_us:
            groups.setdefault((cell.hidden, cell.experts, cell.top_k, of.kernel, load), []).append(cell)
    found = set()
    for group, cells in groups.items():
        load = str(group[-1])
        times: Mapping[Cell, Array] = {cell: kernels.cells[cell].log_us[load] for cell in cells}
        for cell in cells:
            more = [other for other in cells if other != cell and _holds_more(other, cell)]
            if any(_median(times[cell] - times[other]) > np.log(MOST) for other in more):
                found.add((cell, load))
    return found


def _holds_more(one: Cell, other: Cell) -> bool:
    return one.width >= other.width and one.held >= other.held


def _median(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 0.0


def _shape(shape: dict[str, Any], longer: set[Place]) -> dict[str, Any]:
    parallel = {}
    for key, part in shape["parallel"].items():
        tensor, expert = map(int, key.split("/"))
        experts, width = int(shape["experts"]), int(shape["intermediate"])
        cell = Cell(int(shape["hidden"]), width // tensor, experts // expert, experts, int(shape["top_k"]))
        kept = {name: values for name, values in part.items() if (cell, name) not in longer}
        if kept.keys() != {"kernel"}:
            parallel[key] = kept
    return {**shape, "parallel": parallel}
