"""Kernel rows: the form into which every source is read, under batchlab's names of GPUs and models."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS, Gpu
from simulator.hardware.model_config import is_config, named_model
from simulator.hardware.models import MODELS, Model, custom_model, find_model
from simulator.timing.cost import COUNTS
from simulator.timing.profile.surface import Array

# Translate the names of GPUs and models in sources to batchlab's own.

_GPU_ALIASES = {"a100sxm": "a100-80gb", "h100sxm": "h100", "h200sxm": "h200", "h10080gb": "h100"}
_TAILS = re.compile(r"(?:-?(?:instruct|chat|hf|base|\d{4}))+$")


def gpu_name(text: str) -> str:
    """batchlab's name of a GPU, from a driver's or a folder's; "" for an unknown one."""
    plain = _plain_name(text)
    for alias, name in _GPU_ALIASES.items():
        if alias in plain:
            return name
    return _best(plain, GPUS)


def model_name(text: str) -> str:
    """batchlab's name of a model, from its path on a hub (`Qwen/Qwen3-32B`); "" for an unknown one."""
    name = text.rpartition("/")[2].lower().removeprefix("meta-")
    name = _TAILS.sub("", name)
    return _best(_plain_name(name), MODELS, whole=True)


def model_of(text: str) -> Model:
    """Find the model that a command names: built in, the path of a config.json, or dimensions as `{layers: 32, ...}`.

    InputError where it is none of these.
    """
    if text.lstrip().startswith("{"):
        import yaml

        try:
            dimensions = yaml.safe_load(text)
        except yaml.YAMLError:
            dimensions = None
        if not isinstance(dimensions, dict):
            raise InputError(f"not a mapping of dimensions: {text}", hint="'{layers: 32, hidden: 4096, ...}'")
        return custom_model(dimensions)
    if is_config(text):
        return named_model(text)
    try:
        return find_model(model_name(text) or text)
    except InputError as error:
        hint = f"{error.hint}; any other by the path of its config.json, or by its dimensions, '{{layers: 32, ...}}'"
        raise InputError(error.message, hint=hint) from None


def _plain_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _best(plain: str, names: Iterable[str], whole: bool = False) -> str:
    """The longest name that `plain` contains; with `whole`, that it equals."""
    fitting = [name for name in names if (_plain_name(name) == plain if whole else _plain_name(name) in plain)]
    return max(fitting, key=len, default="")


# CSV files read as columns, gzipped or not; numbers are floats.

Columns = dict[str, NDArray[Any]]


TEXT = ("layer", "model", "hardware", "collective", "is_prefill")  # columns of words; all others are numbers


def find_columns(folder: Path, name: str, columns: Sequence[str]) -> Columns | None:
    """Read columns of folder/name.csv or .csv.gz; None where neither exists. InputError where it lacks a column."""
    for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
        if path.exists():
            return read_csv(path, columns)
    return None


def read_columns(folder: Path, name: str, columns: Sequence[str]) -> Columns:
    """Read columns as `find_columns` does. InputError where the file does not exist."""
    if (found := find_columns(folder, name, columns)) is None:
        raise InputError(f"no {name}.csv and no {name}.csv.gz", file=str(folder))
    return found


