"""Multi-head latent attention from tables of whole modules: their schema, least work, and any heads from them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.formula_cost import ACTIVATION_BYTES, BANDWIDTH_EFFICIENCY, GEMM_EFFICIENCY, latent_flops
from simulator.timing.profile.kernels import Attention, DecodeTable, PrefillTable
from simulator.timing.profile.profile_schema import DocumentKind, kv_precision, precision, read_axis, read_physics
from simulator.timing.profile.surface import Array, Physics, Sum, Surface, SurfaceAxis, flat, mesh
from simulator.timing.tables.products import WEIGHT_BYTES, product_curve
from simulator.timing.tables.table_schema import (
    ESTIMATED,
    EXTRAPOLATED,
    INTERPOLATED,
    MEASURED,
    PartSource,
    Tables,
    VersionTables,
    fill,
    header,
    nearest_versions,
    neighbours,
    steadiness,
    unscaled,
)

# Tables of multi-head latent attention as JSON (gzipped), beside the GPU's other tables: NAME-latent.json.gz.
#     {"schema": "batchlab latent tables", "version": 1, "name": "h200-vllm-0.24", "gpu": "h200",
#      "software": "vLLM ...", "sources": [...], "rejected": {...}, "errors": {...},
#      "dimensions": {"hidden": 7168, "q_lora_rank": 1536, "kv_lora_rank": 512, "rope_head_dim": 64, "head_dim": 128},
#      "decode": [{"dtype": "fp8_block", "kv": "bf16", "kernels": ["FLASH_ATTN_MLA"], "axes": [seqs, context],
#                  "heads": {"16": {"physics": {...}, "us": [...]}, ...}}, ...],
#      "prompt": [the same with axes [chunks, each]]}
#
# What is timed is the whole attention module of a layer (`tools.tables.latent` says what that is), for so many
# heads of one GPU. `us` is 10^3 x log(microseconds), rounded, the last axis fastest; null where nothing was
# measured. The features of the physics are those of `simulator.timing.arithmetic`.

SCHEMA = "batchlab latent tables"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "latent tables", "make tables")
SUFFIX = "-latent"  # between the name of a GPU's tables and `.json.gz`
MEASURED_FOR = ("hidden", "q_lora_rank", "kv_lora_rank", "rope_head_dim", "head_dim", "index_topk")
"""The dimensions that a module's time depends on, its heads apart."""


@dataclass(frozen=True, slots=True)
class Module:
    """The attention module for so many heads: its physics, and log(microseconds) over both axes, its holes filled."""

    physics: Physics
    log_us: Array
    measured: NDArray[np.bool_]  # False at what were holes


@dataclass(frozen=True, slots=True)
class Modules:
    """The module for decodes or for prompts, with projections of one precision and a KV cache of one; by heads."""

    dtype: str
    kv_dtype: str
    kernels: tuple[str, ...]
    axes: tuple[SurfaceAxis, SurfaceAxis]
    by_heads: Mapping[int, Module]


@dataclass(frozen=True, slots=True, eq=False)
class LatentTables(VersionTables):
    """Latent attention for a model of these `dimensions`."""

    dimensions: Mapping[str, int]
    decode: tuple[Modules, ...]
    prompt: tuple[Modules, ...]


@lru_cache(maxsize=16)
def read_latent(path: Path) -> LatentTables:
    """Latent tables from a file. InputError where it cannot be read, or is of another schema or version."""
    return load_latent(KIND.read(path), str(path))


