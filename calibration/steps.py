"""Fit whole steps: for a log of a server's steps, without kernels.

    us = curve(tokens) + rows x row + decode keys x key
         + prompt pairs x pair + longest prompt context x link + prompt tiles x tile

The curve rises in straight lines between doublings: flat while the weights are what is read, steep once operations are
what counts, in any shape between. Put into a profile's form it is run like any other: the curve over tokens, one over
rows, and the rest as the attention of a model of one layer. A log that does not say what was prompt and what was decode
gives the three coefficients of `kind: linear` instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.document import of_curve, of_surface
from calibration.heldout import FOLDS, SEED, summary
from calibration.rows import KernelRows, Table, make_table, read_csv, read_rows, read_text, select
from calibration.surface_fit import Shape, fit_physics
from simulator.errors import InputError
from simulator.timing.cost import COUNTS
from simulator.timing.linear_cost import Linear
from simulator.timing.profile.profile_cost import Options, capture_sizes
from simulator.timing.profile.profile_schema import SCHEMA, VERSION
from simulator.timing.profile.surface import Array, Curve, Physics, Surface, SurfaceAxis, prompt_features, round_us

TIMES = {"us": 1.0, "microseconds": 1.0, "ms": 1e3, "milliseconds": 1e3, "latency_ms": 1e3, "s": 1e6, "seconds": 1e6}
"""Names of the column of times, and microseconds in their unit."""

PLAIN = ("tokens", "context")
WHOLE = ("decode_seqs", "decode_context", "prefill_seqs", "prefill_tokens", "prefill_pairs")
FEWEST = 12

TERMS = ("rows", "keys", "pairs", "chain", "tiles")
COUNTS_OF_TOKENS = tuple(8.0 * 2.0**doubling for doubling in range(12))
"""Batch sizes between which a step's cost is a straight line, where not the log alone says where lines can end."""
NO_CORRECTION = (0.0,) * 4
FEWEST_BETWEEN = 3  # rows between two counts of tokens for the line between them to have a slope of its own


@dataclass(frozen=True, slots=True)
class StepFit:
    """A profile's JSON, or the coefficients of `kind: linear` where the log allows no more; and its errors."""

    document: dict[str, Any] | None
    linear: Linear | None
    errors: Mapping[str, Mapping[str, float]]


def read_step_log(path: Path) -> KernelRows:
    """Read steps from a file of rows, or a CSV with a column of times and those of `StepShape`, or tokens, context."""
    if ".jsonl" in path.name:
        rows = read_rows(path)
        if not len(rows.table("step")["us"]):
            raise InputError("no rows of whole steps", file=str(path), hint='rows with "kind": "step"')
        return rows
    header = read_text(path, "the step log").split("\n", 1)[0].strip().split(",")
    unit = next((name for name in header if name in TIMES), None)
    if unit is None:
        hint = f"one of: {', '.join(TIMES)}; columns here: {', '.join(header)}"
        raise InputError("no column of times", file=str(path), hint=hint)
    given = [name for name in COUNTS if name in header]
    if not set(WHOLE) - {"prefill_seqs", "prefill_pairs"} <= set(given):
        if not set(PLAIN) <= set(header):
            hint = f"either {', '.join(PLAIN)}, or {', '.join(WHOLE)}; columns here: {', '.join(header)}"
            raise InputError("no column has the work of the steps", file=str(path), hint=hint)
        columns = read_csv(path, (*PLAIN, unit))
        table = {"tokens": columns["tokens"], "context": columns["context"], "us": columns[unit] * TIMES[unit]}
    else:
        columns = read_csv(path, (*given, unit))
        table = _whole({name: columns[name] for name in given}, columns[unit] * TIMES[unit])
    if not np.issubdtype(table["us"].dtype, np.floating) or not (table["us"] > 0).all():
        raise InputError("times must be numbers above 0", file=str(path))
    return KernelRows(gpu="", tables={"step": table})


def _whole(columns: dict[str, Array], us: Array) -> Table:
    """Make the table of steps; what the log leaves out is at its least: one chunk, behind no cached tokens."""
    tokens = columns["prefill_tokens"]
    columns.setdefault("prefill_seqs", np.where(tokens > 0, 1.0, 0.0))
    chunks = np.maximum(columns["prefill_seqs"], 1.0)
    columns.setdefault("prefill_context", tokens)
    cached = np.maximum(columns["prefill_context"] - tokens, 0.0) / chunks
    columns.setdefault("prefill_pairs", tokens * cached + tokens * (tokens / chunks + 1.0) / 2.0)
    return make_table("step", {**columns, "us": us})


def fit_steps(rows: KernelRows, name: str, model: str = "", gpu: str = "", tensor_parallel: int = 1) -> StepFit:
    """Fit a log of steps. InputError where there are too few, or too many that are flagged."""
    rows.refuse_flagged()
    table = rows.table("step")
    size = len(table["us"])
    if size < FEWEST:
        raise InputError(f"{size} steps are too few to fit", hint=f"at least {FEWEST}, of different sizes")
    fold = np.random.default_rng(SEED).permutation(size) % FOLDS
    if "decode_seqs" in table:
        table = {**table, "tokens": _tokens(table, is_padded=rows.is_padded)}
    errors = {"random": summary(np.concatenate([_errors(table, fold != i, fold == i) for i in range(FOLDS)]))}
    if "decode_seqs" not in table:
        physics = _fit(table)
        terms = dict(physics.terms)
        us = physics.constant_us, terms["tokens"], terms["keys"]
        return StepFit(None, Linear(*(float(f"{each * 1e-6:.6g}") for each in us)), errors)
    document = document_of(_fit(table), _counts(table), table, name, model, gpu, tensor_parallel)
    document["software"] = rows.software
    document["sources"] = [dict(source) for source in rows.sources]
    if rows.gpu and rows.kv_dtype:  # of a GPU; a CPU computes in float32, whatever it stands for
        document |= {"dtype": rows.dtype, "kv_dtype": rows.kv_dtype}
    document["errors"] = {"step": errors}
    return StepFit(document, None, errors)