def read_text(path: Path, what: str) -> str:
    """Read a file's text, unpacked where its name ends in .gz. The InputError of a failure calls the file `what`."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {what}: {error}", file=str(path)) from None


def read_csv(path: Path, columns: Sequence[str]) -> Columns:
    """Read the named columns of a CSV file. InputError where one is missing, or holds anything but numbers."""
    lines = csv.reader(read_text(path, "the table").splitlines())
    header = next(lines, [])
    missing = [name for name in columns if name not in header]
    if missing:
        raise InputError(f"no column {missing[0]}", file=str(path), hint=f"columns here: {', '.join(header)[:300]}")
    places = [header.index(name) for name in columns]
    rows = []
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise InputError(f"{len(line)} values for {len(header)} columns", file=str(path), line=number)
        rows.append([line[place] for place in places])
    return {name: _typed(path, name, [row[i] for row in rows]) for i, name in enumerate(columns)}


def _typed(path: Path, name: str, values: list[str]) -> NDArray[Any]:
    if name in TEXT:
        return np.array(values, dtype=np.str_)
    numbers = np.empty(len(values))
    for i, value in enumerate(values):
        try:
            numbers[i] = float(value) if value else np.nan
        except ValueError:
            raise InputError(f"{name} is {value!r}, not a number", file=str(path), line=i + 2) from None
    return numbers


# The rows.

SCHEMA = "batchlab rows"
VERSION = 1

MOST_FLAGGED = 0.25  # share of flagged rows beyond which nothing is fitted
Table = dict[str, NDArray[Any]]  # columns by name, of equal length
STEP_OPS = ("embedding", "final_norm", "pooling")  # dense operators that a step has once; all others count once a layer

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "dense": ("op", "tokens", "us"),
    "sampled": ("op", "seqs", "us"),
    "attention": ("chunk", "cached", "seqs", "context", "chunks", "us"),
    "skew": ("seqs", "long_seqs", "short", "long", "chunk", "cached", "equal_us", "us"),
    "experts": ("tokens", "activated", "us"),
    "gemm": ("m", "n", "k", "us"),
    "all_reduce": ("gpus", "bytes", "us"),
    "step": (*COUNTS, "us"),
}
DEFAULTS: Mapping[str, float] = {"chunks": 1, "decode_longest": 0, "decode_squares": 0, "prefill_longest": 0}


@dataclass(frozen=True, slots=True)
class KernelRows:
    """Tables by kind, and their source. `gpu` and `model` are names of batchlab's own lists, or ""."""

    gpu: str
    model: str = ""
    tensor_parallel: int = 1
    dtype: str = "bf16"
    software: str = ""
    kv_dtype: str = ""  # "": the source does not say
    sources: tuple[Mapping[str, Any], ...] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    flagged: Mapping[str, Table] = field(default_factory=dict)

    def table(self, kind: str) -> Table:
        """The table of a kind; an empty one where there are no rows."""
        return self.tables.get(kind) or {column: np.empty(0) for column in COLUMNS[kind]}

    @property
    def is_padded(self) -> bool:
        """Tell whether batches were padded to captured graphs: yes, unless a source says that none were captured."""
        return not any(source.get("graphs") == "none" for source in self.sources)

    def count(self) -> int:
        return sum(len(table["us"]) for table in self.tables.values())

    def refuse_flagged(self) -> int:
        """Count the flagged rows. InputError where they are so many that the rest cannot be trusted either."""
        flagged = sum(len(table["us"]) for table in self.flagged.values())
        if flagged > MOST_FLAGGED * (flagged + self.count()):
            what = f"{flagged} of {flagged + self.count()} rows were measured beside a canary that had drifted"
            raise InputError(f"the device changed while it was measured: {what}", hint="measure it again, alone")
        return flagged

    def keep(self, kind: str, chosen: NDArray[np.bool_]) -> KernelRows:
        """Return a copy with only the chosen rows of a kind."""
        return replace(self, tables={**self.tables, kind: select(self.table(kind), chosen)})


def select(table: Table, chosen: NDArray[Any]) -> Table:
    """The rows of a table that a mask or indices choose."""
    return {column: values[chosen] for column, values in table.items()}


def make_table(kind: str, columns: Mapping[str, Any]) -> Table:
    """Make a table from columns; defaults fill those that are left out. InputError where a column is missing."""
    size = len(columns["us"])
    table: Table = {}
    for name in COLUMNS[kind]:
        if name in columns:
            dtype = np.str_ if name == "op" else np.float64
            table[name] = np.asarray(columns[name], dtype=dtype)
        elif name in DEFAULTS:
            table[name] = np.full(size, DEFAULTS[name], dtype=np.float64)
        else:
            raise InputError(f"rows of {kind} have no {name}", hint=f"their columns: {', '.join(COLUMNS[kind])}")
    return table


def merge(parts: Iterable[KernelRows]) -> KernelRows:
    """Join the rows of several sources: the header of the first, the tables and sources of all."""
    chosen = list(parts)
    sources = tuple(source for part in chosen for source in part.sources)
    tables, flagged = _joined([part.tables for part in chosen]), _joined([part.flagged for part in chosen])
    return replace(chosen[0], tables=tables, flagged=flagged, sources=sources)


def _joined(parts: Iterable[Mapping[str, Table]]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for part in parts:
        for kind, table in part.items():
            before = tables.get(kind)
            if before is None:
                tables[kind] = table
            else:
                tables[kind] = {column: np.concatenate([before[column], table[column]]) for column in table}
    return tables


def write_rows(rows: KernelRows, path: Path) -> None:
    """Write a file of rows."""
    header = {
        "schema": SCHEMA, "version": VERSION, "gpu": rows.gpu, "model": rows.model,
        "tensor_parallel": rows.tensor_parallel, "dtype": rows.dtype, "software": rows.software,
        "sources": [dict(source) for source in rows.sources],
    }  # fmt: skip
    header |= {"kv_dtype": rows.kv_dtype} if rows.kv_dtype else {}
    lines = [json.dumps(header)]
    for tables, marked in ((rows.tables, {}), (rows.flagged, {"flagged": True})):
        for kind, table in tables.items():
            columns = {name: values.tolist() for name, values in table.items()}
            for values in zip(*columns.values(), strict=True):
                row = {"kind": kind, **{name: _plain(value) for name, value in zip(columns, values, strict=True)}}
                lines.append(json.dumps(row | marked))
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text, encoding="utf-8")


