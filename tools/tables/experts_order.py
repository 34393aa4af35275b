"""Times of experts that cannot be: a lower precision, a part of a layer, or fewer tokens take longer. Left out here."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.tabulate import KERNEL
from simulator.timing.profile.surface import Array, mesh
from simulator.timing.tables.experts import Cell, ExpertKernels, ExpertTables, load_expert_tables
from simulator.timing.tables.products import WEIGHT_BYTES, product_features
from simulator.timing.tables.table_schema import HeadTable, Tables

# A lower precision reads and computes less, so its kernels do not take longer than a wider one's at the same size.
#
# Casts around a kernel cost something: rows of one family may take up to `MOST_OF_WIDER` times as long by the
# median (attention over an fp8 cache under SGLang, whose queries are cast apart, takes 1.7 times as long over
# windows of 128). Beyond that the source timed something else: vLLM 0.24's experts in fp8 per tensor on H100 and
# H200 take 2.2 and 2.5 times as long as in bf16, and under vLLM 0.19 and TensorRT-LLM 0.7 times. Such a family is
# left out of the tables, so that others lend theirs.

WIDER: Mapping[str, tuple[str, ...]] = {
    "fp8": ("bf16",), "fp8_block": ("bf16",), "nvfp4": ("fp8", "fp8_block", "bf16"), "int4": ("bf16",),
    "mxfp4": ("bf16",), "mxfp4_mxfp8": ("mxfp4", "bf16"),
}  # fmt: skip
"""Precisions that are wider than each."""
MOST_OF_WIDER = 1.8


def without_dearer(document: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of tables of experts without the precisions that are dearer than a wider one."""
    dearer = dict(dearer_experts(load_expert_tables(document)))
    if not dearer:
        return document
    left = {f"experts {name}": f"all rows: they {words}" for name, words in dearer.items()}
    precisions = {name: part for name, part in document["precisions"].items() if name not in dearer}
    return {**document, "left_out": {**document["left_out"], **left}, "precisions": precisions}


def dearer_experts(tables: ExpertTables) -> Iterator[tuple[str, str]]:
    """The precisions whose experts are dearer than those of a wider one, and by how much in words."""
    for low, wide in _pairs(tables.precisions):
        own, other = tables.precisions[low].cells, tables.precisions[wide].cells
        logs = [
            own[cell].log_us[load] - other[cell].log_us[load]
            for cell in own.keys() & other.keys()
            for load in own[cell].log_us.keys() & other[cell].log_us.keys()
        ]
        yield from _too_long(low, wide, logs)


def dearer_kernels(tables: Tables) -> Iterator[tuple[str, str]]:
    """The same of products of matrices, and of attention by the precision of its KV cache."""
    for low, wide in _pairs(tables.products):
        m, n, k = mesh(tables.products[low].axes)
        us = [
            tables.products[name].us_many((m, n, k), product_features(m, n, k, WEIGHT_BYTES[name]))
            for name in (low, wide)
        ]
        yield from _too_long(f"products {low}", wide, [np.log(us[0] / us[1])])
    for kind, some in (("decode", tables.decode), ("prompt", tables.prompt)):
        by_kv: dict[tuple[int, int], dict[str, HeadTable]] = {}
        for table in some:
            by_kv.setdefault((table.head_dim, table.window), {})[table.kv_dtype] = table
        for (width, window), of in by_kv.items():
            if of.keys() >= {"fp8", "bf16"} and of["fp8"].axes == of["bf16"].axes:
                heads = of["fp8"].log_us.keys() & of["bf16"].log_us.keys()
                logs = [of["fp8"].log_us[each] - of["bf16"].log_us[each] for each in heads]
                yield from _too_long(f"{kind} of {width}, window {window}, over fp8", "bf16", logs)


