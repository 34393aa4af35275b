"""Tables of multi-head latent attention from aiconfigurator's parquet files: one small file a GPU and version.

What a row times is vLLM's whole attention module of one layer, in a CUDA graph: `attn_module.forward(positions,
hidden_states)` of a `DeepseekV2MLAAttention` built with so many heads and no tensor parallelism
(aiconfigurator, collector/vllm/collect_mla_module.py). In vLLM that is (vllm/model_executor/layers/mla.py)

- the joint down projection of queries and keys (hidden x (q_lora_rank + kv_lora_rank + rope)), which every GPU of a
  tensor-parallel group computes whole, the two norms, the query's up projection, rope;
- the write to the cache, and attention: decodes in the latent space, between the two absorbed products (W_UK, W_UV,
  in bf16 whatever the weights are), prompts with keys and values projected up for all heads;
- the output projection, without its all-reduce.

Not in it are the norm before the layer's attention, residuals, the all-reduce, and all after it. So a composed layer
counts none of qkv, output projection, rope or cache write besides. `mla_bmm_perf` times the absorbed products alone,
which the module holds already: it is not read.

The collector leaves the choice of kernels to vLLM, which takes by default (vllm/platforms/cuda.py,
`_get_backend_priorities`; prefill/selector.py) FlashAttention 3's MLA on Hopper, FlashMLA there with an fp8 cache,
FlashInfer's (TensorRT-LLM's kernels) on B200, Triton's on L40S and RTX PRO 6000; for prompts FlashAttention. Fresh
prompts up to 512 tokens (128 with FlashMLA) are computed by the decode kernel there, as they are in a server. Rows of
prompts computed in fp8 (`mla_dtype` fp8) are left out: the collector pins a kernel for them that is not the default.

SGLang has no rows of whole modules: `calibration.makers.latent_parts` puts them together.

Norms are timed uncompiled on most GPUs, as no server runs them: `calibration.makers.latent_norms` takes them out.

Rows that are faster than the GPU could read the weights and the cache, or compute, are rejected and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.document import of_axis, of_physics
from calibration.limits import TOLERANCE
from calibration.makers.kernels import DATA_CENTRE, WHEEL
from calibration.makers.latent_errors import latent_errors
from calibration.makers.latent_norms import SHARES, without_chain
from calibration.makers.latent_parts import composed_rows
from calibration.makers.latent_rows import FILES, MODEL, module_rows
from calibration.physics_fit import Shape, fit_physics
from calibration.sources.aiconfigurator import AICONFIGURATOR_CORE, ENGINES
from calibration.surface_fit import on_grid
from calibration.tabulate import coded, write_tables
from simulator.hardware.gpus import Gpu, find_gpu
from simulator.timing.profile.surface import SurfaceAxis
from simulator.timing.tables.latent_counts import decode_least_us, prompt_least_us
from simulator.timing.tables.latent_schema import SCHEMA, SUFFIX, VERSION, counts, load_latent

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

DIMENSIONS = {"hidden": 7168, "q_lora_rank": 1536, "kv_lora_rank": 512, "rope_head_dim": 64, "head_dim": 128}
"""DeepSeek-V3's config.json: the model that the collector builds."""

DECODE = Shape(("seqs",), (("keys",), ("chain",)))
PROMPT = Shape(("tokens",), (("pairs",), ("chain",)))

GLM_5 = {
    "hidden": 6144, "q_lora_rank": 2048, "kv_lora_rank": 512, "rope_head_dim": 64, "head_dim": 192, "index_topk": 2048,
}  # fmt: skip
"""GLM-5's config.json; its values are 256 wide, which `Model` does not tell from its queries."""
SPARSE_MODELS: Mapping[str, tuple[tuple[str, ...], Mapping[str, int]]] = {
    "glm-5": (("zai-org/GLM-5-FP8", "nvidia/GLM-5.2-NVFP4"), GLM_5),
    "deepseek-v3.2": (("deepseek-ai/DeepSeek-V3.2",), {**DIMENSIONS, "index_topk": 2048}),
}
"""The source's models with sparse attention, by the end of the names of their tables, and their dimensions.

GLM-5 in nvfp4 keeps its attention in bf16."""