def _plain(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_rows(path: Path) -> KernelRows:
    """Read a file of rows. InputError names the line that is no row."""
    lines = read_text(path, "the rows").splitlines()
    header = _parse(lines[0] if lines else "", path, 1)
    if header.get("schema") != SCHEMA or header.get("version") != VERSION:
        raise InputError(
            f'the first line is not the header of rows: {{"schema": "{SCHEMA}", "version": {VERSION}, ...}}',
            file=str(path), line=1,
        )  # fmt: skip
    columns: dict[str, dict[str, list[Any]]] = {}
    flagged: dict[str, dict[str, list[Any]]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            row = _parse(line, path, number)
            _take(row, flagged if row.get("flagged") else columns, path, number)
    return KernelRows(
        gpu=str(header.get("gpu", "")),
        model=str(header.get("model", "")),
        tensor_parallel=int(header.get("tensor_parallel", 1)),
        dtype=str(header.get("dtype", "bf16")),
        software=str(header.get("software", "")),
        kv_dtype=str(header.get("kv_dtype", "")),
        sources=tuple(header.get("sources", ())),
        tables={kind: make_table(kind, table) for kind, table in columns.items()},
        flagged={kind: make_table(kind, table) for kind, table in flagged.items()},
    )


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"not JSON: {error}", file=str(path), line=number) from None
    if not isinstance(row, dict):
        raise InputError("not a JSON object", file=str(path), line=number)
    return row


def _take(row: dict[str, Any], columns: dict[str, dict[str, list[Any]]], path: Path, number: int) -> None:
    kind = str(row.get("kind"))
    if kind not in COLUMNS:
        hint = f"allowed: {', '.join(COLUMNS)}"
        raise InputError(f"a row of unknown kind {kind!r}", file=str(path), line=number, hint=hint)
    table = columns.setdefault(kind, {name: [] for name in COLUMNS[kind]})
    for name in COLUMNS[kind]:
        value = row.get(name, DEFAULTS.get(name))
        wanted: Any = str if name == "op" else (int, float)
        if not isinstance(value, wanted) or isinstance(value, bool) or (name == "us" and not value > 0):
            raise InputError(f"a row of {kind} with {name} = {value!r}", file=str(path), line=number)
        table[name].append(value)


# Impossible rows, faster than the GPU's memory or arithmetic allows: taken out, counted and listed.
#
# Public tables hold some: pages read again from the L2 cache, broken timers.

TOLERANCE = 1.03  # a row may exceed the peak by this factor: datasheets round, and clocks boost
LISTED = 20  # most rejected rows that are described; all are counted


@dataclass(frozen=True, slots=True)
class Rejected:
    """Rows of a kind that were taken out: `count` `of` all, and the first of them in words."""

    kind: str
    count: int
    of: int
    listed: tuple[str, ...]

    def document(self) -> dict[str, object]:
        return {"kind": self.kind, "count": self.count, "of": self.of, "first": list(self.listed)}


def reject_impossible(rows: KernelRows, gpu: Gpu, model: Model | None) -> tuple[KernelRows, list[Rejected]]:
    """Take out the rows that are faster than the GPU's peaks allow; return the rest, and what was taken out.

    Matrix products are checked against both peaks. Attention is where the model is known: its KV heads say how many
    bytes a key has. Other kinds are not checked.
    """
    rejected = []
    for kind, table in rows.tables.items():
        least = _least_us(kind, table, gpu, model, rows.tensor_parallel)
        if least is None:
            continue
        impossible = table["us"] * TOLERANCE < least
        if impossible.any():
            rejected.append(_describe(kind, table, impossible, least))
            rows = rows.keep(kind, ~impossible)
    return rows, rejected


def _least_us(kind: str, table: Table, gpu: Gpu, model: Model | None, ranks: int) -> Array | None:
    """The least microseconds that each row can take."""
    per_byte = 1e6 / (gpu.bandwidth_gb_s * 1e9)
    per_flop = 1e6 / (gpu.bf16_tflops * 1e12)
    if kind == "gemm":
        m, n, k = table["m"], table["n"], table["k"]
        return np.asarray(np.maximum(2.0 * m * n * k * per_flop, 2.0 * (n * k + m * k + m * n) * per_byte))
    if kind == "attention" and model is not None and not model.kv_lora_rank:
        key_bytes = 2 * model.local_kv_heads(ranks) * model.head_dim * model.kv_dtype_bytes
        keys = table["seqs"] * table["context"] + table["chunks"] * np.where(
            table["chunk"] > 0, table["cached"] + table["chunk"], 0.0
        )
        pairs = table["chunks"] * table["chunk"] * (table["cached"] + 0.5 * (table["chunk"] + 1.0))
        flops = 4.0 * (model.heads // ranks) * model.head_dim * (pairs + table["seqs"] * table["context"])
        return np.asarray(np.maximum(keys * key_bytes * per_byte, flops * per_flop))
    return None


def _describe(kind: str, table: Table, impossible: NDArray[np.bool_], least: Array) -> Rejected:
    listed = []
    for row in np.flatnonzero(impossible)[:LISTED]:
        where = ", ".join(f"{name} {values[row]:g}" for name, values in table.items() if name not in ("us", "op"))
        listed.append(f"{where}: {table['us'][row]:.4g} us, where {least[row]:.4g} is the least that the GPU could")
    return Rejected(kind, int(impossible.sum()), len(impossible), tuple(listed))
