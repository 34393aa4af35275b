"""Batching policies, a file each: the policy `some_name` is the class `SomeName` of `some_name.py` in this folder.

A user's own policy is named `path/to/file.py:ClassName` and loaded the same way. There is no list to add a policy to.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from simulator.errors import InputError
from simulator.named_class import named_class, names_in
from simulator.plan import Policy


def built_in_policies() -> tuple[str, ...]:
    """Names of the policies that come with batchlab, sorted."""
    return names_in(__name__)


def policy_class(name: str, base: Path | None = None) -> type[Policy]:
    """The class of a built-in policy, or of `path.py:Class`, the path being relative to `base`."""
    cls = named_class("policy", name, __name__, base)
    if not dataclasses.is_dataclass(cls) or not callable(getattr(cls, "plan", None)):
        path, _, class_name = name.rpartition(":")
        raise InputError(f"{class_name} is no policy", file=str(Path(base or ".") / path), hint=_CONTRACT)
    return cast("type[Policy]", cls)


def policy_parameters(cls: type[Policy]) -> dict[str, Any]:
    """A policy's parameters and their defaults, `dataclasses.MISSING` for one that must be given."""
    return {field.name: field.default for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type] # checked when it was loaded


def load_policy(name: str, parameters: Mapping[str, object], base: Path | None = None) -> Policy:
    """A policy with its parameters; an InputError names a parameter that it does not have or that it lacks."""
    cls = policy_class(name, base)
    known = policy_parameters(cls)
    for key in parameters:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(f"policy {name} does not use {key!r}", hint=f"{hint}it takes: {', '.join(known)}")
    missing = [key for key, default in known.items() if default is dataclasses.MISSING and key not in parameters]
    missing = [key for key in missing if not _has_factory(cls, key)]
    if missing:
        raise InputError(f"policy {name} needs {', '.join(missing)}")
    try:
        policy = cls(**parameters)
    except (TypeError, ValueError) as error:
        raise InputError(f"policy {name} refuses its parameters: {error}") from error
    if not isinstance(getattr(policy, "max_num_seqs", None), int):
        raise InputError(f"policy {name} has no max_num_seqs, the number of its batch's slots", hint=_CONTRACT)
    return policy


_CONTRACT = "a policy is a dataclass with max_num_seqs and plan(view) -> StepPlan (see simulator/plan.py)"


def _has_factory(cls: type[Policy], key: str) -> bool:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type] # checked when it was loaded
    return any(f.name == key and f.default_factory is not dataclasses.MISSING for f in fields)
