"""Tables of a GPU's kernels as JSON (gzipped): their fields, holes, sources, and what other tables lend them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from simulator.errors import InputError
from simulator.timing.profile.kernels import JointTable
from simulator.timing.profile.profile_schema import DocumentKind, Profile, read_axis, read_physics
from simulator.timing.profile.surface import Array, Physics, Surface, SurfaceAxis, flat

# Fields that all tables of kernel times have, numbers as their files hold them, and the nearest version.

SCALE = 1e-3  # the value of 1 among the numbers of a file, which are logarithms


@dataclass(frozen=True, slots=True, eq=False)
class VersionTables:
    """Tables of a GPU under a version of an engine. `document` is the JSON, with errors and sources.

    Equal to itself alone: what is composed of tables is kept by them.
    """

    name: str
    gpu: str
    software: str
    document: Mapping[str, Any]


T = TypeVar("T", bound=VersionTables)


def header(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `VersionTables`."""
    return {**{name: str(document[name]) for name in ("name", "gpu", "software")}, "document": document}


def unscaled(values: Sequence[int | None]) -> Array:
    """The logarithms of a file; NaN for null, where nothing was measured."""
    return np.array([np.nan if value is None else value * SCALE for value in values])


def nearest_versions(tables: Iterable[T], gpu: str, software: str) -> list[T]:
    """Sort the tables of a GPU and the same engine, those whose version is nearest to `software` first."""
    wanted = _minor(software)
    found = [each for each in tables if each.gpu == gpu and engine_of(each.software) == engine_of(software)]
    return sorted(found, key=lambda each: (abs(_minor(each.software) - wanted), each.name))


def engine_of(software: str) -> str:
    """The engine of "vLLM 0.19.0"."""
    return software.rpartition(" ")[0]


def _minor(software: str) -> float:
    """The minor number of "vLLM 0.19.0"; 0 where there is none."""
    parts = software.split()[-1].split(".")
    return float(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0.0


# Tables with holes: what is not known takes the mean of its neighbours, from the edges of the known inwards.

TINY = 1e-8  # values closer than 1e-4 are equal


def steadiness(table: Array) -> list[float]:
    """Weight of neighbours along each axis: one over the mean square of their differences."""
    found = []
    for axis in range(table.ndim):
        steps = np.diff(table, axis=axis) ** 2
        steps = steps[~np.isnan(steps)]
        found.append(1.0 / max(float(steps.mean()), TINY) if len(steps) else 1.0 / TINY)
    return found


def fill(table: Array, weights: Sequence[float] | None = None) -> Array:
    """The table with its holes (NaN) filled; 0 where nothing is known. Without weights all neighbours count alike."""
    if np.isnan(table).all():
        return np.zeros_like(table)
    table = table.copy()
    weights = [1.0] * table.ndim if weights is None else weights
    while np.isnan(table).any():
        total, count = np.zeros(table.shape), np.zeros(table.shape)
        for axis in range(table.ndim):
            for shift in (1, -1):
                near = np.roll(table, shift, axis=axis)
                edge: list[slice | int] = [slice(None)] * table.ndim
                edge[axis] = 0 if shift == 1 else -1
                near[tuple(edge)] = np.nan
                known = ~np.isnan(near)
                total[known] += weights[axis] * near[known]
                count[known] += weights[axis]
        holes = np.isnan(table) & (count > 0)
        table[holes] = total[holes] / count[holes]
    return table


# Tables as JSON (gzipped): the kernels of one GPU under one version of one engine, whatever the model.
#     {"schema": "batchlab tables", "version": 1, "name": "h100-vllm-0.19", "gpu": "h100", "software": "vLLM 0.19.0",
#      "sources": [...], "left_out": {...}, "errors": {...},
#      "products": {"bf16": {"axes": [m, n, k], "physics": {...}, "correction": [...]}, ...},
#      "decode": [{"head_dim": 128, "kv": "bf16", "window": 0, "axes": [seqs, context], "physics": {...},
#                  "heads": {"32/8": [...], ...}}, ...],
#      "prompt": [the same with axes [chunks, each]],
#      "all_reduce": {"2": {"bytes": [...], "us": [...]}, ...}}
#
# Heads are query heads / KV heads of one GPU. `correction` is 10^3 x log(measured / physics), and the lists of
# heads are 10^3 x log(microseconds), rounded, the last axis fastest; null where nothing was measured. A window of 0
# is none. The features of the physics are those of `products` and `attention`.

SCHEMA = "batchlab tables"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "tables", "batchlab calibrate tables")
Heads = tuple[int, int]  # query heads and KV heads of one GPU


