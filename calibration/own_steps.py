"""Fit whole steps: of a server's log, without kernels, or of what an engine measured of itself."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibration.engines import DEVICE, KERNELS, WHOLE
from calibration.fit import ASSUMED_HOST, of_curve, of_surface
from calibration.heldout import FOLDS, SEED, summary
from calibration.rows import KernelRows, Table, make_table, read_csv, read_rows, read_text, select
from calibration.surface_fit import Shape, fit_physics, nnls
from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.cost import COUNTS, StepShape
from simulator.timing.formula_cost import ACTIVATION_BYTES, BANDWIDTH_EFFICIENCY, Linear
from simulator.timing.profile.profile_cost import Options, capture_sizes
from simulator.timing.profile.profile_schema import SCHEMA, VERSION
from simulator.timing.profile.surface import Array, Curve, Physics, Surface, SurfaceAxis, prompt_features, round_us
from simulator.timing.tables.assumed import sampler

# Fit whole steps: for a log of a server's steps, without kernels.
#     us = curve(tokens) + rows x row + decode keys x key
#          + prompt pairs x pair + longest prompt context x link + prompt tiles x tile
#
# The curve rises in straight lines between doublings: flat while the weights are what is read, steep once
# operations are what counts, in any shape between. Put into a profile's form it is run like any other: the curve
# over tokens, one over rows, and the rest as the attention of a model of one layer. A log that does not say what
# was prompt and what was decode gives the three coefficients of `kind: linear` instead.

TIME_UNITS = {
    "us": 1.0,
    "microseconds": 1.0,
    "ms": 1e3,
    "milliseconds": 1e3,
    "latency_ms": 1e3,
    "s": 1e6,
    "seconds": 1e6,
}
"""Names of the column of times, and microseconds in their unit."""

PLAIN = ("tokens", "context")
WHOLE_COLUMNS = ("decode_seqs", "decode_context", "prefill_seqs", "prefill_tokens", "prefill_pairs")
FEWEST_LOGGED = 12

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
    unit = next((name for name in header if name in TIME_UNITS), None)
    if unit is None:
        hint = f"one of: {', '.join(TIME_UNITS)}; columns here: {', '.join(header)}"
        raise InputError("no column of times", file=str(path), hint=hint)
    given = [name for name in COUNTS if name in header]
    if not set(WHOLE_COLUMNS) - {"prefill_seqs", "prefill_pairs"} <= set(given):
        if not set(PLAIN) <= set(header):
            hint = f"either {', '.join(PLAIN)}, or {', '.join(WHOLE_COLUMNS)}; columns here: {', '.join(header)}"
            raise InputError("no column has the work of the steps", file=str(path), hint=hint)
        columns = read_csv(path, (*PLAIN, unit))
        table = {"tokens": columns["tokens"], "context": columns["context"], "us": columns[unit] * TIME_UNITS[unit]}
    else:
        columns = read_csv(path, (*given, unit))
        table = _whole({name: columns[name] for name in given}, columns[unit] * TIME_UNITS[unit])
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
    if size < FEWEST_LOGGED:
        raise InputError(f"{size} steps are too few to fit", hint=f"at least {FEWEST_LOGGED}, of different sizes")
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


# What is believed of a step's coefficients before and after steps were measured: a mean and a covariance.
#     us = constant + sum(coefficient x feature)                    (the features of `calibration.own_steps`)
#
# Before, the mean is the form fitted to what kernel tables or the roofline say of a grid of steps, and the
# covariance is such that steps are as far off as measured servers were from their predictions: half of the variance
# is shared by all coefficients (a server is quicker or slower in everything), half is each one's own; the costs of
# neighbouring batch sizes move together. In 817 runs of 46 cells of engine, model, GPU and precision the two halves
# are equal. Measured steps make a belief narrower by linear regression with normal errors; coefficients stay at 0
# or above.

Price = Callable[[StepShape], float]
"""Seconds of a step, without the host."""

NEIGHBOURS = 2.0  # doublings of tokens over which costs of batch sizes move together
LEAST = 0.05  # of a typical step: by at least so much may a part be off that the prior says costs nothing
SEQS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 512, 2048, 8192, 32768)
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Belief:
    """Coefficients in microseconds, the constant first, and their covariance.

    `form_error` is how far the form is from the prices that it was fitted to (a standard deviation of logarithms).
    """

    mean: Array
    covariance: Array
    form_error: float

    def us(self, table: Table) -> Array:
        """Expected microseconds of steps."""
        return np.asarray(matrix(table) @ self.mean)

    def log_sd(self, table: Table) -> Array:
        """Standard deviation of the logarithm of each step's time."""
        features = matrix(table)
        variance = np.einsum("ij,jk,ik->i", features, self.covariance, features)
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)) / (features @ self.mean))

    def given(self, table: Table, noise: Array) -> "Belief":
        """The belief after steps whose times are off by a fraction `noise` each."""
        scale, before, columns = self._columns(table, noise)
        off = np.hypot(noise, self.form_error) * table["us"]
        mean, _ = nnls(columns, np.concatenate([table["us"] / off, before @ (self.mean / scale)]))
        return replace(self.narrowed(table, noise), mean=mean * scale)

    def narrowed(self, table: Table, noise: Array) -> "Belief":
        """The belief after steps whose times are what is expected of them: as sure as `given`, and quicker."""
        scale, _, columns = self._columns(table, noise)
        return replace(self, covariance=np.linalg.inv(columns.T @ columns) * np.outer(scale, scale))

    def _columns(self, table: Table, noise: Array) -> tuple[Array, Array, Array]:
        """The coefficients' scale, the rows of what was believed, and these below those of the steps."""
        off = np.hypot(noise, self.form_error) * table["us"]
        scale = np.sqrt(np.diag(self.covariance))
        before = np.linalg.cholesky(np.linalg.inv(self.covariance / np.outer(scale, scale))).T
        return scale, before, np.vstack([matrix(table) * scale / off[:, None], before])

    def physics(self) -> Physics:
        """The coefficients as a profile's physics."""
        names = (*(ramps(COUNTS_OF_TOKENS)), *TERMS)
        values = [float(f"{value:.6g}") for value in self.mean]
        return Physics(values[0], tuple(zip(names, values[1:], strict=True)))


