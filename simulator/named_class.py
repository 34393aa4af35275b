"""Classes found by a name: those of a package, a file or a folder each, and a user's own in any file."""

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.parameters import MISSING, Parameter

SHARED = "parts"  # the folder of a package that holds what several of its modules share; it is not found by name
CLASS_PATTERN = r"^.+\.py:[^\W\d]\w*$"  # a user's own class: `path.py:Class`
USER_MODULE = "batchlab_user_"  # the beginning of the names of modules that hold a user's own files


@cache
def names_in(package: str) -> tuple[str, ...]:
    """The modules of a package, sorted: its files and folders, but for `parts`. The package is read once."""
    folder = importlib.import_module(package).__path__
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folder) if module.name != SHARED))


def constants_in(package: str, constant: str) -> dict[str, Any]:
    """The constant of this name of every module of a package that has one, by the name of the module, sorted."""
    modules = {name: importlib.import_module(f"{package}.{name}") for name in names_in(package)}
    return {name: getattr(module, constant) for name, module in modules.items() if hasattr(module, constant)}


def split_class(name: str) -> tuple[str, str]:
    """`path.py:Class` as its path and its class; a built-in name has no path."""
    path, _, class_name = name.rpartition(":")
    return (path, class_name) if path.endswith(".py") else ("", name)


def file_of(name: str) -> Path | None:
    """The file of a user's own class; None for a built-in one."""
    path, _ = split_class(name)
    return Path(path) if path else None


def check_given(what: str, name: str, known: Mapping[str, Parameter], given: Mapping[str, object]) -> None:
    """Raise InputError for a parameter that the class does not have, that is out of its limits, or that is missing."""
    for key, value in given.items():
        if key not in known:
            takes = f"it takes: {', '.join(known)}" if known else "it takes no parameter"
            raise InputError(f"{what} {name} does not use {key!r}", hint=f"{did_you_mean(key, known)}{takes}")
        if (wrong := known[key].refusal(value)) is not None:
            raise InputError(f"{what} {name} refuses its parameters: {key} {wrong}")
    missing = [key for key, parameter in known.items() if parameter.default is MISSING and key not in given]
    if missing:
        raise InputError(f"{what} {name} needs {', '.join(missing)}")


def named_class(what: str, name: str, package: str, base: Path | None = None) -> type[Any]:
    """The class `SomeName` of the module `some_name` in `package`, or the one that `path.py:Class` names.

    The path is relative to `base`. `what` is the noun for messages. Raises InputError where there is no such class.
    """
    if ":" in name:
        path, _, class_name = name.rpartition(":")
        return _users_class(what, Path(base or ".") / path, class_name)
    known = names_in(package)
    if name not in known:
        hint = f"{did_you_mean(name, known)}known: {', '.join(known)}, or path/to/file.py:ClassName"
        raise InputError(f"unknown {what} {name!r}", hint=hint)
    module = importlib.import_module(f"{package}.{name}")
    found: type[Any] = getattr(module, "".join(part.capitalize() for part in name.split("_")))
    return found


def users_object(what: str, name: str, kind: type[Any], base: Path | None = None) -> Any:
    """The object of a class `kind` that `path.py:NAME` names, the path being relative to `base`.

    `what` is the noun for messages. Raises InputError where there is no such object.
    """
    path_text, _, own = name.rpartition(":")
    path = Path(base or ".") / path_text
    module = _users_module(what, path)
    found = getattr(module, own, None)
    if not isinstance(found, kind):
        there = [each for each, value in vars(module).items() if isinstance(value, kind)]
        hint = did_you_mean(own, there).rstrip() or f"there: {', '.join(there) or 'none'}"
        raise InputError(f"no {kind.__name__} {own!r}", file=str(path), hint=hint)
    return found


def _users_class(what: str, path: Path, class_name: str) -> type[Any]:
    module = _users_module(what, path)
    cls = getattr(module, class_name, None)
    if not isinstance(cls, type):
        classes = [name for name, value in vars(module).items() if isinstance(value, type)]
        own = [name for name in classes if vars(module)[name].__module__ == module.__name__]
        hint = did_you_mean(class_name, own or classes).rstrip() or f"classes there: {', '.join(own) or 'none'}"
        raise InputError(f"no class {class_name!r}", file=str(path), hint=hint)
    return cls


@lru_cache(maxsize=64)
def _code(source: bytes, path: Path) -> CodeType:
    """A file's code. Its classes are made anew for each run, as often as a run asks for them: compiled once."""
    return compile(source, path, "exec")


def _users_module(what: str, path: Path) -> ModuleType:
    """A user's file, loaded anew."""
    if not path.is_file():
        raise InputError(f"no such {what} file: {path}")
    module = ModuleType(f"{USER_MODULE}{what.replace(' ', '_')}_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        # Not through the import system, which would leave a __pycache__ beside the user's file.
        exec(_code(path.read_bytes(), path), vars(module))
    except Exception as error:  # whatever the user's file raises is the user's to mend
        line = getattr(error, "lineno", None)
        raise InputError(f"cannot be loaded: {type(error).__name__}: {error}", file=str(path), line=line) from error
    return module
