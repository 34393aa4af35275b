"""Linear attention (gated delta net, Mamba 2) of a layer from tables beside a GPU's other tables: NAME-linear.json.gz.

    {"schema": "batchlab linear tables", "version": 1, "name": "b200-sglang-0.5", "gpu": "b200", "software": "...",
     "sources": [...], "seqs": [...], "chunks": [...], "each": [...],
     "heads": {"2/8": {"decode": [...], "prompt": [...]}, ...}}

Heads are key heads / value heads of one GPU, of 128 each. A time is that of the convolution and the recurrence, coded
as in `simulator.timing.tables.table_schema`: of `seqs` decodes, whatever their contexts, and of `chunks` of `each`
tokens. Projections and the gated norm are not in it.

Mamba 2 has no public times of its recurrence: mamba2_perf of aiconfigurator-core 0.12.0 holds its convolutions alone.
Both recurrences read and write one matrix a head, a column of which is a token's, so one of Mamba 2 is taken to last as
long as a gated delta net of as many state values. On GPUs these are what a decode waits for: of 1,024 decodes, the one
of 32 value heads on an H200 moves 0.85 of its memory's bandwidth.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from simulator.errors import InputError
from simulator.hardware.model import MAMBA
from simulator.hardware.models import Model
from simulator.timing.formula_cost import STATE_BYTES
from simulator.timing.profile.profile_schema import DocumentKind
from simulator.timing.profile.surface import Array
from simulator.timing.tables.table_schema import (
    ESTIMATED,
    MEASURED,
    Heads,
    PartSource,
    Tables,
    VersionTables,
    fill,
    header,
    nearest_versions,
    steadiness,
    unscaled,
)

SCHEMA = "batchlab linear tables"
VERSION = 1
KIND = DocumentKind(SCHEMA, VERSION, "linear tables", "make tables")
SUFFIX = "-linear"
HEAD_DIM = 128


@dataclass(frozen=True, slots=True, eq=False)
class LinearTables(VersionTables):
    """Log microseconds of decodes over `seqs` and of prompts over (`chunks`, `each`), by heads of one GPU."""

    seqs: Array
    chunks: Array
    each: Array
    decode: Mapping[Heads, Array]
    prompt: Mapping[Heads, Array]


@lru_cache(maxsize=16)
def read_linear(path: Path) -> LinearTables:
    """Linear tables from a file. InputError where it cannot be read, or is of another schema or version."""
    with KIND.opened(KIND.read(path), str(path)) as held:
        seqs, chunks, each = (np.asarray(held[name], float) for name in ("seqs", "chunks", "each"))
        decode, prompt = {}, {}
        for key, part in held["heads"].items():
            keys, values = map(int, key.split("/"))
            decode[keys, values] = _filled(unscaled(part["decode"]))
            prompt[keys, values] = _filled(unscaled(part["prompt"]).reshape(len(chunks), len(each)))
        return LinearTables(**header(held), seqs=seqs, chunks=chunks, each=each, decode=decode, prompt=prompt)


def linear_attention(tables: Tables, model: Model, ranks: int, seqs: Array, chunks: Array, each: Array) -> tuple[
    Array, Array, list[PartSource]
]:  # fmt: skip
    """Microseconds of a layer for so many decodes, and for chunks of so many tokens; the part.

    InputError that names what was not measured.
    """
    found = find_linear(tables)
    if found is not None and MAMBA in model.layer_types:
        return _mamba(found, model, ranks, seqs, chunks, each)
    if found is None or model.linear_head_dim != HEAD_DIM:
        what = f"{tables.name} has no linear attention with heads of {model.linear_head_dim}, which {model.name} needs"
        raise InputError(what, hint="kind: roofline prices it by its dimensions")
    heads = max(1, model.linear_key_heads // ranks), model.linear_value_heads // ranks
    if heads not in found.decode:
        there = ", ".join(f"{keys}/{values}" for keys, values in found.decode)
        what = f"{found.name} has no linear attention of {heads[0]} key and {heads[1]} value heads of a GPU"
        raise InputError(what, hint=f"measured: {there}")
    words = f"gated delta net, {heads[0]} key and {heads[1]} value heads"
    decode_us, prompt_us = _decodes_us(found, heads, seqs), _prompts_us(found, heads, chunks, each)
    return decode_us, prompt_us, [PartSource("linear attention", MEASURED, words)]


def _mamba(
    found: LinearTables, model: Model, ranks: int, seqs: Array, chunks: Array, each: Array
) -> tuple[Array, Array, list[PartSource]]:
    """The gated delta net with the nearest number of state values, for so many requests that these are as many.

    A decode moves the bytes of its state, which are float32 in the tables; a prompt computes, whatever their width.
    """
    alike = model.linear_value_heads * model.value_head_dim * model.linear_head_dim / ranks / HEAD_DIM**2
    heads = min(found.decode, key=lambda one: (abs(np.log(one[1] / alike)), -one[0]))
    times = alike / heads[1]
    moved = times * model.state_dtype_bytes / STATE_BYTES
    fewest = float(found.seqs[0]), float(found.chunks[0])
    words = f"Mamba 2, as a gated delta net of as many state values ({alike:g} heads of {HEAD_DIM} x {HEAD_DIM})"
    return (
        _decodes_us(found, heads, np.maximum(seqs * moved, fewest[0])),
        _prompts_us(found, heads, np.maximum(chunks * times, fewest[1]), each),
        [PartSource("linear attention", ESTIMATED, words)],
    )


def _decodes_us(found: LinearTables, heads: Heads, seqs: Array) -> Array:
    return np.asarray(np.exp(_between(found.seqs, found.decode[heads], seqs)))


def _prompts_us(found: LinearTables, heads: Heads, chunks: Array, each: Array) -> Array:
    by_chunk = np.stack([_between(found.each, row, each) for row in found.prompt[heads]])
    prompt_us = np.empty_like(each)
    for place in np.ndindex(each.shape):
        prompt_us[place] = np.exp(_between(found.chunks, by_chunk[:, *place], chunks[place]))
    return prompt_us


def find_linear(tables: Tables) -> LinearTables | None:
    """The linear tables of the same GPU and engine that lie beside these, of the nearest version."""
    if tables.folder is None:
        return None
    found = [read_linear(path) for path in sorted(tables.folder.glob(f"{tables.gpu}-*{SUFFIX}.json.gz"))]
    return next(iter(nearest_versions(found, tables.gpu, tables.software)), None)


def _filled(table: Array) -> Array:
    return fill(table, steadiness(table))


def _between(known: Array, log_us: Array, wanted: Array) -> Array:
    """Log microseconds at other sizes: straight lines in logarithms; beyond the last, in proportion to the size."""
    inside = np.interp(np.log(wanted), np.log(known), log_us)
    return np.asarray(inside + np.log(np.maximum(wanted / known[-1], 1.0)))
