"""A dataclass of plain values from a user's mapping, with errors that say what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

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
    kinds = get_type_hints(cls)
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


_WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}


def _typed(value: object, kind: Any, where: str) -> object:
    allowed = get_args(kind) or (kind,)
    if value is None and NoneType in allowed:
        return None
    kind = allowed[0]
    if kind is bool or isinstance(value, bool):
        fits = kind is bool and isinstance(value, bool)
    elif kind is float:
        fits = isinstance(value, int | float) and math.isfinite(value)
        value = float(value) if isinstance(value, int | float) else value
    else:
        fits = isinstance(value, kind)
    if not fits:
        raise InputError(f"{where} must be {_WORDS[kind]}, not {value!r}")
    return value
