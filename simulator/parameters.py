"""Plug-ins and their parameters: classes found by a name, and the values that their declarations allow."""

import dataclasses
import difflib
import importlib
import inspect
import math
import operator
import pkgutil
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import DocInfo, Ge, Gt, Le, Lt, Unit

from simulator.errors import InputError, did_you_mean

# Parameters of policies and queue orders: name, type, limits, default and description, read from their declaration.
#
# A parameter is a field of a dataclass or an argument of a function, annotated with its limits and a description:
#     max_waiting_tokens: Annotated[int, Ge(0), Le(10**9), doc("decode steps between two prefills, at most")] = 20
#
# The scenario's schema, the checks of what Python callers pass, the pages of the documentation and the random
# parameters of the laws all read them there. Types are `int`, `float`, `bool`, `str`, `None`, `Literal`, `dict` and
# unions of these; a value of any other type is not checked.

__all__ = ["MISSING", "Parameter", "check_arguments", "check_parameters", "parameters_of"]

Count = Annotated[int, Ge(1), Le(10**9)]
CountOrZero = Annotated[int, Ge(0), Le(10**9)]
Seconds = Annotated[float, Ge(0), Le(1e9)]
PositiveSeconds = Annotated[float, Gt(0), Le(1e9)]
Fraction = Annotated[float, Ge(0), Lt(1)]
Factor = Annotated[float, Ge(0), Le(1e6)]

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
_UNIONS = (Union, types.UnionType)
_LIMITS: Mapping[type, tuple[str, str, Callable[[Any, Any], Any]]] = {
    Ge: ("ge", "at least", operator.ge),
    Gt: ("gt", "above", operator.gt),
    Le: ("le", "at most", operator.le),
    Lt: ("lt", "below", operator.lt),
}
_LARGE = 10**5  # a limit from here on is named only in the error of a value beyond it


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter. `annotation` holds its limits; `default` is `MISSING` where it must be given."""

    name: str
    annotation: Any
    default: Any
    doc: str
    unit: str = ""  # where the name does not say it

    def refusal(self, value: object) -> str | None:
        """The fault of a value ("must be a whole number of at least 1, not 0"); None for a value it can take."""
        if _fits(self.annotation, value):
            return None
        return f"must be {' or '.join(_expected(self.annotation, value))}, not {value!r}"

    def is_just(self, value: object) -> bool:
        """Return whether a value can be taken as it is: within the limits, and no int that stands for a float."""
        return type(value) in _kinds(self.annotation) and _fits(self.annotation, value)

    @property
    def is_float(self) -> bool:
        """Return whether the parameter takes any number: an int then stands for a float."""
        return _fits(self.annotation, 0.5)

    @property
    def words(self) -> tuple[str, ...]:
        """The words among which a `Literal` chooses; none for any other type."""
        return tuple(word for word in _literals(self.annotation) if isinstance(word, str))


@lru_cache(maxsize=256)  # users' classes are made anew each time their file is loaded
def parameters_of(owner: Callable[..., object]) -> Mapping[str, Parameter]:
    """The parameters of a dataclass or of a function, by name, in the order of their declaration."""
    hints = _hints(owner)
    found = {}
    for name, argument in inspect.signature(owner).parameters.items():
        annotation = hints.get(name, Any)
        found[name] = Parameter(name, annotation, _default(owner, argument), _doc(annotation), _unit(annotation))
    return found


def check_parameters(owner: object) -> None:
    """Raise ValueError, which begins with the parameter's name, unless all fields of a dataclass keep their limits."""
    cls: Callable[..., object] = type(owner)
    check_arguments(cls, {name: getattr(owner, name) for name in parameters_of(cls)})


def check_arguments(owner: Callable[..., object], given: Mapping[str, object]) -> None:
    """Check the arguments that are about to be passed to `owner`."""
    known = parameters_of(owner)
    for name, value in given.items():
        wrong = known[name].refusal(value) if name in known else None
        if wrong is not None:
            raise ValueError(f"{name} {wrong}")