@dataclass(frozen=True, slots=True)
class HeadTable:
    """One kind of attention (decodes or prompts) for heads of one width, one KV precision, one window (0: none).

    `log_us` is log(microseconds) over both axes, NaN where not measured; of another window if the table is `estimated`.
    """

    head_dim: int
    kv_dtype: str
    window: int
    axes: tuple[SurfaceAxis, SurfaceAxis]
    physics: Physics
    log_us: Mapping[Heads, Array]
    estimated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Tables(VersionTables):
    """All kernels of a GPU under a version of an engine. `products` and `all_reduce` by precision and GPUs."""

    products: Mapping[str, Surface]
    decode: tuple[HeadTable, ...]
    prompt: tuple[HeadTable, ...]
    all_reduce: Mapping[int, tuple[Array, Array]]
    folder: Path | None = None  # where they lie, beside tables of experts


@lru_cache(maxsize=16)
def read_tables(path: Path) -> Tables:
    """Tables from a file. InputError where it cannot be read, or is of another schema or version."""
    return replace(load_tables(KIND.read(path), str(path)), folder=path.parent)


def load_tables(document: object, file: str | None = None) -> Tables:
    """Tables from the parsed JSON; `file` is where errors say it came from."""
    with KIND.opened(document, file) as held:
        return Tables(
            **header(held),
            products={name: _products(part, name) for name, part in held["products"].items()},
            decode=tuple(_heads(part, "decode") for part in held["decode"]),
            prompt=tuple(_heads(part, "prompt") for part in held["prompt"]),
            all_reduce={
                int(ranks): (np.asarray(part["bytes"], float), np.asarray(part["us"], float))
                for ranks, part in held["all_reduce"].items()
            },
        )


def _products(document: dict[str, Any], name: str) -> Surface:
    axes = tuple(read_axis(axis, name) for axis in document["axes"])
    shape = tuple(len(axis.values) for axis in axes)
    table = unscaled(document["correction"]).reshape(shape)
    return Surface(axes, read_physics(document["physics"], name), flat(fill(table, steadiness(table))))


def _heads(document: dict[str, Any], name: str) -> HeadTable:
    first, second = (read_axis(axis, name) for axis in document["axes"])
    shape = (len(first.values), len(second.values))
    found: dict[Heads, Array] = {}
    for key, values in document["heads"].items():
        heads, kv_heads = map(int, key.split("/"))
        found[heads, kv_heads] = unscaled(values).reshape(shape)
    return HeadTable(
        head_dim=int(document["head_dim"]),
        kv_dtype=str(document["kv"]),
        window=int(document["window"]),
        axes=(first, second),
        physics=read_physics(document["physics"], name),
        log_us=found,
    )


# How the times of a step's parts were come by: what is told of a profile beside its figures.

MEASURED, INTERPOLATED, EXTRAPOLATED = "measured", "interpolated", "extrapolated"
ESTIMATED, ASSUMED, BORROWED = "estimated", "assumed", "borrowed"
"""At that size; between sizes; beyond them; by a form that holds on other cards; from a datasheet or another card; from
kernels of another engine or version on the same card."""
UNEQUAL = "unequal contexts"  # the part, and its name among those that a profile says are assumed
NOTHING = "nothing"  # how the words of a part begin that costs nothing, for want of rows
WHOLE_STEP = "step"  # a curve of whole steps, of a profile that was fitted to a log