def load_latent(document: object, file: str | None = None) -> LatentTables:
    """Latent tables from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        return LatentTables(
            **header(held),
            dimensions={name: int(held["dimensions"].get(name, 0)) for name in MEASURED_FOR},
            decode=tuple(_modules(part, "latent decode") for part in held["decode"]),
            prompt=tuple(_modules(part, "latent prompt") for part in held["prompt"]),
        )


def _modules(document: dict[str, Any], name: str) -> Modules:
    first, second = (read_axis(axis, name) for axis in document["axes"])
    shape = (len(first.values), len(second.values))
    found: dict[int, Module] = {}
    for heads, part in document["heads"].items():
        physics = read_physics(part["physics"], name)
        measured = unscaled(part["us"]).reshape(shape)
        found[int(heads)] = Module(physics, filled((first, second), physics, measured), ~np.isnan(measured))
    return Modules(
        dtype=str(document["dtype"]),
        kv_dtype=str(document["kv"]),
        kernels=tuple(map(str, document["kernels"])),
        axes=(first, second),
        by_heads=dict(sorted(found.items())),
    )


def filled(axes: tuple[SurfaceAxis, SurfaceAxis], physics: Physics, log_us: Array) -> Array:
    """log(microseconds) with its holes filled: the physics there, corrected as their neighbours are."""
    base = np.log(np.asarray(physics.us(module_features(axes)), dtype=np.float64))
    residual = log_us - base
    return np.asarray(base + fill(residual, steadiness(residual)))


def module_features(axes: tuple[SurfaceAxis, SurfaceAxis]) -> dict[str, Array]:
    """The counts at the places of a table."""
    return counts(axes[0].name == "seqs", *mesh(axes))


def counts(decodes: bool, first: Array, second: Array) -> dict[str, Array]:
    """The work of equal decodes (how many, context), or of equal fresh prompts (how many, tokens of each)."""
    if decodes:
        return {"seqs": first, "keys": first * second, "chain": second}
    return {"tokens": first * second, "pairs": 0.5 * first * second * (second + 1.0), "chain": second}


# Least work of multi-head latent attention: its products, and the least time that a GPU can take for them.

Dimensions = Mapping[str, int]
"""hidden, q_lora_rank, kv_lora_rank, rope_head_dim, head_dim: of values and of queries without rope."""
KV_BYTES = {"bf16": 2, "fp8": 1}
ABSORBED_BYTES = 2  # of a weight of W_UK and W_UV, which vLLM keeps in bf16


def projections(of: Dimensions, heads: int) -> dict[str, tuple[int, int]]:
    """(n, k) of the products of a module that depend on the width of the model or of the query's bottleneck."""
    latent, query = of["kv_lora_rank"] + of["rope_head_dim"], of["head_dim"] + of["rope_head_dim"]
    out = (of["hidden"], heads * of["head_dim"])
    if not of["q_lora_rank"]:
        return {"q": (heads * query, of["hidden"]), "kv_a": (latent, of["hidden"]), "output_projection": out}
    return {
        "qkv_a": (of["q_lora_rank"] + latent, of["hidden"]),
        "q_b": (heads * query, of["q_lora_rank"]),
        "output_projection": out,
    }


def up_projection(of: Dimensions) -> int:
    """Weights for each head that turn a latent into its keys and values, or absorb them."""
    return 2 * of["head_dim"] * of["kv_lora_rank"]


def decode_least_us(
    of: Dimensions, gpu: Gpu, dtype: str, kv_dtype: str, heads: Array, seqs: Array, context: Array
) -> Array:
    """The least microseconds of a module for decodes: weights and latents read once, operations at the peaks."""
    weights, up = _weights(of, heads), up_projection(of) * heads
    keys = seqs * context
    peak = gpu.tflops("fp8" if kv_dtype == "fp8" else "bf16")
    key_flops, _ = _flops(of)
    flops = 2 * weights * seqs / gpu.tflops(dtype) + 2 * up * seqs / gpu.bf16_tflops + key_flops * heads * keys / peak
    width = (of["kv_lora_rank"] + of["rope_head_dim"]) * KV_BYTES[kv_dtype]
    moved = WEIGHT_BYTES[dtype] * weights + ABSORBED_BYTES * up + width * keys
    return np.asarray(np.maximum(flops / 1e6, moved / (gpu.bandwidth_gb_s * 1e3)))


