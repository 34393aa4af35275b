"""The axes of a study: scenario keys, and the values that each takes.

`--vary` has three forms: `KEY=a,b,c` lists the values, `KEY=1:4:7` takes seven evenly from 1 to 4, and
`KEY=1:64:7:log` seven that grow by an equal factor. Keys with a comma between them move together:
`engine.max_num_seqs, engine.policy=[64, static],[256, chunked_prefill]`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scenarios.runs.variants import split_outside
from scenarios.schema.source.yaml_source import parse_yaml
from simulator.errors import InputError

Scale = Literal["linear", "log"]
Setting = dict[str, object]
"""Values by key, as one point of a study sets them."""

_FORM = "as in engine.max_num_seqs=64,128 or workload.arrival.rate=2:8:4 or engine.max_num_seqs=1:64:7:log"
_THREE = "as in workload.arrival.rate=2:8:4 or engine.max_num_seqs=1:64:7:log"
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({NUMBER}):({NUMBER}):(\d+)(?::(\w+))?")
_ENDS = re.compile(rf"({NUMBER}):({NUMBER})")
_MOST_VALUES = 100_000


@dataclass(frozen=True, slots=True)
class Span:
    """Numbers between two ends, both included; `whole` rounds them, for a key that takes nothing else."""

    low: float
    high: float
    scale: Scale = "linear"
    whole: bool = False

    def at(self, share: float) -> int | float:
        """Return the value at a share of the way from `low` (0) to `high` (1)."""
        if self.scale == "linear":
            value = self.low + (self.high - self.low) * share
        else:
            value = self.low * (self.high / self.low) ** share
        if share in (0.0, 1.0):
            value = self.high if share else self.low
        nearest = round(value)
        between_whole = isinstance(self.low, int) and isinstance(self.high, int)
        if self.whole or (between_whole and math.isclose(value, nearest, rel_tol=1e-9, abs_tol=1e-12)):
            return nearest
        # Twelve digits: 2 to 3 in tenths gives 2.1 rather than 2.1000000000000001.
        return float(f"{value:.12g}")

    def evenly(self, steps: int) -> list[int | float]:
        """Return `steps` values from end to end, each once."""
        shares = [step / (steps - 1) for step in range(steps)] if steps > 1 else [0.0]
        return list(dict.fromkeys(map(self.at, shares)))


@dataclass(frozen=True, slots=True)
class Axis:
    """Keys that move together, and the values that they take: one tuple a place, a value a key.

    A `span` is what the values were taken from, for a random design.
    """

    keys: tuple[str, ...]
    places: tuple[tuple[object, ...], ...]
    span: Span | None = None

    def __len__(self) -> int:
        return len(self.places)

    def setting(self, place: int) -> Setting:
        """Return the values at a place by key."""
        return dict(zip(self.keys, self.places[place], strict=True))


def make_axis(keys: str, values: Sequence[object], span: Span | None = None) -> Axis:
    """Make the axis of a key, or of several with commas between them. Raises InputError without a place in a file."""
    names = tuple(part.strip() for part in keys.split(","))
    if not all(names):
        raise InputError(f"{keys!r} is not a key", hint="keys that move together have a comma between them: a.b, c.d")
    if "seed" in names:
        raise InputError("seed cannot be varied", hint="`seeds: 3` (--seeds 3) repeats every point with other seeds")
    if not values:
        raise InputError(f"{keys} has no value")
    if len(names) == 1:
        return Axis(names, tuple((value,) for value in values), span)
    for value in values:
        if not isinstance(value, list) or len(value) != len(names):
            raise InputError(
                f"{keys}: {len(names)} keys move together, so each value is a list of {len(names)}, not {value!r}",
                hint='as in "engine.max_num_seqs, engine.policy": [[64, static], [256, chunked_prefill]]',
            )
    return Axis(names, tuple(tuple(value) for value in values if isinstance(value, list)), None)


def make_span(low: object, high: object, steps: object, scale: object = "linear") -> tuple[Span, list[int | float]]:
    """Make a span, and its values. Raises InputError without a place in a file."""
    numbers = [end for end in (low, high) if isinstance(end, (int, float)) and not isinstance(end, bool)]
    if len(numbers) < 2 or not all(map(math.isfinite, numbers)):
        raise InputError(f"a range goes from a number to a number, not from {low!r} to {high!r}")
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= _MOST_VALUES:
        raise InputError(f"a range has 1 to {_MOST_VALUES:,} steps, not {steps!r}")
    if scale not in ("linear", "log"):
        raise InputError(f"unknown scale {scale!r}", hint="allowed: linear, log")
    if scale == "log" and min(numbers) <= 0:
        raise InputError(f"a log range needs ends above 0, not {min(numbers):g}")
    span = Span(numbers[0], numbers[1], "log" if scale == "log" else "linear")
    return span, span.evenly(steps)


def parse_vary(text: str) -> Axis:
    """Make the axis that `--vary TEXT` asks for. Raises InputError that names the flag."""
    flag = f"--vary {text}"
    keys, equals, values = text.partition("=")
    if not equals or not keys.strip():
        raise InputError("not of the form KEY=VALUES", file=flag, hint=_FORM)
    try:
        found = _RANGE.fullmatch(values.strip())
        if found is None:
            if _ENDS.fullmatch(values.strip()):
                raise InputError("a range has three parts: its ends and the number of values", hint=_THREE)
            parts = list(split_outside(values, ","))
            if not all(part.strip() for part in parts):
                raise InputError("a value is missing between the commas")
            return make_axis(keys.strip(), [parse_yaml(part, flag).data for part in parts])
        low, high = (parse_yaml(end, flag).data for end in found.groups()[:2])
        span, numbers = make_span(low, high, int(found[3]), found[4] or "linear")
        return make_axis(keys.strip(), numbers, span)
    except InputError as error:
        raise InputError(error.message, file=flag, hint=error.hint or _FORM) from None


def check_once(keys: Sequence[str], flag: str | None = None) -> None:
    """Raise InputError for a key that is varied twice."""
    if doubled := next((key for key in keys if keys.count(key) > 1), None):
        raise InputError(f"{doubled} is varied twice", file=flag)


def grid(axes: Sequence[Axis]) -> list[Setting]:
    """Return every combination of the axes' places, the first axis outermost."""
    settings: list[Setting] = [{}]
    for axis in axes:
        settings = [{**setting, **axis.setting(place)} for setting in settings for place in range(len(axis))]
    return settings


def random_design(axes: Sequence[Axis], points: int, rng: np.random.Generator) -> list[Setting]:
    """Draw so many random settings that cover each axis evenly: a Latin hypercube.

    Each axis is cut into as many equal shares as there are points, and every share is used once (McKay, Beckman and
    Conover 1979); a span gives the value anywhere in the share, a list the value that the share falls into.
    """
    columns: list[list[Setting]] = []
    for axis in axes:
        shares = (rng.permutation(points) + rng.random(points)) / points
        if axis.span is None:
            columns.append([axis.setting(int(share * len(axis))) for share in shares.tolist()])
        else:
            key, span = axis.keys[0], axis.span
            columns.append([{key: span.at(share)} for share in shares.tolist()])
    return [{key: value for part in parts for key, value in part.items()} for parts in zip(*columns, strict=True)]
