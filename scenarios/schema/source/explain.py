"""Errors of a scenario in the words of its YAML: what is allowed, what was meant, and its place in the file."""

import math
import re
import types
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from scenarios.schema.base import annotation_of, at_hand
from scenarios.schema.source.hints import did_you_mean, key_hint, number_hint
from scenarios.schema.source.yaml_source import KeyPath, Mark, describe, key_name
from simulator.errors import InputError

_UNIONS = (Union, types.UnionType)
_RANGES = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_Member = tuple[tuple[str, ...], Any]  # an arm of a union: the tags by which it is known, and its type
_LARGE = 10**5  # a bound from here on is named only in the error of a value beyond it
_WORD = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a document: its key (where it would be, for a missing one), the message, and a hint."""

    path: KeyPath
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class _Spot:
    """The place of an error: the keys that lead there, the value, and the schema of that value."""

    path: KeyPath
    value: object
    annotation: object
    field: FieldInfo | None
    models: tuple[type[BaseModel], ...]  # what the value is to be, as far as it is a mapping with known keys
    around: tuple[type[BaseModel], ...]  # the same of the mapping that it stands in
    inner: tuple[str, ...] = ()  # what the location names beyond: a missing key, a tag


def explain(error: ValidationError, root: type[BaseModel], data: Mapping[str, object]) -> list[Finding]:
    """Every error of a validation, in pydantic's order; `data` is what was validated against `root`."""
    findings: dict[KeyPath, Finding] = {}
    for line in error.errors(include_url=False, include_input=False):
        spot, context = _find(root, data, line["loc"]), line.get("ctx", {})
        if line["type"] == "too_short" and isinstance(spot.value, Sized) and len(spot.value) >= context["min_length"]:
            continue  # pydantic counts the valid items: what is wrong with the others is said by their own errors
        found = _explain(line["type"], line["msg"], context, spot, root)
        findings.setdefault(found.path, found)
    return list(findings.values())


def _explain(kind: str, text: str, context: Mapping[str, Any], spot: _Spot, root: type[BaseModel]) -> Finding:
    if kind in ("extra_forbidden", "invalid_key"):
        allowed = tuple(dict.fromkeys(key for model in spot.around for key in model.model_fields))
        key = spot.path[-1]
        named = [where(key) for model in spot.around if (where := getattr(model, "elsewhere", None)) is not None]
        listed = tuple(dict.fromkeys(word for model in spot.around for word in getattr(model, "listed", allowed)))
        here = ".".join(step for step in spot.path[:-1] if not step.isdigit())
        hint = next(filter(None, named), None) or key_hint(key, spot.value, allowed, known_keys(root), listed, here)
        return Finding(spot.path, "unknown key", hint)
    if kind == "missing":
        key = spot.inner[-1] if spot.inner else ""
        if key.isdigit():
            return Finding(spot.path, f"item {int(key) + 1} of the list is missing")
        return Finding((*spot.path, key), "missing", _missing_hint(spot, key))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        key = context["discriminator"].strip("'")
        arms = _models(_members(spot.annotation))
        options = tuple(word for arm in arms if getattr(arm, "available", True) for word in _words_of(arm, key))
        if kind == "union_tag_not_found":
            if not isinstance(spot.value, Mapping):
                return Finding(spot.path, f"must be a mapping with the key `{key}`, not {describe(spot.value)}")
            return Finding((*spot.path, key), "missing", f"allowed: {', '.join(options)}")
        return Finding((*spot.path, key), f"unknown {key} {context['tag']!r}", did_you_mean(context["tag"], options))
    if kind == "refused":
        named = context["key"].split(".") if isinstance(context["key"], str) else context["key"]
        inside = tuple(named) if context["key"] else _key_named(context["message"], spot)
        return Finding((*spot.path, *inside), _without_prefix(context["message"], spot), context["hint"])
    if kind == "value_error":
        message = text.removeprefix("Value error, ")
        return Finding((*spot.path, *_key_named(message, spot)), message)
    if kind in ("too_short", "too_long"):
        bound, which = ("min_length", "at least") if kind == "too_short" else ("max_length", "at most")
        items = "item" if context[bound] == 1 else "items"
        return Finding(spot.path, f"must have {which} {context[bound]} {items}, not {context['actual_length']}")
    return _mistyped(kind, text, spot)