def prompt_least_us(
    of: Dimensions, gpu: Gpu, dtype: str, kv_dtype: str, heads: Array, chunks: Array, each: Array
) -> Array:
    """The least time of a module for fresh prompts, whose attention is computed in bf16."""
    del kv_dtype  # a fresh prompt reads no cache
    weights = _weights(of, heads) + up_projection(of) * heads
    pairs = chunks * 0.5 * each * (each + 1.0)
    _, pair_flops = _flops(of)
    flops = 2 * weights * chunks * each / gpu.tflops(dtype) + pair_flops * heads * pairs / gpu.bf16_tflops
    return np.asarray(np.maximum(flops / 1e6, WEIGHT_BYTES[dtype] * weights / (gpu.bandwidth_gb_s * 1e3)))


def up_projection_us(of: Dimensions, gpu: Gpu, dtype: str, heads: int) -> float:
    """Microseconds to turn the latent of one cached token into keys and values of all heads again.

    A chunk of a prompt does it for all tokens before it (vLLM, `MLACommonImpl._compute_prefill_context`): a product,
    whose results are written, and its keys put together with the rope key: read and written once more.
    """
    own, rope = of["head_dim"], of["rope_head_dim"]
    moved = ACTIVATION_BYTES * heads * (2 * own + own + (own + rope))
    flops = 2 * up_projection(of) * heads
    flops_us = gpu.tflops(dtype) * 1e6 * GEMM_EFFICIENCY
    return flops / flops_us + moved / (gpu.bandwidth_gb_s * 1e3 * BANDWIDTH_EFFICIENCY)


def _weights(of: Dimensions, heads: Array) -> Array:
    one, two = (sum(n * k for n, k in projections(of, count).values()) for count in (1, 2))
    return np.asarray(one + (two - one) * (heads - 1.0))  # linear in the heads


def _flops(of: Dimensions) -> tuple[int, int]:
    return latent_flops(of["kv_lora_rank"], of["rope_head_dim"], of["head_dim"])


# Multi-head latent attention of any heads from tables of whole modules, as a part of a composed profile.
#
# - Heads that were not measured lie between two that were, on a straight line: weights and operations are linear in
# them. Kimi-K3's rows on GB300 (12, 24, 48 and 96 heads, between DeepSeek-V3's) come out 3 % off by the median.
# - A model that differs from the measured one in its width or its query's bottleneck has other projections: theirs
# are taken out of the module's time and its own put in, both from the GPU's matrix products. By the same rule, from
# bf16 to nvfp4 (B200, B300, GB200, GB300), modules of 128 heads come out 1 to 5 % off by the median, of 8 to 64
# heads 8 to 26 %: repeated alone, a small module finds its weights in the L2 cache, where products were brought to
# a cold one.
# - A prompt behind cached context is a fresh one with more (query, key) pairs; keys and values of the cached tokens
# are projected up once more for each chunk, which counts as so many pairs for each.
# - A step with prompts and decodes runs their attention one after the other, and the projections once for all: the
# two modules' times are added, without what both have whatever they do, launches and the reading of weights.

KERNEL = ("kv_lora_rank", "rope_head_dim", "head_dim", "index_topk")
"""Dimensions of the attention kernels themselves: of others nothing can be said."""
LEAST_SHARE = 0.2  # a module keeps at least so much of its time when other projections take the place of its own


def find_latent(tables: Tables, model: Model | None = None) -> LatentTables | None:
    """The latent tables of the same GPU that lie beside these, of the nearest version; None where there are none.

    Those for a model are of its kernels' dimensions, where there are any.
    """
    if tables.folder is None:
        return None
    found = [read_latent(path) for path in sorted(tables.folder.glob(f"{tables.gpu}-*{SUFFIX}.json.gz"))]
    near = nearest_versions(found, tables.gpu, tables.software)
    of = {name: 0 if model is None else getattr(model, name) for name in KERNEL}
    fitting = [each for each in near if all(each.dimensions[name] == size for name, size in of.items())]
    plain = [each for each in near if not each.dimensions["index_topk"]]
    return next(iter([*fitting, *plain]), None)


