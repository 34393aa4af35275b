"""Products of fp8 scaled by block, where a GPU's own rows of them timed launches: as another Hopper's show.

vLLM 0.24's rows of fp8_block on H100 and H200 take 60 us however small the product: they are left out of the tables.
Those of vLLM 0.19 on H100 do not. A product is taken to be as much slower than the GPU's own one of plain fp8 as it is
there at the same size. Where the rows of 0.24 on H200 last longer than a launch (above 150 us), that is 7 % above them
by the median, 10 % off. It stands in for the feed-forwards beside experts of models whose attention and experts are
measured in fp8_block; on B200 it is 22 % off, and not used.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from simulator.timing.profile.surface import Surface, flat, mesh
from simulator.timing.tables.products import WEIGHT_BYTES, product_features
from simulator.timing.tables.table_schema import Tables, read_tables

REFERENCE = "h100-vllm-0.19"
HOPPER = ("h100", "h200", "h20")
BLOCKS, PLAIN = "fp8_block", "fp8"


@lru_cache(maxsize=8)
def with_blocks(tables: Tables) -> Tables:
    """The tables with estimated products of fp8_block; as they are where they have them, or nothing to go by."""
    path = None if tables.folder is None else tables.folder / f"{REFERENCE}.json.gz"
    if BLOCKS in tables.products or PLAIN not in tables.products or tables.gpu not in HOPPER:
        return tables
    if path is None or not path.exists():
        return tables
    known, own = read_tables(path).products, tables.products[PLAIN]
    m, n, k = mesh(own.axes)
    features = product_features(m, n, k, WEIGHT_BYTES[PLAIN])
    slower = np.log(known[BLOCKS].us_many((m, n, k), features) / known[PLAIN].us_many((m, n, k), features))
    surface = Surface(own.axes, own.physics, flat(np.asarray(own.correction) + slower.ravel()))
    estimated = {**tables.document.get("estimated", {}), BLOCKS: f"as much slower than fp8 as in {REFERENCE}"}
    products, document = {**tables.products, BLOCKS: surface}, {**tables.document, "estimated": estimated}
    return replace(tables, products=products, document=document)