def _tokens(table: Table, *, is_padded: bool) -> Array:
    """Tokens that were computed: padded to the next size for which a server captures graphs, if it does."""
    tokens = table["decode_seqs"] + table["prefill_tokens"]
    if not is_padded:
        return np.asarray(tokens, dtype=np.float64)
    sizes = np.array(capture_sizes(Options().max_capture_tokens), dtype=np.float64)
    return np.where(tokens <= sizes[-1], sizes[np.minimum(np.searchsorted(sizes, tokens), len(sizes) - 1)], tokens)


def _errors(table: Table, train: NDArray[np.bool_], rest: NDArray[np.bool_]) -> Array:
    tested, fitted = select(table, rest), select(table, train)
    physics = _fit(fitted)
    return np.asarray(physics.us(_features(tested, _counts(fitted))) / tested["us"] - 1.0)


def _fit(table: Table) -> Physics:
    counts = _counts(table)
    terms = (*(_ramp(count) for count in counts), *TERMS) if counts else ("tokens", "keys")
    return fit_physics(Shape(terms, ()), _features(table, counts), table["us"])


def _counts(table: Table) -> list[float]:
    """Doublings of tokens between which there are rows enough, and the most tokens; none for a log without parts."""
    if "decode_seqs" not in table:
        return []
    tokens, found, below = table["tokens"], [], 0.0
    most = float(tokens.max())
    for count in (8.0 * 2.0 ** np.arange(20)).tolist():
        if count >= most:
            break
        between = ((tokens > below) & (tokens <= count)).sum()
        if between >= FEWEST_BETWEEN and (tokens > count).sum() >= FEWEST_BETWEEN:
            found.append(count)
            below = count
    return [*found, most]


def _ramp(count: float) -> str:
    return f"up to {count:g}"


def ramps(counts: Sequence[float]) -> tuple[str, ...]:
    """The names of the lines that end at these counts."""
    return tuple(map(_ramp, counts))


def matrix(table: Table) -> Array:
    """The features of steps, a column each: 1, the lines of `COUNTS_OF_TOKENS`, and `TERMS`."""
    tokens = {"tokens": table["decode_seqs"] + table["prefill_tokens"]}
    features = _features({**tokens, **table}, COUNTS_OF_TOKENS)
    names = (*ramps(COUNTS_OF_TOKENS), *TERMS)
    return np.column_stack([np.ones(len(table["us"])), *(features[name] for name in names)])


def _features(table: Table, counts: Sequence[float]) -> Mapping[str, Array]:
    if not counts:
        return {"tokens": table["tokens"], "keys": table["context"]}
    chunks, tokens = table["prefill_seqs"], table["prefill_tokens"]
    ramps = {
        _ramp(count): np.clip((table["tokens"] - below) / (count - below), 0.0, None if count == counts[-1] else 1.0)
        for below, count in pairwise([0.0, *counts])
    }
    prompt = prompt_features(np.maximum(chunks, 1.0), tokens, table["prefill_pairs"], table["prefill_longest"], 0, 0.0)
    return {
        **ramps,
        "rows": table["decode_seqs"] + chunks,
        "keys": table["decode_context"],
        "pairs": prompt["pairs"],
        "chain": prompt["chain"],
        "tiles": prompt["tiles"],
    }


def document_of(
    physics: Physics, counts: Sequence[float], table: Table, name: str, model: str, gpu: str, tensor_parallel: int
) -> dict[str, Any]:
    """The JSON of a profile of whole steps, with lines over tokens to `counts`; the table was measured."""
    terms = dict(physics.terms)
    rises = [terms[_ramp(count)] for count in counts]
    at = np.array([1.0, *counts])
    us = physics.constant_us + np.array([rises[0] / counts[0], *np.cumsum(rises)])
    beyond = float(f"{rises[-1] / (counts[-1] - ([0.0, *counts])[-2]):.6g}")
    seqs, context = _range(table["decode_seqs"]), _range(table["decode_context"] / np.maximum(table["decode_seqs"], 1))
    axes = SurfaceAxis("seqs", seqs), SurfaceAxis("context", context)
    decode = Surface(axes, Physics(0.0, (("keys", terms["keys"]),)), NO_CORRECTION)
    axes = SurfaceAxis("chunks", _range(table["prefill_seqs"])), SurfaceAxis("each", _range(table["prefill_tokens"]))
    of_prompts = tuple((name, terms[name]) for name in ("pairs", "chain", "tiles"))
    prompt = Surface(axes, Physics(0.0, of_prompts), NO_CORRECTION)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "name": name,
        "model": model,
        "gpu": gpu,
        "tensor_parallel": tensor_parallel,
        "layers": 1,
        "host": {"step_s": 0.0, "seq_s": 0.0, "from": "fitted with the steps"},
        "attention": {
            "prompts": "apart", "launch_us": 0.0, "decode": of_surface(decode), "prompt": of_surface(prompt),
        },
        "tables": {
            "layer": {"step": of_curve(Curve(tuple(at.tolist()), tuple(round_us(us)), beyond))},
            "step": {},
            "rows": {"row": of_curve(Curve((1.0, 2.0), (terms["rows"], 2 * terms["rows"]), terms["rows"]))},
        },
    }  # fmt: skip


def _range(values: Array) -> tuple[float, float]:
    low = float(max(1.0, values[values > 0].min(initial=1.0)))
    return low, float(max(low + 1.0, values.max()))