SHIPPED: Mapping[str, tuple[str, str]] = {
    "h100-vllm-0.24": ("h100_sxm", "0.24.0"),
    "h200-vllm-0.24": ("h200_sxm", "0.24.0"),
    "b200-vllm-0.24": ("b200_sxm", "0.24.0"),
    "b300-vllm-0.24": ("b300_sxm", "0.24.0"),
    "gb200-vllm-0.24": ("gb200", "0.24.0"),
    "gb300-vllm-0.27": ("gb300", "0.27.0"),
    **{f"{gpu}-trtllm-1.3": (place, "1.3.0rc20") for gpu, place in DATA_CENTRE.items()},
    **{f"{gpu}-sglang-0.5": (place, "0.5.14") for gpu, place in DATA_CENTRE.items()},
    **{f"{gpu}-sglang-0.5-{model}": (place, "0.5.14") for gpu, place in DATA_CENTRE.items() for model in SPARSE_MODELS},
}
"""The tables that come with batchlab: folder of the GPU and version below the package's `systems/data`."""


def tabulate_latent(root: Path, name: str, folder: str, version: str, tables: Path) -> dict[str, Any]:
    """The JSON of a GPU's latent attention. InputError where its files or its GPU are not known.

    `tables` hold the engine's other kernels, of which SGLang's modules are put together.
    """
    sparse = next((each for each in SPARSE_MODELS if name.endswith(f"-{each}")), "")
    held, dimensions = SPARSE_MODELS.get(sparse, ((MODEL,), DIMENSIONS))
    name = name.removesuffix(f"-{sparse}")
    gpu, engine = find_gpu(name.rsplit("-", 2)[0]), name.rsplit("-", 2)[1]
    place = Path(folder) / ("sparse_attention" if sparse else "mla") / engine / version
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": name,
        "gpu": gpu.name,
        "software": f"{ENGINES[engine]} {version}",
        "sources": [{**AICONFIGURATOR_CORE, "version": WHEEL, "path": f"systems/data/{place.as_posix()}"}],
        "dimensions": dimensions,
        "norms_taken_out": SHARES.get(gpu.name, 0.0) if engine == "vllm" else 0.0,
        "rejected": {},
    }
    for kind, file in FILES.items():
        if engine == "sglang" and not sparse:
            rows = composed_rows(root / place, kind, tables, dimensions)
        else:
            rows = module_rows(root / place, kind, *held)
        if engine == "vllm":
            rows = without_chain(rows, kind, root, gpu.name)
        possible = (rows["us"] > 0) if sparse else rows["us"] * TOLERANCE >= _least_us(rows, kind, gpu)
        document["rejected"][file] = [int((~possible).sum()), len(rows)]
        document[kind] = [_modules(kind, some) for _, some in rows[possible].groupby(["dtype", "kv"])]
    document["errors"] = latent_errors(load_latent(document))
    return document


def _least_us(rows: pd.DataFrame, kind: str, gpu: Gpu) -> Array:
    least = decode_least_us if kind == "decode" else prompt_least_us
    found = np.empty(len(rows))
    for (dtype, kv), some in rows.groupby(["dtype", "kv"]):
        heads, batch, length = (some[name].to_numpy(float) for name in ("heads", "batch", "length"))
        found[some.index.to_numpy()] = least(DIMENSIONS, gpu, str(dtype), str(kv), heads, batch, length)
    return found


def _modules(kind: str, rows: pd.DataFrame) -> dict[str, Any]:
    """Modules of one precision and KV precision, by heads."""
    names, shape = (("seqs", "context"), DECODE) if kind == "decode" else (("chunks", "each"), PROMPT)
    lengths = [tuple(np.unique(rows[column].to_numpy(float)).tolist()) for column in ("batch", "length")]
    axes = [SurfaceAxis(name, values) for name, values in zip(names, lengths, strict=True)]
    by_heads = {}
    for heads, some in rows.groupby("heads"):
        batch, length, us = (some[name].to_numpy(float) for name in ("batch", "length", "us"))
        by_heads[str(heads)] = {
            "physics": of_physics(fit_physics(shape, counts(kind == "decode", batch, length), us)),
            "us": coded(on_grid([axis.values for axis in axes], [batch, length], np.log(us))),
        }
    return {
        "dtype": str(rows["dtype"].iloc[0]),
        "kv": str(rows["kv"].iloc[0]),
        "kernels": sorted(set(rows["kernel"])),
        "axes": [of_axis(axis) for axis in axes],
        "heads": by_heads,
    }


def make(root: Path, folder: Path, name: str) -> Path | None:
    """Make shipped tables again, in `folder / "tables"`; None where there is no source of them below `root`."""
    place, version = SHIPPED[name]
    if not (root / place).is_dir():
        return None
    path = folder / "tables" / f"{name}{SUFFIX}.json.gz"
    write_tables(tabulate_latent(root, name, place, version, folder / "tables" / f"{name}.json.gz"), path)
    return path


NAMES = tuple(SHIPPED)
