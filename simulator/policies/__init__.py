"""Batching policies, a file each: the policy `some_name` is the class `SomeName` of `some_name.py` in this folder.

A user's own policy is named `path/to/file.py:ClassName` and loaded the same way. There is no list to add a policy to.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from simulator.errors import InputError
from simulator.plan import Policy

USER_MODULE = "batchlab_policy_"
"""What the names of modules begin with that users' policies are loaded as."""


def built_in_policies() -> tuple[str, ...]:
    """Names of the policies that come with batchlab, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg))


def policy_class(name: str, base: Path | None = None) -> type[Policy]:
    """The class of a built-in policy, or of `path.py:Class`, the path being relative to `base`."""
    if ":" in name:
        path, _, class_name = name.rpartition(":")
        return _users_class(Path(base or ".") / path, class_name)
    if name not in built_in_policies():
        known = ", ".join(built_in_policies())
        near = difflib.get_close_matches(name, built_in_policies(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"unknown policy {name!r}", hint=f"{hint}known: {known}, or path/to/file.py:ClassName")
    module = importlib.import_module(f"{__name__}.{name}")
    found: type[Policy] = getattr(module, "".join(part.capitalize() for part in name.split("_")))
    return found


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


def _users_class(path: Path, class_name: str) -> type[Policy]:
    if not path.is_file():
        raise InputError(f"no such policy file: {path}")
    module = ModuleType(f"{USER_MODULE}{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        # Not through the import system, which would leave a __pycache__ beside the user's file.
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except Exception as error:  # whatever the user's file raises is the user's to mend
        line = getattr(error, "lineno", None)
        raise InputError(f"cannot be loaded: {type(error).__name__}: {error}", file=str(path), line=line) from error
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        near = difflib.get_close_matches(class_name, classes, n=1)
        raise InputError(f"no class {class_name!r}", file=str(path), hint=f"did you mean {near[0]}?" if near else None)
    if not dataclasses.is_dataclass(cls) or not callable(getattr(cls, "plan", None)):
        raise InputError(f"{class_name} is no policy", file=str(path), hint=_CONTRACT)
    return cast("type[Policy]", cls)


def _has_factory(cls: type[Policy], key: str) -> bool:
    fields = dataclasses.fields(cls)  # type: ignore[arg-type] # checked when it was loaded
    return any(f.name == key and f.default_factory is not dataclasses.MISSING for f in fields)
