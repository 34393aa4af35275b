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

SGLang has no rows of whole modules: they are put together below.

Norms are timed uncompiled on most GPUs, as no server runs them: they are taken out below.

Rows that are faster than the GPU could read the weights and the cache, or compute, are rejected and counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibration.fit import of_axis, of_physics
from calibration.heldout import FOLDS, SEED, summary
from calibration.rows import TOLERANCE
from calibration.sources import AICONFIGURATOR_CORE, AICONFIGURATOR_ENGINES, Source, parquet
from calibration.surface_fit import Shape, fit_physics, on_grid
from calibration.tabulate import coded, write_tables
from simulator.errors import InputError
from simulator.hardware.gpus import Gpu, find_gpu
from simulator.timing.profile.surface import SurfaceAxis
from simulator.timing.tables.assumed import LAUNCH_US
from simulator.timing.tables.latent import (
    SCHEMA,
    SUFFIX,
    VERSION,
    Dimensions,
    LatentTables,
    Module,
    Modules,
    counts,
    decode_least_us,
    filled,
    load_latent,
    module_of,
    projections,
    prompt_least_us,
)
from simulator.timing.tables.products import WEIGHT_BYTES, product_curve
from simulator.timing.tables.table_schema import Tables, read_tables
from tools.tables.kernels import DATA_CENTRE, WHEEL

if TYPE_CHECKING:
    import pandas as pd


# aiconfigurator's rows of whole attention modules.

FILES = {"decode": "mla_generation_module_perf", "prompt": "mla_context_module_perf"}
LENGTHS = {"decode": "step", "prompt": "isl"}
MODEL = "deepseek-ai/DeepSeek-V3"
PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}


SPARSE = {"decode": "dsa_generation_module_perf", "prompt": "dsa_context_module_perf"}
"""Files of modules with sparse attention, the indexer included; the rows that skip it are not taken."""


def module_rows(folder: Path, kind: str, *models: str) -> pd.DataFrame:
    """Rows of decodes or prompts: dtype, kv, heads, batch, length (tokens of each after the step), tokens, kernel, us.

    Those of prompts computed in fp8, or behind a cached prefix, are left out.
    """
    length, sparse = LENGTHS[kind], folder.parents[1].name == "sparse_attention"
    columns = ("model", "mla_dtype", "kv_cache_dtype", "gemm_type", "num_heads", "batch_size", length, "latency")
    rows = parquet(Source(folder, "", ""), (SPARSE if sparse else FILES)[kind], columns)
    kept = (rows["mla_dtype"] == "bfloat16") & rows["model"].isin(models or (MODEL,))
    if sparse:
        kept &= ~rows["op_name"].str.contains("skip") & ((kind == "decode") | (rows["step"] == 0))
    rows = rows[kept].reset_index(drop=True)
    batch, long = rows["batch_size"].astype(float), rows[length].astype(float)
    found: pd.DataFrame = rows[[]].assign(
        dtype=rows["gemm_type"].map(PRECISIONS),
        kv=rows["kv_cache_dtype"].map(PRECISIONS),
        heads=rows["num_heads"],
        batch=batch,
        length=long,
        tokens=batch if kind == "decode" else batch * long,
        kernel=rows["kernel_source"],
        us=rows["latency"] * 1e3,
    )
    return found


# SGLang's attention modules, put together from aiconfigurator's rows of their parts.
#
# The source times no whole module of SGLang, but what it consists of (sglang/srt/models/deepseek_v2.py,
# `DeepseekV2AttentionMLA`): attention (context_mla_perf, generation_mla_perf), and for decodes the two absorbed
# products (mla_bmm_perf), in fp8 where the weights are fp8 by block. The projections are the products of the same
# engine's tables, with keys and values of a prompt projected up for all heads. Norms, rope and the write to the
# cache are launches.

Array = NDArray[np.float64]

PART_FILES = {"decode": "generation_mla_perf", "prompt": "context_mla_perf"}
ABSORBED = "mla_bmm_perf"
LAUNCHES = 3  # norms of both bottlenecks on two streams, rope, the write to the cache


def composed_rows(folder: Path, kind: str, tables: Path, of: Dimensions) -> pd.DataFrame:
    """Rows of decodes or prompts as `latent_rows.module_rows` has them, for each precision of the tables' products."""
    import pandas as pd

    names = ("mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step", "latency", "kernel_source")
    rows = parquet(Source(folder, "", ""), PART_FILES[kind], names)
    rows = rows[rows["mla_dtype"] == "bfloat16"]
    batch = rows["batch_size"].astype(float)
    length = (rows["isl"] + rows["step"]).astype(float)
    plain: pd.DataFrame = rows[[]].assign(
        kv=rows["kv_cache_dtype"].map(PRECISIONS),
        heads=rows["num_heads"],
        batch=batch,
        length=length,
        tokens=batch if kind == "decode" else batch * length,
        kernel=rows["kernel_source"],
        us=rows["latency"] * 1e3,
    )
    held = read_tables(tables)
    absorbed = _absorbed(folder) if kind == "decode" else None
    weights = [dtype for dtype in held.products if dtype != "fp8"]  # checkpoints have scales by block, or none
    found = [_with_rest(plain.assign(dtype=dtype), dtype, held, of, absorbed) for dtype in weights]
    return pd.concat(found, ignore_index=True)