def believe(price: Price, spread: float, most_tokens: int, most_keys: float) -> Belief:
    """The belief before anything was measured.

    `spread` is by how much steps are off (a standard deviation of logarithms). The grid ends at steps of `most_tokens`
    and at as many KV tokens as the device holds.
    """
    table = grid(most_tokens, most_keys)
    shapes = (StepShape(*map(int, row)) for row in zip(*(table[name] for name in COUNTS), strict=True))
    us = 1e6 * np.array([price(shape) for shape in shapes])
    features = matrix(table)
    scale = np.maximum(np.quantile(features / us[:, None], 0.9, axis=0), 1e-12)
    mean, _ = nnls(features / us[:, None] / scale, np.ones(len(us)))
    mean = mean / scale
    error = float(np.quantile(np.abs(np.log(np.maximum(features @ mean, 1e-9) / us)), 0.68))
    part = np.maximum(mean, LEAST / scale)
    shared, own = np.outer(mean, mean), np.outer(part, part) * _together(len(mean))
    variance = [np.einsum("ij,jk,ik->i", features, each, features) / (features @ mean) ** 2 for each in (shared, own)]
    half = [spread**2 / 2.0 / float(np.median(each)) for each in variance]
    return Belief(mean, half[0] * shared + half[1] * own, error)


def _together(size: int) -> Array:
    """Correlations of the coefficients' own parts: of batch sizes by their distance, of all others none."""
    places = np.arange(size)
    found = np.exp(-np.abs(places[:, None] - places[None, :]) / NEIGHBOURS)
    sizes = places <= len(COUNTS_OF_TOKENS)
    return np.where(np.outer(sizes, sizes), found, np.eye(size))