def latent_attention(
    beside: Tables, tables: Tables, model: Model, gpu: Gpu, ranks: int
) -> tuple[Attention, list[PartSource], Mapping[str, Any]]:
    """The attention modules of a layer on one of `ranks` GPUs, projections included; their parts; what was read.

    The modules lie beside the tables `beside`; `tables` have the products of other projections. InputError that names
    what was not measured.
    """
    dtype, kv_dtype = precision(model), kv_precision(model)
    latent = find_latent(beside, model)
    if latent is None:
        what = f"{tables.name} has no kernel times of multi-head latent attention, which {model.name} needs"
        raise InputError(what, hint=f"{_others(tables.folder)}kind: roofline prices it by its dimensions")
    _refuse_dimensions(latent, model)
    heads, of = model.heads // ranks, {name: getattr(model, name) for name in MEASURED_FOR}
    found, parts = [], []
    for kind, there in (("decodes", latent.decode), ("prompts", latent.prompt)):
        modules = _find(latent, there, model, dtype, kv_dtype)
        module, how, words = module_of(modules, heads, latent.name)
        if latent.document.get("norms_taken_out"):
            how, words = how if how == EXTRAPOLATED else ESTIMATED, f"{words}, less uncompiled norms and rope"
        if latent.software != beside.software:
            words = f"{words}, as under {latent.software}"
        if of != latent.dimensions:
            module = _with_projections(tables, latent, modules, module, of, heads)
            how, words = EXTRAPOLATED, f"{words}, its own projections in the place of those measured"
        found.append((modules, module))
        parts.append(PartSource(f"latent attention with its projections, {kind}", how, words))
    (decodes, decode), (prompts, prompt) = found
    up_us = up_projection_us(of, gpu, dtype, heads)
    pair_us = dict(prompt.physics.roofs[0])["pairs"]
    parts += [
        PartSource("prompts behind cached context", ESTIMATED, "pairs, and keys and values projected up again"),
        PartSource("prompts beside decodes", ESTIMATED, "measured apart, added, launches and weights counted once"),
    ]
    attention = Attention(
        DecodeTable(_surface(decodes, decode)),
        PrefillTable(_surface(prompts, prompt), cached_pairs=up_us / pair_us if pair_us else 0.0),
        min(decode.physics.constant_us, prompt.physics.constant_us, float(np.exp(decode.log_us.min()))),
    )
    return attention, parts, latent.document


def module_of(modules: Modules, heads: int, name: str) -> tuple[Module, str, str]:
    """The module for so many heads, how it was come by, and in words. InputError beyond those that were measured."""
    words = f"{modules.dtype}, {modules.kv_dtype} KV, {heads} heads, {' and '.join(modules.kernels)}"
    if heads in modules.by_heads:
        return modules.by_heads[heads], MEASURED, words
    low, high = neighbours(modules.by_heads, heads)
    if low is None or high is None:
        of = f"{modules.dtype} with {modules.kv_dtype} KV"
        what = f"{name} has no multi-head latent attention of {of} for {heads} heads of a GPU"
        raise InputError(what, hint=f"measured: {', '.join(map(str, modules.by_heads))} heads")
    share = (heads - low) / (high - low)
    below, above = modules.by_heads[low], modules.by_heads[high]
    us = (1.0 - share) * np.exp(below.log_us) + share * np.exp(above.log_us)
    physics = _mixed(below.physics, above.physics, share)
    module = Module(physics, np.log(us), below.measured & above.measured)
    return module, INTERPOLATED, f"{words}, between {low} and {high}"


