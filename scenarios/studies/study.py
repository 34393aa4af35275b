"""A study: a scenario, the keys that vary and their values, and the seeds that repeat each point."""

import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from annotated_types import doc
from pydantic import Field, ValidationError

from scenarios.assembly.engines import engine_keys, with_policy
from scenarios.runs.variants import split_outside
from scenarios.schema.base import Strict
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.explain import Finding, Origin, explain
from scenarios.schema.source.hints import did_you_mean
from scenarios.schema.source.yaml_source import parse_yaml, read_yaml
from simulator.errors import InputError
from simulator.parameters import split_class

# The axes of a study: scenario keys, and the values that each takes.
#
# `--vary` has three forms: `KEY=a,b,c` lists the values, `KEY=1:4:7` takes seven evenly from 1 to 4, and
# `KEY=1:64:7:log` seven that grow by an equal factor. Keys with a comma between them move together:
# `engine.max_num_seqs, engine.policy=[64, static],[256, chunked_prefill]`.

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


_LIBRARY = Path(__file__).parents[1] / "library" / "studies"
_MOST_RUNS = 1_000_000
_POLICY = "engine.policy"
_INSIDE = 0.3183  # of a range: a place at which hardly a range has a whole number
_RANGE_KEYS = ("from", "to", "steps", "scale")


class StudyFile(Strict):
    """A study's YAML."""

    name: Annotated[str | None, doc("The study's name; default: that of the file")] = None
    scenario: Annotated[str | dict[str, Any], doc("A shipped scenario, a path from this file's folder, or a mapping")]
    vary: Annotated[
        dict[str, Any] | None,
        Field(description="a mapping of keys to lists or ranges"),
        doc("Keys of the scenario: a list of values, or {from, to, steps, scale}; several make a grid"),
    ] = None
    points: Annotated[
        list[dict[str, Any]] | None, doc("Instead of `vary`: a list of points, each a mapping of keys to values")
    ] = None
    samples: Annotated[
        int | None, Field(ge=1), doc("Number of random points over the ranges of `vary`, instead of its grid")
    ] = None
    seeds: Annotated[int, Field(ge=1), doc("Runs of each point, with the scenario's seed and the seeds after it")] = 1


