"""Checks of a policy's parameters, for policies that are made in Python: YAML has its own."""

from __future__ import annotations

from collections.abc import Collection


def check_counts(policy: object, *names: str) -> None:
    """Raise ValueError unless these parameters are whole numbers of at least 1."""
    for name in names:
        value = getattr(policy, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def check_share(policy: object, name: str) -> None:
    """Raise ValueError unless the parameter is at least 0 and less than 1."""
    value = getattr(policy, name)
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, not {value!r}")


def check_choice(policy: object, name: str, allowed: Collection[object]) -> None:
    """Raise ValueError unless the parameter is one of those allowed."""
    value = getattr(policy, name)
    if value not in allowed:
        raise ValueError(f"{name} {value!r}; it knows {', '.join(map(str, allowed))}")
