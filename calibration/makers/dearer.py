"""A lower precision reads and computes less, so its kernels do not take longer than a wider one's at the same size.

Casts around a kernel cost something: rows of one family may take up to `MOST` times as long by the median (attention
over an fp8 cache under SGLang, whose queries are cast apart, takes 1.7 times as long over windows of 128). Beyond that
the source timed something else: vLLM 0.24's experts in fp8 per tensor on H100 and H200 take 2.2 and 2.5 times as long
as in bf16, and under vLLM 0.19 and TensorRT-LLM 0.7 times. Such a family is left out of the tables, so that others lend
theirs.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simulator.timing.profile.surface import Array, mesh
from simulator.timing.tables.expert_tables import ExpertTables, load_expert_tables
from simulator.timing.tables.products import WEIGHT_BYTES, product_features
from simulator.timing.tables.table_schema import HeadTable, Tables

WIDER: Mapping[str, tuple[str, ...]] = {
    "fp8": ("bf16",), "fp8_block": ("bf16",), "nvfp4": ("fp8", "fp8_block", "bf16"), "int4": ("bf16",),
    "mxfp4": ("bf16",), "mxfp4_mxfp8": ("mxfp4", "bf16"),
}  # fmt: skip
"""Precisions that are wider than each."""
MOST = 1.8


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
    if times > MOST:
        yield name, f"take {times:.1f} times as long as in {wide}"
