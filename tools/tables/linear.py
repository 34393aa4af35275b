"""Tables of linear attention from aiconfigurator's gdn_perf.parquet: a small file a GPU and engine.

The source times two kernels of a gated delta net, the convolution and the recurrence, of one layer's heads on one GPU,
for the models and parallel sizes of Qwen3.5. What one pair of heads takes does not depend on the model's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.sources import AICONFIGURATOR_CORE, AICONFIGURATOR_ENGINES, Source, parquet
from calibration.surface_fit import on_grid
from calibration.tabulate import coded, write_tables
from simulator.timing.tables.linear import SCHEMA, SUFFIX, VERSION
from tools.tables.kernels import DATA_CENTRE, WHEEL

if TYPE_CHECKING:
    import pandas as pd

VERSIONS = {"vllm": ("0.24", "0.24.0"), "sglang": ("0.5", "0.5.14"), "trtllm": ("1.3", "1.3.0rc20")}
SHIPPED: Mapping[str, tuple[str, str, str]] = {
    f"{gpu}-{engine}-{short}": (place, engine, version)
    for gpu, place in DATA_CENTRE.items()
    for engine, (short, version) in VERSIONS.items()
}
"""The tables that come with batchlab: folder of the GPU, engine and version below the package's `systems/data`."""

COLUMNS = ("phase", "batch_size", "seq_len", "num_k_heads", "num_v_heads", "kernel_source", "latency")


def tabulate_linear(root: Path, name: str) -> dict[str, Any]:
    """The JSON of a GPU's linear attention. InputError where its file is not known."""
    place, engine, version = SHIPPED[name]
    path = f"{place}/linear_attention/{engine}/{version}"
    rows = parquet(Source(root / path, "", ""), "gdn_perf", COLUMNS)
    keys = ["phase", "num_k_heads", "num_v_heads", "batch_size", "seq_len"]
    each = rows.groupby([*keys, "kernel_source"])["latency"].median().reset_index()
    both = each.groupby(keys)["latency"].agg(["sum", "size"]).reset_index()
    both = both[both["size"] == 2].assign(log_us=lambda known: np.log(known["sum"] * 1e3))
    decodes, prompts = (both[both["phase"] == phase] for phase in ("generation", "context"))
    axes = _sizes(decodes, "batch_size"), _sizes(prompts, "batch_size"), _sizes(prompts, "seq_len")
    heads = {}
    for (ours, theirs), some in decodes.groupby(["num_k_heads", "num_v_heads"]):
        other = prompts[(prompts["num_k_heads"] == ours) & (prompts["num_v_heads"] == theirs)]
        heads[f"{ours}/{theirs}"] = {
            "decode": coded(_grid(some, (("batch_size", axes[0]),))),
            "prompt": coded(_grid(other, (("batch_size", axes[1]), ("seq_len", axes[2])))),
        }
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "name": name,
        "gpu": name.rsplit("-", 2)[0],
        "software": f"{AICONFIGURATOR_ENGINES[engine]} {version}",
        "sources": [{**AICONFIGURATOR_CORE, "version": WHEEL, "path": f"systems/data/{path}"}],
        **dict(zip(("seqs", "chunks", "each"), axes, strict=True)),
        "heads": heads,
    }


def _sizes(rows: pd.DataFrame, column: str) -> list[int]:
    return sorted(int(size) for size in rows[column].unique())


def _grid(rows: pd.DataFrame, axes: tuple[tuple[str, list[int]], ...]) -> Any:
    values = [tuple(map(float, sizes)) for _, sizes in axes]
    return on_grid(values, [rows[name].to_numpy(float) for name, _ in axes], rows["log_us"].to_numpy(float))


def make(root: Path, folder: Path, name: str) -> Path | None:
    """Make shipped tables again, in `folder / "tables"`; None where there is no source of them below `root`."""
    place, engine, version = SHIPPED[name]
    if not (root / place / "linear_attention" / engine / version).is_dir():
        return None
    path = folder / "tables" / f"{name}{SUFFIX}.json.gz"
    write_tables(tabulate_linear(root, name), path)
    return path


NAMES = tuple(SHIPPED)