def _mistyped(kind: str, text: str, spot: _Spot) -> Finding:
    """A value of a wrong type, or outside its range."""
    if spot.inner and spot.inner[-1] == "[key]":
        return Finding(spot.path, f"the key must be {_expected(get_args(spot.annotation)[:1])}", None)
    key = spot.path[-1] if spot.path else ""
    wanted = expectation(spot.annotation, spot.field, all_bounds=kind.startswith(("less_than", "greater_than")))
    if kind == "literal_error":
        return Finding(spot.path, f"unknown {key} {spot.value!r}", did_you_mean(spot.value, _literals(spot.annotation)))
    if wanted is None or (isinstance(spot.value, Mapping) and spot.inner):  # something inside, by a name of pydantic's
        return Finding(spot.path, text[:1].lower() + text[1:])
    message = f"must be {wanted}, not {describe(spot.value)}"
    return Finding(spot.path, message, _value_hint(kind, key, spot.value, wanted))


def _value_hint(kind: str, key: str, value: object, wanted: str) -> str | None:
    if "number" in wanted:
        if isinstance(value, float) and kind == "int_type" and value.is_integer():
            return f"write {int(value)}"
        if kind == "less_than_equal" and "at most 1" in wanted and isinstance(value, (int, float)) and value <= 100:
            return f"a fraction: {value:g} % is {value / 100:g}"
        return number_hint(key, value)
    if wanted.startswith("true or false") and isinstance(value, str):
        word = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
        folded = value.strip().lower()
        found = word.get(folded, folded if folded in ("true", "false") else None)
        return f"write {found}, without quotes" if found else None
    if kind == "string_type" and isinstance(value, (int, float, bool)):
        return f'text that looks like {describe(value)} needs quotes: "{str(value).lower()}"'
    return None


def _missing_hint(spot: _Spot, key: str) -> str | None:
    for model in spot.models:
        if (field := model.model_fields.get(key)) is not None:
            wanted = expectation(annotation_of(field), field)
            return None if wanted is None else f"it must be {wanted}"
    return None


def _key_named(message: str, spot: _Spot) -> KeyPath:
    """The key of a mapping that a message about the whole mapping names first; () where it names none."""
    if not isinstance(spot.value, Mapping):
        return ()
    keys = [key_name(key) for key in spot.value]
    words = re.findall(r"[\w.]*\w", _without_prefix(message, spot))
    return next(((word,) for word in words if word in keys), ())


def _without_prefix(message: str, spot: _Spot) -> str:
    return message.removeprefix(f"{spot.path[-1]}: ") if spot.path else message


# ------------------------------------------------------------------------------------------------- what the schema says


def expectation(annotation: object, field: FieldInfo | None, *, all_bounds: bool = False) -> str | None:
    """The expected value in words; None for an annotation that no YAML scalar, list or mapping fits."""
    if field is not None and field.description:
        return field.description
    found = _expected((annotation,), () if field is None else field.metadata, all_bounds)
    return found or None


def _expected(annotations: Sequence[object], metadata: Sequence[object] = (), all_bounds: bool = False) -> str:
    limits = {name: value for item in metadata for name in _RANGES if (value := getattr(item, name, None)) is not None}
    kinds: list[str] = []
    for annotation in annotations:
        origin = _origin(annotation)
        if origin is Annotated:
            inner, *more = at_hand(annotation)
            kinds.append(_expected((inner,), [*metadata, *_flat(more)], all_bounds))
        elif origin in _UNIONS:
            kinds.extend(_expected((arm,), metadata, all_bounds) for arm in get_args(annotation))
        elif origin is Literal:
            kinds.append(" | ".join(str(word) for word in get_args(annotation)))
        elif origin in (list, tuple):
            kinds.append("a list")
        elif (
            origin is dict or annotation is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel))
        ):
            kinds.append("a mapping")
        elif annotation is type(None):
            kinds.append("null")
        elif isinstance(annotation, type) and annotation in _WORD:
            kinds.append(_WORD[annotation] + (_bounds(limits, all_bounds) if annotation in (int, float) else ""))
    return " or ".join(dict.fromkeys(kind for kind in kinds if kind))


