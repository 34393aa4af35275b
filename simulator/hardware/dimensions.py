"""A dataclass of plain values from a user's mapping, with errors that say what is allowed."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from simulator.errors import InputError
from simulator.parameters import MISSING, parameters_of

_Value = TypeVar("_Value")

CHANGED = " (changed)"  # ends the name of a GPU or model that a mapping alters


def check_choice(name: str, allowed: Iterable[str], what: str) -> str:
    """`name` itself if it is one of `allowed`; else InputError that names the nearest and all of them."""
    names = list(allowed)
    if name in names:
        return name
    raise InputError(f"unknown {what} {name!r}", hint=f"{_guess(name, names)}allowed: {', '.join(names)}")


def fields_from(
    cls: type[_Value],
    mapping: Mapping[str, object],
    defaults: Mapping[str, object],
    built_in: Callable[[str], _Value],
    what: str,
    words: Iterable[str] = (),
) -> _Value:
    """An instance of the dataclass `cls`: a user's `mapping` over `defaults`, or over the `built_in` one that its key
    `base` names, over the class's own defaults.

    An int given for a float becomes one. InputError, which begins with `what`, on an unknown or missing key and on a
    value that does not fit its annotation (`Parameter.refusal`). `words` are keys that the caller has spelled out.
    """
    owner: Callable[..., object] = cls
    values = dict(mapping)
    if (base := values.pop("base", None)) is not None:
        if not isinstance(base, str):
            raise InputError(f"{what}: base must be the name of a built-in {what}, not {base!r}")
        known_one = built_in(base)
        defaults = {name: getattr(known_one, name) for name in parameters_of(owner)} | {"name": f"{base}{CHANGED}"}
    known = parameters_of(owner)
    for key in values:
        if key not in known:
            names = [*words, *known]
            hint = f"{_guess(str(key), names)}allowed: {', '.join(names)}"
            raise InputError(f"{what}: unknown key {key!r}", hint=hint)
    given: dict[str, Any] = {**defaults, **values}
    missing = [name for name, field in known.items() if name not in given and field.default is MISSING]
    if missing:
        raise InputError(f"{what}: missing {', '.join(missing)}")
    for key, value in values.items():
        if (wrong := known[key].refusal(value)) is not None:
            raise InputError(f"{what}: {key} {wrong}")
        if isinstance(value, int) and known[key].is_float:
            given[key] = float(value)
    return cls(**given)


def _guess(name: str, names: list[str]) -> str:
    """The names that continue `name`, or else the one nearest to it."""
    name = name.lower()
    near = [known for known in names if name and known.startswith(name)]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return f"did you mean {' or '.join(near)}? " if near else ""