def _with_rest(
    rows: pd.DataFrame, dtype: str, tables: Tables, of: Dimensions, absorbed: pd.DataFrame | None
) -> pd.DataFrame:
    """Rows of attention with all else that a module of these weights has."""
    rest = np.empty(len(rows))
    places = np.arange(len(rows))
    surface = tables.products[dtype]
    sizes = np.asarray(surface.axes[0].values)
    for heads, some in rows.assign(place=places).groupby("heads"):
        count = int(str(heads))
        tokens = some["tokens"].to_numpy(float)
        products = dict(projections(of, count))
        us = np.full(len(some), LAUNCHES * LAUNCH_US)
        if absorbed is None:  # keys and values of all heads, from the latent
            products["kv_b"] = (count * 2 * of["head_dim"], of["kv_lora_rank"])
        else:
            us += _at(absorbed[absorbed["fp8"] == (dtype == "fp8_block")], count, tokens)
        for n, k in products.values():
            curve = product_curve(surface, n, k, sizes, WEIGHT_BYTES[dtype])
            us += np.array([curve.at(each) for each in tokens])
        rest[some["place"].to_numpy()] = us
    return rows.assign(us=rows["us"] + rest)


def _absorbed(folder: Path) -> pd.DataFrame:
    """Both absorbed products over tokens, by heads and precision."""
    beside = folder.parents[2] / "mla_bmm" / folder.parent.name / folder.name
    rows = parquet(Source(beside, "", ""), ABSORBED, ("op_name", "bmm_dtype", "num_tokens", "num_heads", "latency"))
    rows = rows.assign(fp8=rows["bmm_dtype"] == "fp8", us=rows["latency"] * 1e3)
    each = rows.groupby(["fp8", "num_heads", "op_name", "num_tokens"])["us"].median()
    return each.groupby(["fp8", "num_heads", "num_tokens"]).sum().reset_index()


def _at(rows: pd.DataFrame, heads: int, tokens: Array) -> Array:
    """Microseconds of both for so many tokens, straight between those measured."""
    some = rows[rows["num_heads"] == heads]
    return np.asarray(np.interp(tokens, some["num_tokens"].to_numpy(float), some["us"].to_numpy(float)))


# Errors of latent attention on what its tables are made to forget.
#
# Regimes: `random` (a tenth of the cells, each from its neighbours), `heads` (all of one number of heads, from
# those beside it).

Errors = dict[str, dict[str, dict[str, float]]]


def latent_errors(tables: LatentTables) -> Errors:
    """Errors by kind and regime, in percent (`calibration.heldout.summary`)."""
    found: Errors = {}
    for kind, parts in (("latent_decode", tables.decode), ("latent_prompt", tables.prompt)):
        parted = {
            "random": [errors for modules in parts for errors in _cells(modules)],
            "heads": [errors for modules in parts for errors in _one_left_out(modules)],
        }
        all_of = {regime: np.concatenate(errors) for regime, errors in parted.items() if errors}
        found[kind] = {regime: summary(errors) for regime, errors in all_of.items() if len(errors)}
    return found