def _pairs(names: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for low, wider in WIDER.items():
        yield from ((low, wide) for wide in wider if low in names and wide in names)


def _too_long(name: str, wide: str, logs: list[Array]) -> Iterator[tuple[str, str]]:
    """The name, where the median of these logarithms of ratios is above what casts explain."""
    known = np.concatenate([each.ravel() for each in logs]) if logs else np.zeros(0)
    known = known[~np.isnan(known)]
    times = float(np.exp(np.median(known))) if len(known) else 1.0
    if times > MOST_OF_WIDER:
        yield name, f"take {times:.1f} times as long as in {wide}"


# A part of a layer's experts takes no longer than more of them: narrower experts, or fewer.
#
# A GPU that has half of the width of each expert, or half of the experts, reads and computes half. Tiles that are
# not filled cost something: SGLang's experts of 768 take 1.5 times as long as those of 1,024 on all Blackwell GPUs.
# Beyond `MOST_OF_MORE` the source's run chose a bad kernel: one cell in ten of TensorRT-LLM's CUTLASS on H100 and
# H200 in bf16 and fp8 lasts two to four times as long as the next larger one, without any order by size. Such cells
# are left out, and so estimated from their neighbours.

MOST_OF_MORE = 1.6
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
            if any(_median(times[cell] - times[other]) > np.log(MOST_OF_MORE) for other in more):
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


# Experts take no longer for some tokens than for more of them.
#
# A kernel that changes with the tokens costs something at its border, and an uneven load is drawn anew for each
# number of tokens. Beyond `MOST_OF_MORE` the source's run chose a bad kernel at some sizes, as `longer_parts` says
# of whole cells: of TensorRT-LLM's tables on Hopper 1 to 2 % of the times in bf16 and fp8 are so, up to ten times
# as long as the next ones. Such times are left out, and so filled from their neighbours, unless `KERNEL` of the
# cells are as slow there: then the kernel is.

ListPlace = tuple[int, str, str]  # of a list of times: its shape, its part and its load


def without_slow_sizes(document: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of tables of experts without the times that are longer than one of more tokens."""
    left, precisions = dict(document["left_out"]), {}
    for name, part in document["precisions"].items():
        shapes = part["shapes"]
        slow = slow_sizes(shapes)
        count = sum(int(each.sum()) for each in slow.values())
        if count:
            known = sum(value is not None for _, values in _lists(shapes) for value in values)
            left[f"sizes of experts {name}"] = f"{count:,} of {known:,} times, longer than one of more tokens"
            shapes = [
                {**shape, "parallel": {key: _kept(of, (row, key), slow) for key, of in shape["parallel"].items()}}
                for row, shape in enumerate(shapes)
            ]
        precisions[name] = {**part, "shapes": shapes}
    return {**document, "left_out": left, "precisions": precisions}


def slow_sizes(shapes: list[dict[str, Any]]) -> dict[ListPlace, NDArray[np.bool_]]:
    """For each list of times those that are longer than one of more tokens; lists without any are not in it."""
    groups: dict[tuple[int, str], list[tuple[ListPlace, list[int | None]]]] = {}
    for place, values in _lists(shapes):
        kernel = shapes[place[0]]["parallel"][place[1]]["kernel"]
        groups.setdefault((kernel, place[2]), []).append((place, values))
    found = {}
    for group in groups.values():
        log_us = np.array([[np.nan if value is None else value for value in values] for _, values in group]) / 1e3
        slow = log_us > np.log(MOST_OF_MORE) + _least_of_more(log_us)
        slow &= slow.sum(axis=0) < KERNEL * (~np.isnan(log_us)).sum(axis=0)
        found.update({place: each for (place, _), each in zip(group, slow, strict=True) if each.any()})
    return found


def _least_of_more(log_us: Array) -> Array:
    """For each size the least time of a larger one; infinite for the last."""
    known = np.where(np.isnan(log_us), np.inf, log_us)
    least = np.minimum.accumulate(known[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([least[:, 1:], np.full((len(least), 1), np.inf)], axis=1)


def _lists(shapes: list[dict[str, Any]]) -> list[tuple[ListPlace, list[int | None]]]:
    return [
        ((row, key, load), values)
        for row, shape in enumerate(shapes)
        for key, part in shape["parallel"].items()
        for load, values in part.items()
        if load != "kernel"
    ]


def _kept(part: dict[str, Any], place: tuple[int, str], slow: dict[ListPlace, NDArray[np.bool_]]) -> dict[str, Any]:
    kept = dict(part)
    for load in part.keys() - {"kernel"}:
        gone = slow.get((*place, load))
        if gone is not None:
            kept[load] = [None if out else value for value, out in zip(part[load], gone, strict=True)]
    return kept
