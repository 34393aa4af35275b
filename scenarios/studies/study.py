"""A study: a scenario, the keys that vary, and the seeds that repeat each point."""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import yaml
from annotated_types import doc
from pydantic import Field, ValidationError

from scenarios.assembly.engine_policy import with_policy
from scenarios.assembly.unused_keys import engine_keys
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.explain import Finding, explain
from scenarios.schema.source.hints import did_you_mean
from scenarios.schema.source.origin import Origin
from scenarios.schema.source.yaml_source import read_yaml
from scenarios.schema.strict import Strict
from scenarios.studies.study_axes import Axis, Setting, check_once, grid, make_axis, make_span, random_design
from simulator.errors import InputError
from simulator.named_class import split_class

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