def _cells(modules: Modules) -> Iterator[Array]:
    """Errors of single cells that were measured, a tenth of them at a time."""
    generator = np.random.default_rng(SEED)
    for module in modules.by_heads.values():
        known = np.flatnonzero(module.measured)
        left = generator.permutation(known)[: len(known) // FOLDS]
        holes = np.where(module.measured, module.log_us, np.nan)
        holes.ravel()[left] = np.nan
        found = filled(modules.axes, module.physics, holes)
        yield np.exp(found.ravel()[left] - module.log_us.ravel()[left]) - 1.0


def _one_left_out(modules: Modules) -> Iterator[Array]:
    """Errors of each number of heads that lies between others."""
    known = list(modules.by_heads)
    for heads in known[1:-1]:
        rest: dict[int, Module] = {each: module for each, module in modules.by_heads.items() if each != heads}
        found, _, _ = module_of(replace(modules, by_heads=rest), heads, "")
        module = modules.by_heads[heads]
        yield np.exp(found.log_us - module.log_us)[module.measured] - 1.0


# The tables.

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
        "software": f"{AICONFIGURATOR_ENGINES[engine]} {version}",
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


# The cost of norms and rope of latent attention in rows that time them uncompiled, and how to remove it.
#
# aiconfigurator's collector runs the attention module outside of a server, where these fall back to chains of
# PyTorch's element-wise kernels; a server compiles or fuses them. Its own notes say so: B200's rows were collected
# again with fused ones, "the previous rows ran the never-in-serving native chain (+34 %)", the new ones are 9 %
# below a trace of a served layer (systems/data/b200_sxm/mla/vllm/0.24.0/collection_meta.yaml). So were GB300's for
# vLLM 0.27. All others have the chain: H100, H200, B300, GB200, and GB300 for vLLM 0.24.
#
# GB300 has both, and there the difference depends on the tokens and, by rope, on the heads, whatever the precision
# and the context: 39 us at one token, 55 at 32, and from a thousand on 0.020 us + 0.00076 us a head for each token.
# Taken from the rows of GB200 and B300, it leaves B200's. Nothing of Hopper was measured both ways. There `SHARES`
# is how what the products leave of a module exceeds what they leave of B200's, by that curve: 0.9, from one token
# to thousands.
#     python -m tools.tables.latent DATA     # the curves, and the test on B200; DATA is systems/data
#
# L40S and RTX PRO 6000 have rows too. Their modules run faster than the weights could be read, from L2 caches of 96
# and 128 MB that hold them between two runs, as no server's do: what the norms cost there cannot be told apart from
# it.

BOTH_WAYS = ("gb300", "0.24.0", "0.27.0")
"""The folder of the GPU that was measured both ways, and the versions with the chain and without it."""

SHARES: Mapping[str, float] = {"h100": 0.9, "h200": 0.9, "b300": 1.0, "gb200": 1.0}
"""The chain in rows of a GPU for vLLM 0.24, in those of GB300."""

BLACKWELL = ("b300", "gb200")
"""Of these, with the kernels of GB300."""

KEYS = ["dtype", "kv", "heads", "batch", "length", "tokens"]
"""What two rows of the same module have in common."""

LONGEST = {"decode": 256, "prompt": 1024}
"""Rows of longer contexts are left out: noise of the attention in them is more than the norms."""


def chain_us(root: Path, fp8_queries: bool = False) -> dict[int, tuple[Array, Array]]:
    """Microseconds of the uncompiled kernels over ascending tokens of a step, by heads: medians over all that differs.

    `fp8_queries` asks for decodes with an fp8 cache, whose queries were quantised otherwise too.
    """
    import pandas as pd

    gpu, native, fused = BOTH_WAYS
    found = []
    for kind in ("decode",) if fp8_queries else FILES:
        one, two = (module_rows(root / gpu / "mla" / "vllm" / version, kind) for version in (native, fused))
        both = one.merge(two, on=KEYS, suffixes=("", "_fused"))
        found.append(both[(both["length"] <= LONGEST[kind]) & (both["kv"] == ("fp8" if fp8_queries else "bf16"))])
    rows: pd.DataFrame = pd.concat(found)
    curves = {}
    for heads, some in rows.groupby("heads"):
        medians = (some["us"] - some["us_fused"]).groupby(some["tokens"]).median()
        us = medians.to_numpy(float)
        curves[int(str(heads))] = medians.index.to_numpy(float), us if fp8_queries else np.maximum.accumulate(us)
    return curves


def without_chain(rows: pd.DataFrame, kind: str, root: Path, gpu: str) -> pd.DataFrame:
    """Rows of a GPU without its uncompiled kernels, where it has such."""
    if gpu not in SHARES:
        return rows
    chain = np.empty(len(rows))
    for kv, of_kv in rows.groupby("kv"):
        curves = chain_us(root, kind == "decode" and kv == "fp8" and gpu in BLACKWELL)
        for heads, some in of_kv.groupby("heads"):
            tokens, us = curves[int(str(heads))]
            chain[some.index.to_numpy()] = np.interp(some["tokens"].to_numpy(float), tokens, us)
    return rows.assign(us=rows["us"] - SHARES[gpu] * chain)


def main() -> None:
    """Print the curves of the norms, and how far rows of B200 are from those of GB200 and B300 without it."""
    if len(sys.argv) != 2:
        raise InputError("no folder of sources", hint="python -m tools.tables.latent DATA")
    root = Path(sys.argv[1])
    for heads, curve in chain_us(root).items():
        for tokens, us in zip(*curve, strict=True):
            print(f"{heads:4} heads {tokens:8,.0f} tokens {us:8.1f} us")
    for gpu, folder in (("gb200", "gb200"), ("b300", "b300_sxm")):
        for kind in FILES:
            known = module_rows(root / "b200_sxm/mla/vllm/0.24.0", kind)
            rows = module_rows(root / folder / "mla/vllm/0.24.0", kind)
            words = []
            for each in (rows, without_chain(rows, kind, root, gpu)):
                both = each.merge(known, on=KEYS, suffixes=("", "_known"))
                errors = both["us"] / both["us_known"] - 1.0
                words.append(f"{100 * errors.median():+.1f} % ({100 * errors.abs().quantile(0.95):.1f})")
            print(f"{kind} {gpu}, of b200: as measured {words[0]}, without {words[1]}: median (95 % within)")


if __name__ == "__main__":
    main()