@dataclass(frozen=True, slots=True)
class PartSource:
    """A part of a step, how its times were come by, in one of the words above, and why."""

    name: str
    how: str
    words: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.how}" + (f" ({self.words})" if self.words else "")


def neighbours(measured: Collection[int], value: float) -> tuple[int | None, int | None]:
    """The largest measured size below a value, and the smallest above it; None where there is none."""
    below, above = [size for size in measured if size < value], [size for size in measured if size > value]
    return max(below, default=None), min(above, default=None)


def parts_of(profile: Profile) -> tuple[PartSource, ...]:
    """How the parts of a composed profile were come by; none of a fitted one."""
    return tuple(PartSource(*part) for part in profile.document.get("parts", ()))


def fitted_parts(profile: Profile) -> tuple[PartSource, ...]:
    """The parts of a profile that was fitted to rows of its model; none of a composed one."""
    document = profile.document
    if "parts" in document:
        return ()
    assumed = document.get("assumed", ())
    curves = (*profile.layer_curves, *profile.step_curves, *profile.row_curves)
    parts = []
    for how in (MEASURED, ASSUMED):
        names = [name for name in curves if (name in assumed) == (how == ASSUMED)]
        if names:
            parts.append(PartSource(", ".join(names), how, "from bytes and launches" if how == ASSUMED else ""))
    if WHOLE_STEP in curves:
        return tuple(parts)
    attention = profile.attention
    if isinstance(attention.prompt, JointTable):
        parts.append(PartSource("attention", MEASURED, "prompts and decodes in one kernel"))
    else:
        times = f", decodes {attention.beside:.2f} times as long" if attention.beside != 1 else ""
        parts += [PartSource("attention", MEASURED, "prompts and decodes apart")]
        parts += [PartSource("prompts beside decodes", ESTIMATED, f"added{times}")]
    if profile.skew is None:
        parts.append(PartSource(UNEQUAL, ASSUMED, NOTHING))
    else:
        listed = UNEQUAL in assumed
        words = "thread blocks listed over the multiprocessors" if listed else "batches of two lengths"
        parts.append(PartSource(UNEQUAL, ESTIMATED if listed else MEASURED, words))
    if profile.experts is not None:
        parts.append(PartSource("experts", MEASURED))
    if profile.all_reduce is not None:
        source = str(document["all_reduce"].get("from", ""))
        nominal = "nominal" in source
        parts.append(PartSource("all-reduce", ASSUMED if nominal else MEASURED, source if nominal else ""))
    return tuple(parts)


# Parts that tables lack, from other tables of the same GPU: of another version, or of another engine.
#
# Kernels of one GPU differ less from engine to engine than a roofline does from a kernel, and often are the same
# library (DeepGEMM, FlashInfer). What is taken so is marked as borrowed, with the name of whose it is.

R = TypeVar("R")


def first(own: Tables, lenders: Sequence[Tables], take: Callable[[Tables], R]) -> tuple[R, Tables]:
    """Return what `take` makes of the first tables that have it, and these. The own ones' InputError if none has."""
    try:
        return take(own), own
    except InputError:
        for lender in lenders:
            with suppress(InputError):
                return take(lender), lender
        raise


def with_products(own: Tables, precisions: Iterable[str], lenders: Sequence[Tables]) -> Tables:
    """Return the tables with products of these precisions, where the lenders have what they lack."""
    products, lent = dict(own.products), {}
    for precision in precisions:
        lender = next((each for each in lenders if precision in each.products), None)
        if precision not in products and lender is not None:
            products[precision], lent[precision] = lender.products[precision], lender.software
    return replace(own, products=products, document={**own.document, "lent": lent}) if lent else own


def marked(parts: Iterable[PartSource], own: Tables, software: str) -> list[PartSource]:
    """Return parts as borrowed from the software, unless it is the tables' own."""
    if software == own.software:
        return list(parts)
    return [replace(part, how=BORROWED, words=as_under(part.words, software)) for part in parts]


def as_under(words: str, software: str) -> str:
    """Return the words of a part with whose kernels it has."""
    return f"{words}, as under {software}" if words else f"as under {software}"
