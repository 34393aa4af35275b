"""A dataclass of plain values from a user's mapping, with errors that say what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from simulator.errors import InputError

_Value = TypeVar("_Value")


def check_choice(name: str, allowed: Iterable[str], what: str) -> str:
    """`name` itself if it is one of `allowed`; else InputError that names the nearest and all of them."""
    names = list(allowed)
    if name in names:
        return name
    raise InputError(f"unknown {what} {name!r}", hint=f"{_guess(name, names)}allowed: {', '.join(names)}")


def fields_from(
    cls: type[_Value], values: Mapping[str, object], defaults: Mapping[str, object], *, what: str
) -> _Value:
    """An instance of the dataclass `cls`, from the user's `values` over `defaults` over the class's own defaults.

    Types follow the annotations `int`, `float`, `str`, `bool` and `float | None`; an int may stand for a float, a
    bool for nothing else, and numbers are finite. InputError, starting with `what`, on unknown, missing or mistyped
    values.
    """
    kinds = {field.name: str(field.type) for field in fields(cls)}  # type: ignore[arg-type] # any dataclass
    for key in values:
        if key not in kinds:
            hint = f"{_guess(str(key), list(kinds))}allowed: {', '.join(kinds)}"
            raise InputError(f"{what}: unknown key {key!r}", hint=hint)
    given: dict[str, Any] = {**defaults, **values}
    missing = [
        field.name
        for field in fields(cls)  # type: ignore[arg-type] # any dataclass
        if field.name not in given and field.default is MISSING
    ]
    if missing:
        raise InputError(f"{what}: missing {', '.join(missing)}")
    for key, value in values.items():
        given[key] = _typed(value, kinds[key], f"{what}: {key}")
    return cls(**given)


def _guess(name: str, names: list[str]) -> str:
    """The names that continue `name`, or else the one nearest to it."""
    name = name.lower()
    near = [known for known in names if name and known.startswith(name)]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"did you mean {' or '.join(near)}? " if near else ""


def _typed(value: object, kind: str, where: str) -> object:
    if value is None and kind.endswith("| None"):
        return None
    kind = kind.removesuffix(" | None")
    if kind == "bool" or isinstance(value, bool):
        fits = kind == "bool" and isinstance(value, bool)
    elif kind == "float":
        fits = isinstance(value, int | float) and math.isfinite(value)
        value = float(value) if isinstance(value, int | float) else value
    elif kind == "int":
        fits = isinstance(value, int)
    else:
        fits = isinstance(value, str)
    if not fits:
        wanted = {"int": "a whole number", "float": "a finite number", "bool": "true or false", "str": "text"}[kind]
        raise InputError(f"{where} must be {wanted}, not {value!r}")
    return value
