"""Multi-head latent attention of any heads from tables of whole modules, as a part of a composed profile.

- Heads that were not measured lie between two that were, on a straight line: weights and operations are linear in them.
  Kimi-K3's rows on GB300 (12, 24, 48 and 96 heads, between DeepSeek-V3's) come out 3 % off by the median.
- A model that differs from the measured one in its width or its query's bottleneck has other projections: theirs are
  taken out of the module's time and its own put in, both from the GPU's matrix products. By the same rule, from bf16
  to nvfp4 (B200, B300, GB200, GB300), modules of 128 heads come out 1 to 5 % off by the median, of 8 to 64 heads 8 to
  26 %: repeated alone, a small module finds its weights in the L2 cache, where products were brought to a cold one.
- A prompt behind cached context is a fresh one with more (query, key) pairs; keys and values of the cached tokens are
  projected up once more for each chunk, which counts as so many pairs for each.
- A step with prompts and decodes runs their attention one after the other, and the projections once for all: the two
  modules' times are added, without what both have whatever they do, launches and the reading of weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.profile.physics import Physics, Sum
from simulator.timing.profile.profile_scope import kv_precision, precision
from simulator.timing.profile.step import Attention, DecodeTable, PrefillTable
from simulator.timing.profile.surface import Surface, flat
from simulator.timing.tables.latent_counts import Dimensions, projections, up_projection_us
from simulator.timing.tables.latent_schema import (
    MEASURED_FOR,
    SUFFIX,
    LatentTables,
    Module,
    Modules,
    module_features,
    read_latent,
)
from simulator.timing.tables.part_sources import ESTIMATED, EXTRAPOLATED, INTERPOLATED, MEASURED, PartSource, neighbours
from simulator.timing.tables.products import WEIGHT_BYTES, product_curve
from simulator.timing.tables.table_files import nearest_versions
from simulator.timing.tables.table_schema import Tables

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