def _find(latent: LatentTables, there: tuple[Modules, ...], model: Model, dtype: str, kv_dtype: str) -> Modules:
    dtypes = sorted({modules.dtype for modules in there})
    if dtype not in dtypes:
        what = f"{latent.name} has no multi-head latent attention with projections of {dtype}, which {model.name} needs"
        raise InputError(what, hint=f"measured: {', '.join(dtypes)}; or kind: roofline")
    found = {modules.kv_dtype: modules for modules in there if modules.dtype == dtype}
    if kv_dtype not in found:
        what = f"{latent.name} has no multi-head latent attention with {kv_dtype} KV, which {model.name} needs"
        raise InputError(what, hint=f"measured: {', '.join(found)} KV; or kind: roofline")
    return found[kv_dtype]


def _refuse_dimensions(latent: LatentTables, model: Model) -> None:
    wrong = [name for name in KERNEL if getattr(model, name) != latent.dimensions[name]]
    if wrong:
        theirs = ", ".join(f"{name} {getattr(model, name)}" for name in wrong)
        ours = ", ".join(f"{name} {latent.dimensions[name]}" for name in KERNEL if latent.dimensions[name])
        what = f"{latent.name} has no multi-head latent attention with {theirs}, which {model.name} needs"
        raise InputError(what, hint=f"measured: {ours}; or kind: roofline")


def _with_projections(
    tables: Tables, latent: LatentTables, modules: Modules, module: Module, of: Dimensions, heads: int
) -> Module:
    """The module with the projections of these dimensions instead of the measured ones."""
    features = module_features(modules.axes)
    tokens = features["tokens"] if "tokens" in features else features["seqs"]
    added = np.zeros_like(tokens)
    edge = np.zeros(2)
    last = float(tokens.max())
    for dimensions, sign in ((of, 1.0), (latent.dimensions, -1.0)):
        for n, k in projections(dimensions, heads).values():
            if modules.dtype not in tables.products:
                what = f"{tables.name} has no matrix products of {modules.dtype}, of which other projections than the"
                raise InputError(f"{what} measured ones are made", hint=f"there are: {', '.join(tables.products)}")
            surface = tables.products[modules.dtype]
            curve = product_curve(surface, n, k, np.asarray(surface.axes[0].values), WEIGHT_BYTES[modules.dtype])
            added += sign * np.vectorize(curve.at, otypes=[float])(tokens)
            edge += sign * np.array([curve.at(1), (curve.at(last) - curve.at(1)) / max(last - 1.0, 1.0)])
    us = np.exp(module.log_us)
    changed = np.log(np.maximum(us + added, LEAST_SHARE * us))
    return Module(_shifted(module.physics, edge[0], edge[1]), changed, module.measured)


def _shifted(physics: Physics, constant_us: float, token_us: float) -> Physics:
    terms = tuple((name, max(each + token_us, LEAST_SHARE * each)) for name, each in physics.terms)
    constant = max(physics.constant_us + constant_us, LEAST_SHARE * physics.constant_us)
    return replace(physics, constant_us=constant, terms=terms)


def _mixed(low: Physics, high: Physics, share: float) -> Physics:
    def sums(one: Sum, two: Sum) -> Sum:
        return tuple((name, (1.0 - share) * each + share * dict(two)[name]) for name, each in one)

    return Physics(
        (1.0 - share) * low.constant_us + share * high.constant_us,
        sums(low.terms, high.terms),
        tuple(sums(one, two) for one, two in zip(low.roofs, high.roofs, strict=True)),
        low.p,
    )


def _surface(modules: Modules, module: Module) -> Surface:
    base = np.log(np.asarray(module.physics.us(module_features(modules.axes))))
    return Surface(modules.axes, module.physics, flat(module.log_us - base))


def _others(folder: Path | None) -> str:
    """The latent tables in a folder, for a hint."""
    there = [] if folder is None else [each.name.partition(SUFFIX)[0] for each in sorted(folder.glob(f"*{SUFFIX}.*"))]
    return f"measured: {', '.join(there)}; " if there else ""