def grid(most_tokens: int, most_keys: float) -> Table:
    """Steps of every kind: decodes, prompts fresh and behind cached tokens, and both."""
    rows: list[dict[str, float]] = []
    decodes = [(seqs, context) for seqs in SEQS for context in CONTEXTS if seqs * context <= most_keys]
    prompts = [tokens for tokens in PROMPTS if tokens <= most_tokens]
    rows += [shape_of(seqs, context) for seqs, context in decodes]
    rows += [shape_of(0, 0, 1, tokens, cached) for tokens in prompts for cached in (0, 8192)]
    rows += [shape_of(0, 0, 4, tokens // 4) for tokens in prompts if tokens >= 64]
    rows += [shape_of(seqs, context, 1, tokens) for seqs, context in decodes[::3] for tokens in prompts[3::2]]
    return table_of(rows)


def shape_of(seqs: int, context: int, chunks: int = 0, tokens: int = 0, cached: int = 0) -> dict[str, float]:
    """The counts of decodes of one context, and of equal prompt chunks behind cached tokens."""
    return {
        "decode_seqs": seqs, "decode_context": seqs * context, "decode_longest": context if seqs else 0,
        "decode_squares": seqs * context**2, "prefill_seqs": chunks, "prefill_tokens": chunks * tokens,
        "prefill_context": chunks * (tokens + cached), "prefill_longest": tokens + cached if chunks else 0,
        "prefill_pairs": chunks * (tokens * cached + tokens * (tokens + 1) // 2),
    }  # fmt: skip


def table_of(rows: Sequence[dict[str, float]]) -> Table:
    """A table of steps whose times are not known yet."""
    return make_table("step", {name: [row.get(name, 1.0) for row in rows] for name in (*COUNTS, "us")})


# The shapes whose measurement makes the interval of a step narrowest: chosen one by one.
#
# Each is the shape after which the mean variance over all steps of the grid is least, given those before it (greedy
# I-optimal design of the regression above). No more are asked for than bring the mean interval to within `ENOUGH`
# of what all shapes together would give.

ENOUGH = 1.1
MOST = 24
LEVEL, TIMES = 0.9, 1.645
"""The probability of the intervals that are told, and the standard deviations to each side that it takes."""


@dataclass(frozen=True, slots=True)
class AskedBatch:
    """A batch that a tool can be told to run: equal decodes, or equal prompts, fresh or behind cached tokens."""

    seqs: int = 0
    context: int = 0
    chunks: int = 0
    tokens: int = 0
    cached: int = 0

    def row(self) -> dict[str, float]:
        """Its counts."""
        return shape_of(self.seqs, self.context, self.chunks, self.tokens, self.cached)

    def case(self) -> str:
        """A case of `vllm bench forward`: a name, and its requests."""
        parts = [f"{self.seqs}*1@{self.context}"] if self.seqs else []
        if self.chunks:
            parts.append(f"{self.chunks}*{self.tokens}" + (f"@{self.tokens + self.cached}c" if self.cached else ""))
        name = "-".join(part.replace("*", "x").replace("@", "at") for part in parts)
        return f"{name}={','.join(parts)}"


@dataclass(frozen=True, slots=True)
class Asked:
    """The shapes in the order in which they were chosen, and the widths (upper over lower end) of the mean interval."""

    shapes: tuple[AskedBatch, ...]
    now: float
    after: float
    with_all: float


def candidates(most_tokens: int, most_keys: float, longest: int) -> list[AskedBatch]:
    """Shapes that can be measured: decodes, prompts and both, within the memory and the model's length."""
    found = [
        AskedBatch(seqs, context) for seqs in (1, 4, 16, 32, 64, 128, 256, 512) for context in (256, 1024, 4096, 16384)
    ]
    found += [AskedBatch(0, 0, 1, tokens) for tokens in (128, 512, 1024, 2048, 4096, 8192)]
    found += [AskedBatch(0, 0, 1, tokens, 8192) for tokens in (512, 2048)]
    found += [AskedBatch(0, 0, 4, tokens) for tokens in (128, 512)]
    found += [AskedBatch(32, 1024, 1, 512), AskedBatch(32, 1024, 1, 2048)]
    return [
        each
        for each in found
        if each.seqs * each.context + each.chunks * (each.tokens + each.cached) <= most_keys
        and max(each.context, each.tokens + each.cached) < longest
        and each.seqs + each.chunks * each.tokens <= most_tokens
    ]


def ask(belief: Belief, shapes: Sequence[AskedBatch], noise: float, most_tokens: int, most_keys: float) -> Asked:
    """Choose among the shapes. Some shape must be given."""
    known, targets = table_of([each.row() for each in shapes]), grid(most_tokens, most_keys)
    known = {**known, "us": belief.us(known)}
    every = np.arange(len(shapes))
    best = width(belief, known, every, noise, targets)
    chosen: list[int] = []
    now = after = width(belief, known, every[:0], noise, targets)
    while len(chosen) < min(MOST, len(shapes)) and after > best * ENOUGH:
        rest = [place for place in every.tolist() if place not in chosen]
        widths = [width(belief, known, np.array([*chosen, place]), noise, targets) for place in rest]
        place = int(np.argmin(widths))
        chosen.append(rest[place])
        after = widths[place]
    told = (math.exp(2.0 * TIMES * each) for each in (now, after, best))
    return Asked(tuple(shapes[place] for place in chosen), *told)


def width(belief: Belief, known: Table, chosen: NDArray[Any], noise: float, targets: Table) -> float:
    """The root mean variance of the targets' logarithms, once the chosen steps are measured and are as expected.

    What the form itself is off by is part of it: no measurement makes that less.
    """
    after = belief.narrowed(select(known, chosen), np.full(len(chosen), noise)) if len(chosen) else belief
    return float(np.hypot(np.sqrt(np.mean(after.log_sd(targets) ** 2)), belief.form_error))


# The fit of a profile to an engine's own steps.

FEWEST = 4
ALONE = 60  # up to so many steps each is held out alone, more in tenths
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98)
"""Probabilities for which the profile says how far off a step is."""
OWN = "own_steps"
"""The key of a profile that was fitted here."""


@dataclass(frozen=True, slots=True)
class OwnFit:
    """A profile's JSON, and how far steps were off before and are off now, held out (percent)."""

    document: dict[str, object]
    before: dict[str, float]
    held_out: dict[str, float]


def scope_of(rows: KernelRows) -> str | None:
    """What the times of an engine's own measurement hold; None for rows of another kind.

    InputError where sources are mixed whose times hold different things.
    """
    found = {str(source["scope"]) for source in rows.sources if "scope" in source}
    if len(found) > 1:
        raise InputError(f"sources of different kinds: times of {' and of '.join(sorted(found))}",
                         hint="fit one profile to each, and see which predicts the server better")  # fmt: skip
    return next(iter(found), None)


def noise_of(rows: KernelRows) -> float:
    """By how much a time may be off for what its source does not say, as a fraction."""
    return max(float(source["noise"]) for source in rows.sources if "noise" in source)


def fit_own_steps(rows: KernelRows, belief: Belief, model: Model, gpu: Gpu, name: str) -> OwnFit:
    """Fit the profile. InputError where there are too few steps."""
    scope, ranks = scope_of(rows) or WHOLE, rows.tensor_parallel
    table = rows.table("step")
    size = len(table["us"])
    if size < FEWEST:
        raise InputError(f"{size} steps are too few to fit", hint=f"at least {FEWEST}, of different sizes")
    if scope == KERNELS:
        head = head_us(model, gpu, ranks, table["decode_seqs"] + table["prefill_seqs"])
        table = {**table, "us": table["us"] + head}
    noise = np.full(size, noise_of(rows))
    fold = np.arange(size) if size <= ALONE else np.random.default_rng(SEED).permutation(size) % FOLDS
    errors, sure = np.empty(size), np.empty(size)
    for each in range(int(fold.max()) + 1):
        out = fold == each
        without, held = belief.given(select(table, ~out), noise[~out]), select(table, out)
        errors[out] = without.us(held) / held["us"] - 1.0
        sure[out] = np.sqrt(without.log_sd(held) ** 2 + noise[out] ** 2 + belief.form_error**2)
    before, after = summary(belief.us(table) / table["us"] - 1.0), summary(errors)
    document = document_of(
        belief.given(table, noise).physics(), COUNTS_OF_TOKENS, table, name, model.name, rows.gpu, ranks
    )
    if scope in (KERNELS, DEVICE):
        document["host"] = ASSUMED_HOST
    document |= {
        "software": rows.software,
        "sources": [dict(source) for source in rows.sources],
        "errors": {"step": {"random": after, "before": before}},
        OWN: {"rows": size, "levels": list(LEVELS), "log_ratio": _off(errors, sure)},
    }
    return OwnFit(document, before, after)


def _off(errors: Array, sure: Array) -> list[float]:
    """The sizes of log(measured / predicted) below which a step lies with each of `LEVELS`, at the median of `sure`.

    Conformal prediction over the held-out errors, each over what was to be expected of it: a step far from all others
    says little of the usual one. The ranks count the step to come; beyond the last rank the size grows with the rank.
    """
    off = np.sort(np.abs(np.log1p(np.maximum(errors, -0.99))) / sure)
    size = len(off)
    wanted = np.ceil((size + 1) * np.array(LEVELS))
    found = np.where(wanted <= size, off[np.minimum(wanted.astype(int), size) - 1], off[-1] * wanted / size)
    return [round(float(value), 5) for value in np.median(sure) * np.maximum.accumulate(found)]


def head_us(model: Model, gpu: Gpu, ranks: int, rows: Array) -> Array:
    """Microseconds of the head and the sampler for so many rows: its weights are read once."""
    weights = ACTIVATION_BYTES * model.vocab * model.hidden / ranks
    flops = 2.0 * model.vocab * model.hidden / ranks * rows
    longest = np.maximum(weights / (1e9 * gpu.bandwidth_gb_s * BANDWIDTH_EFFICIENCY), flops / (1e12 * gpu.bf16_tflops))
    curve = sampler(model, gpu)
    return np.asarray(1e6 * longest + np.array([curve.at(float(count)) for count in rows]))