def _hints(owner: Callable[..., object]) -> Mapping[str, Any]:
    """Annotations with their limits; none where one of them cannot be resolved, as a user's own may be."""
    is_plain_class = isinstance(owner, type) and not dataclasses.is_dataclass(owner)
    try:
        return get_type_hints(owner.__init__ if is_plain_class else owner, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _default(owner: Callable[..., object], argument: inspect.Parameter) -> Any:
    """The default of a parameter; for a field made by a factory, what that makes."""
    if argument.default is inspect.Parameter.empty:
        return MISSING
    if dataclasses.is_dataclass(owner):
        field = next(field for field in dataclasses.fields(owner) if field.name == argument.name)
        if field.default_factory is not MISSING:
            return field.default_factory()
    return argument.default


def _doc(annotation: Any) -> str:
    """The description in an annotation, the outermost where there are several."""
    origin = get_origin(annotation)
    if origin not in (Annotated, *_UNIONS):
        return ""
    found = [item.documentation for item in get_args(annotation) if isinstance(item, DocInfo)]
    return found[-1] if found else next(filter(None, map(_doc, get_args(annotation))), "")


def _unit(annotation: Any) -> str:
    """The unit in an annotation, the outermost where there are several."""
    if get_origin(annotation) is not Annotated:
        return ""
    inner, *metadata = get_args(annotation)
    return next((item.unit for item in reversed(metadata) if isinstance(item, Unit)), "") or _unit(inner)


def _literals(annotation: Any) -> tuple[Any, ...]:
    origin = get_origin(annotation)
    if origin is Literal:
        return get_args(annotation)
    inner = get_args(annotation)[:1] if origin is Annotated else get_args(annotation) if origin in _UNIONS else ()
    return tuple(word for arm in inner for word in _literals(arm))


def _fits(annotation: Any, value: object) -> bool:
    """Return whether a value has the type and keeps the limits. An int may stand for a float, a bool for no number."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *limits = get_args(annotation)
        return _fits(inner, value) and (value is None or all(_keeps(limit, value) for limit in limits))
    if origin in _UNIONS:
        return any(_fits(arm, value) for arm in get_args(annotation))
    if origin is Literal:
        return any(value == word and isinstance(value, type(word)) for word in get_args(annotation))
    if origin is dict:
        of_keys, of_values = get_args(annotation)
        return isinstance(value, Mapping) and all(_fits(of_keys, k) and _fits(of_values, v) for k, v in value.items())
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is None or annotation is type(None):
        return value is None
    return not isinstance(annotation, type) or annotation not in _WORDS or isinstance(value, annotation)


def _kinds(annotation: Any) -> frozenset[type]:
    """The types of the plain values that an annotation names."""
    origin = get_origin(annotation)
    if origin is Literal:
        return frozenset(map(type, get_args(annotation)))
    arms = get_args(annotation)[:1] if origin is Annotated else get_args(annotation) if origin in _UNIONS else ()
    own = {annotation} if annotation in _WORDS else set()
    return frozenset(own.union(*map(_kinds, arms)))


def _keeps(limit: Any, value: Any) -> bool:
    name, _, keeps = _LIMITS.get(type(limit), ("", "", None))
    return keeps is None or bool(keeps(value, getattr(limit, name)))


def _expected(annotation: Any, value: object, limits: tuple[Any, ...] = ()) -> list[str]:
    """The allowed values in words, one phrase for each arm of a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _expected(inner, value, (*limits, *more))
    if origin in _UNIONS:
        return [words for arm in get_args(annotation) for words in _expected(arm, value, limits)]
    if origin is Literal:
        return [f"one of {', '.join(str(word) for word in get_args(annotation))}"]
    if origin is dict:
        _, of_values = get_args(annotation)
        return [f"a mapping to {' or '.join(_expected(of_values, None))}"]
    if annotation is None:
        return ["null"]
    words = _WORDS.get(annotation, "of another type")
    said = [text for limit in limits if (text := _limit(limit, value))] if annotation in (int, float) else []
    return [f"{words}{' of' if said and said[0].startswith('at least') else ''} {' and '.join(said)}".rstrip()]


def _limit(limit: Any, value: object) -> str:
    if type(limit) not in _LIMITS:
        return ""
    name, words, _ = _LIMITS[type(limit)]
    bound = getattr(limit, name)
    is_beyond = isinstance(value, (int, float)) and not math.isnan(value) and not _keeps(limit, value)
    return f"{words} {bound:,}" if abs(bound) < _LARGE or is_beyond else ""


# Classes found by a name: those of a package, a file or a folder each, and a user's own in any file.

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


# A dataclass of plain values from a user's mapping, with errors that say what is allowed.

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