def _bounds(limits: Mapping[str, float], all_bounds: bool) -> str:
    said = [
        f"{_RANGES[name]} {value:,.15g}" for name, value in sorted(limits.items()) if all_bounds or abs(value) < _LARGE
    ]
    return (" of " if said[0].startswith("at least") else " ") + " and ".join(said) if said else ""


def _origin(annotation: object) -> Any:
    return get_origin(annotation)


def _flat(metadata: Sequence[object]) -> list[object]:
    """Field(...) inside Annotated carries its constraints in a list of its own."""
    return [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]


def _literals(annotation: object) -> tuple[str, ...]:
    if _origin(annotation) is Literal:
        return tuple(str(word) for word in get_args(annotation))
    return tuple(word for arm in get_args(annotation) for word in _literals(arm))


def _members(annotation: object, tags: tuple[str, ...] = ()) -> list[_Member]:
    """The models, lists and mappings that an annotation allows, each with the tags by which a union knows it."""
    origin = _origin(annotation)
    if origin is Annotated:
        inner, *more = at_hand(annotation)
        return _members(inner, tuple(str(item.tag) for item in more if isinstance(item, Tag)) or tags)
    if origin in _UNIONS:
        return [member for arm in get_args(annotation) for member in _members(arm, tags)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [((*tags, *_model_tags(annotation)), annotation)]
    return [(tags, annotation)]


def _model_tags(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(word for field in model.model_fields.values() for word in _literals(annotation_of(field)))


def _words_of(model: type[BaseModel], key: str) -> tuple[str, ...]:
    """The words by which a key chooses this model among others."""
    field = model.model_fields.get(key)
    return () if field is None else _literals(annotation_of(field))


def _find(root: type[BaseModel], data: object, location: Sequence[int | str]) -> _Spot:
    """Follow an error's location through data and schema at once. The part beyond the data is left in `inner`."""
    members: list[_Member] = [((), root)]
    around: list[_Member] = []
    siblings: list[_Member] = []  # before a union chose by shape: a misspelt key may belong to the arm not chosen
    annotation: object = root
    field: FieldInfo | None = None
    path: list[str] = []
    inner: list[str] = []
    for step in location:
        chosen = [member for member in members if str(step) in member[0]]
        key = _key(data, step) if isinstance(data, Mapping) else None
        if chosen and key is None:
            siblings, members = (members if str(step).startswith("<") else chosen), chosen
        elif isinstance(step, int) and isinstance(data, list) and step < len(data):
            data, annotation, field = data[step], _item(members, step), None
            around, members, siblings = siblings or members, _members(annotation), []
            path.append(str(step))
        elif isinstance(data, Mapping) and key is not None:
            data = data[key]
            field = next((m.model_fields[str(step)] for m in _models(members) if str(step) in m.model_fields), None)
            annotation = _item(members, 1) if field is None else annotation_of(field)
            around, members, siblings = siblings or members, _members(annotation), []
            path.append(key_name(key))
        else:
            inner.append(str(step))
    return _Spot(tuple(path), data, annotation, field, _models(members), _models(around), tuple(inner))


def _models(members: Sequence[_Member]) -> tuple[type[BaseModel], ...]:
    return tuple(kind for _, kind in members if isinstance(kind, type) and issubclass(kind, BaseModel))


def _key(data: Mapping[Any, object], step: int | str) -> object:
    """The mapping's own key for a step of a location, in which numbers are written as text; None without one."""
    if step in data:
        return step
    names = {key_name(key): key for key in data}
    if str(step) in names:
        return names[str(step)]
    return next((key for name, key in names.items() if (number := _number(name)) and number == _number(step)), None)


def _number(text: int | str) -> str | None:
    """One spelling for all that spell the same number."""
    try:
        return repr(float(text))
    except ValueError:
        return None


def _item(members: Sequence[_Member], index: int) -> object:
    """The annotation of a list's item, or of a mapping's value; None where there is none."""
    for _, annotation in members:
        arguments, origin = get_args(annotation), _origin(annotation)
        if origin is tuple and arguments[-1] is not Ellipsis:
            return arguments[min(index, len(arguments) - 1)]
        if origin in (list, tuple):
            return arguments[0]
        if origin is dict:
            return arguments[1]
    return None


@cache
def known_keys(root: type[BaseModel]) -> Mapping[str, Sequence[str]]:
    """Every key of a schema, with the dotted places where it may stand ("" is the top level)."""
    places: dict[str, list[str]] = {}
    _collect(root, "", places)
    return places


def _collect(model: type[BaseModel], place: str, places: dict[str, list[str]]) -> None:
    for key, info in model.model_fields.items():
        known = places.setdefault(key, [])
        if place not in known:
            known.append(place)
        inside = f"{place}.{key}" if place else key
        for _, member in _members(annotation_of(info)):
            item = _item([((), member)], 0) if _origin(member) in (list, tuple) else member
            for part in _models(_members(item)):
                _collect(part, inside, places)


# The place of each value of a scenario: an error found later still names file, line and column.

_MOST_FINDINGS = 20


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file, or an override."""

    file: str | None
    line: int | None = None
    column: int | None = None

    @property
    def order(self) -> tuple[float, float]:
        """Files by line; overrides after them."""
        return (math.inf if self.line is None else self.line, self.column or 0)

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


@dataclass(frozen=True, slots=True)
class Origin:
    """The places of a document's keys: `marks` in its file (None for a mapping from Python), and the overrides.

    `overrides` tells which `--set` wrote a path and all below it.
    """

    file: str | None = None
    marks: Mapping[KeyPath, Mark] = field(default_factory=dict)
    overrides: dict[KeyPath, str] = field(default_factory=dict)

    def error(self, findings: Sequence[Finding]) -> InputError:
        """One error for all the findings: the first, by its place, and the others listed."""
        placed = {finding.path: (self.place(finding.path), finding) for finding in reversed(findings)}
        unknown = {path[:-1]: place for path, (place, found) in placed.items() if found.message == "unknown key"}

        def order(entry: tuple[Place, Finding]) -> tuple[object, ...]:
            place, finding = entry
            missing = finding.message == "missing"  # perhaps only misspelt: then the unknown key comes first
            return (*(unknown.get(finding.path[:-1], place) if missing else place).order, missing, finding.path)

        (place, first), *others = sorted(placed.values(), key=order)
        hints = [first.hint] if first.hint else []
        for where, other in others[:_MOST_FINDINGS]:
            hint = f" ({other.hint})" if other.hint else ""
            hints.append(f"also {where}{': ' if str(where) else ''}{_dotted(other)}{hint}")
        if len(others) > _MOST_FINDINGS:
            hints.append(f"and {len(others) - _MOST_FINDINGS} more")
        return InputError(
            _dotted(first), file=place.file, line=place.line, column=place.column, hint="\n  ".join(hints) or None
        )

    def place(self, path: KeyPath) -> Place:
        """The place of a key: an override, or the file's line and column; the nearest key around a missing one."""
        for length in range(len(path), -1, -1):
            part = path[:length]
            if part in self.overrides:
                return Place(self.overrides[part])
            if (mark := self.marks.get(part)) is not None:
                return Place(self.file, mark.line, mark.column)
        return Place(self.file)


def _dotted(finding: Finding) -> str:
    return f"{'.'.join(finding.path)}: {finding.message}" if finding.path else finding.message