@dataclass(frozen=True, slots=True)
class Study:
    """A scenario and the settings of each point, in order; every point is run with each of the seeds."""

    name: str
    base: Scenario
    axes: tuple[Axis, ...]
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    samples: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The varied keys."""
        return tuple(dict.fromkeys(key for setting in self.settings for key in setting))

    def __len__(self) -> int:
        return len(self.settings) * len(self.seeds)

    def runs(self) -> list[tuple[Setting, int]]:
        """Return the setting and the seed of each run, seeds innermost."""
        return [(setting, seed) for setting in self.settings for seed in self.seeds]

    def scenario(self, setting: Setting, seed: int) -> Scenario:
        """Return the scenario of a run. Raises InputError for a point that is none."""
        policy = setting.get(_POLICY)
        # As in a comparison, keys of the engine that the policy does not take are left out for it.
        own = {key: value for key, value in setting.items() if policy is not None and key.startswith("engine.")}
        base = load(self.base, [*_overrides(setting, own), f"seed={seed}"])
        if policy is None:
            return base
        if not isinstance(policy, str):
            raise InputError(f"engine.policy: must be text, not {policy!r}")
        keys = {key.removeprefix("engine."): value for key, value in own.items() if key != _POLICY}
        return with_policy(base, policy, keys)[0]

    def dump(self) -> str:
        """Write the study as YAML: a study file whose points are these."""
        data: dict[str, Any] = {"name": self.name, "scenario": self.base.model_dump(mode="json", exclude_unset=True)}
        if self.axes:
            as_range = self.samples is not None
            data["vary"] = {", ".join(axis.keys): _written(axis, as_range=as_range) for axis in self.axes}
        else:
            data["points"] = [dict(setting) for setting in self.settings]
        if self.samples is not None:
            data["samples"] = self.samples
        data["seeds"] = len(self.seeds)
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def study_of(
    scenario: str | os.PathLike[str] | Mapping[str, Any] | Scenario,
    axes: Sequence[Axis],
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
) -> Study:
    """Make the grid of some axes over a scenario. Raises InputError as `load` does, and where a key cannot be set."""
    base = load(scenario, overrides)
    return _study(base.name, base, tuple(axes), None, None, seeds)


def load_study(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    seeds: int | None = None,
    *,
    check_files: bool = True,
) -> Study:
    """Read the study in a file. `overrides` change its scenario, `seeds` its number of seeds.

    With `check_files` False, the files that its scenario names need not be there: it is shown and not run. Paths are
    relative to the file. Raises InputError with file:line:column of the key that is wrong.
    """
    path = Path(path)
    source = read_yaml(path)
    origin = Origin(source.file, {**source.values, **source.keys})
    data = source.data
    assert isinstance(data, dict)
    try:
        file = StudyFile.model_validate(data)
    except ValidationError as error:
        raise origin.error(explain(error, StudyFile, data)) from None
    folder = path.absolute().parent
    base = _base(file, folder, origin, overrides, check_files)
    name = file.name or re.sub(r"[^\w.+-]+", "-", path.stem).strip("-._+") or "study"
    if (file.vary is None) == (file.points is None):
        what = "both `vary` and `points`" if file.vary is not None else "neither `vary` nor `points`"
        raise origin.error([Finding((), f"has {what}", "one of them says what the points are")])
    if file.points is not None and file.samples is not None:
        raise origin.error([Finding(("samples",), "needs `vary`, not `points`")])
    axes = [_axis(keys, values, folder, origin) for keys, values in (file.vary or {}).items()]
    points = file.points
    listed = None if points is None else [_list_point(point, folder, origin, i) for i, point in enumerate(points)]
    varied = "vary" if listed is None else "points"
    try:
        return _study(name, base, tuple(axes), listed, file.samples, seeds or file.seeds)
    except InputError as error:
        raise origin.error([Finding((varied,), error.message, error.hint)]) if not error.file else error from None


def find_study(given: str) -> Path | None:
    """Find the file of a study by its path or, for a shipped one, by its name; else None."""
    file = Path(given)
    if file.suffix in (".yaml", ".yml") and file.is_file():
        data = read_yaml(file).data
        return file if isinstance(data, dict) and "scenario" in data else None  # a scenario has no such key
    shipped = _LIBRARY / f"{given}.yaml"
    return shipped if given == file.name and shipped.is_file() else None


def _overrides(setting: Setting, left_out: Collection[str] = ()) -> list[str]:
    """Write the values of a setting as --set takes them."""
    return [f"{key}={json.dumps(value)}" for key, value in setting.items() if key not in left_out]


def _base(file: StudyFile, folder: Path, origin: Origin, overrides: Sequence[str], check_files: bool) -> Scenario:
    if isinstance(file.scenario, str):
        beside = folder / file.scenario
        return load(beside if beside.is_file() else file.scenario, overrides, check_files=check_files)
    try:
        return load(_from_folder(file.scenario, folder), overrides, check_files=check_files)
    except InputError as error:
        raise origin.error([Finding(("scenario",), error.message, error.hint)]) if not error.file else error from None


def _axis(keys: str, values: object, folder: Path, origin: Origin) -> Axis:
    try:
        if isinstance(values, Mapping):
            unknown = [key for key in values if key not in _RANGE_KEYS]
            if unknown or not {"from", "to", "steps"} <= set(values):
                what = f"unknown key {unknown[0]!r}" if unknown else "a range needs from, to and steps"
                raise InputError(what, hint="as in {from: 2, to: 8, steps: 4, scale: linear}")
            span, numbers = make_span(values["from"], values["to"], values["steps"], values.get("scale", "linear"))
            return make_axis(keys, numbers, span)
        listed = values if isinstance(values, list) else [values]
        return make_axis(keys, [_from_folder(value, folder) for value in listed])
    except InputError as error:
        raise origin.error([Finding(("vary", keys), error.message, error.hint)]) from None


def _list_point(point: Mapping[str, Any], folder: Path, origin: Origin, place: int) -> Setting:
    if "seed" in point:
        raise origin.error([Finding(("points", str(place), "seed"), "is set by `seeds`")])
    return {key: _from_folder(value, folder) for key, value in point.items()}


def _from_folder(value: Any, folder: Path) -> Any:
    """Make texts that name a file beside the study absolute paths; leave everything else as it is."""
    if isinstance(value, list):
        return [_from_folder(item, folder) for item in value]
    if isinstance(value, dict):
        return {key: _from_folder(item, folder) for key, item in value.items()}
    if not isinstance(value, str) or not value:
        return value
    written, name = split_class(value)
    written, ending = (written, f":{name}") if written else (value, "")
    try:
        beside = folder / Path(written).expanduser()
        is_path = Path(written).suffix != "" and beside.is_file()
    except (OSError, ValueError, RuntimeError):
        return value
    return f"{beside.resolve()}{ending}" if is_path else value


def _study(
    name: str, base: Scenario, axes: tuple[Axis, ...], listed: list[Setting] | None, samples: int | None, seeds: int
) -> Study:
    keys = [key for axis in axes for key in axis.keys]
    check_once(keys)
    axes = tuple(_whole(base, axis) for axis in axes)
    number = (samples or int(np.prod([len(axis) for axis in axes]))) if listed is None else len(listed)
    if number * seeds > _MOST_RUNS:
        raise InputError(f"{number * seeds:,} runs are too many", hint=f"at most {_MOST_RUNS:,}")
    if listed is not None:
        settings = listed
    elif samples is None:
        settings = grid(axes)
    else:
        settings = random_design(axes, samples, np.random.default_rng(base.seed))
    _check_taken(base, settings)
    return Study(name, base, axes, tuple(settings), tuple(range(base.seed, base.seed + seeds)), samples)


def _check_taken(base: Scenario, settings: Sequence[Setting]) -> None:
    """Raise InputError for a key of the engine that no policy of the study takes.

    Where the policy varies, a key is left out for those that do not take it: a misspelt one would be for all.
    """
    policies = {setting.get(_POLICY) for setting in settings}
    keys = dict.fromkeys(key.split(".")[1] for setting in settings for key in setting if key.startswith("engine."))
    if policies == {None} or not keys.keys() - {"policy"}:
        return  # as in a run, an unknown key is refused
    own = base.engine.given()
    known: dict[str, None] = {"policy": None}
    for policy, order in {(setting.get(_POLICY), setting.get("engine.order")) for setting in settings}:
        given = own if order is None else own | {"order": order}
        try:
            known |= dict.fromkeys(engine_keys(base.engine.policy if policy is None else str(policy), given))
        except InputError:
            return  # an unknown policy: its runs say so
    for key in keys:
        if key not in known:
            raise InputError(f"no policy of the study takes engine.{key}", hint=did_you_mean(key, sorted(known)))


def _whole(base: Scenario, axis: Axis) -> Axis:
    """Round a range over a key that takes whole numbers only; each number comes once."""
    span, key = axis.span, axis.keys[0]
    if span is None or _takes(base, key, span.at(_INSIDE)):
        return axis
    span = replace(span, whole=True)
    if not _takes(base, key, span.at(_INSIDE)):
        return axis  # something else is wrong with it: each run will say what
    return make_axis(key, span.evenly(len(axis)), span)


def _takes(base: Scenario, key: str, value: object) -> bool:
    try:
        load(base, _overrides({key: value}))
    except InputError:
        return False
    return True


def _written(axis: Axis, *, as_range: bool) -> object:
    """Return the values of an axis as a study file lists them, or the range that they come from."""
    if as_range and (span := axis.span) is not None:
        return {"from": span.low, "to": span.high, "steps": len(axis), "scale": span.scale}
    return [list(place) if len(axis.keys) > 1 else place[0] for place in axis.places]
