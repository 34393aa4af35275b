"""Nodes with their places from YAML text: PyYAML's events, composed under YAML 1.2's core schema.

PyYAML's own composer overflows the C stack at deep nesting and follows YAML 1.1; ruamel.yaml's has no limit on depth
or aliases, places a duplicate key at its mapping, and takes about eight times as long.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from simulator.errors import InputError

MAX_DEPTH = 100  # levels of nesting

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's parser where it is built in, about ten times faster

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*|0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"([-+]?)\.(inf|Inf|INF)")
_NOT_YAML = yaml.reader.Reader.NON_PRINTABLE
_NAN = re.compile(r"\.(nan|NaN|NAN)")
_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text: line and column, the first of each being 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the document before its aliases are expanded. `content`: a scalar, a list, or pairs of nodes."""

    kind: str  # scalar | list | mapping
    mark: Mark
    content: object
    merge: bool = False  # a plain `<<`


class Composer:
    """Compose one document; a nesting deeper than `MAX_DEPTH` is an error."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.anchors: dict[str, Node | None] = {}
        self.events: Iterator[yaml.Event] = iter(())

    def document(self) -> Node | None:
        try:
            self.text.encode()
            self.events = yaml.parse(self.text, Loader=_LOADER)
            next(self.events)  # the stream's start
            if isinstance(next(self.events), yaml.StreamEndEvent):
                return None
            node = self.node(next(self.events), 0)
            next(self.events)  # the document's end
            following = next(self.events)
        except yaml.MarkedYAMLError as error:
            raise self.syntax_error(error) from None
        except (yaml.reader.ReaderError, UnicodeEncodeError) as error:
            raise self.bad_character() from error
        if not isinstance(following, yaml.StreamEndEvent):
            raise self.error("a second document begins here; one is expected", _mark(following))
        return node

    def node(self, event: yaml.Event, depth: int) -> Node:
        mark = _mark(event)
        if depth > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep", mark)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self.error(f"*{event.anchor} has no &{event.anchor} before it", mark)
            target = self.anchors[event.anchor]
            if target is None:
                raise self.error(f"*{event.anchor} stands inside of what it names", mark)
            return target
        anchor = getattr(event, "anchor", None)
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _TAGS and tag != "!":
            raise self.error(f"the tag {_short_tag(tag)} is not allowed here", mark, "write the plain value")
        if anchor is not None:
            self.anchors[anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event, tag, mark)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Node("list", mark, list(self.items(yaml.SequenceEndEvent, depth)))
        else:
            parts = list(self.items(yaml.MappingEndEvent, depth))
            node = Node("mapping", mark, list(zip(parts[::2], parts[1::2], strict=True)))
        if tag is not None and tag != "!" and tag.rpartition(":")[2] not in _FITTING[node.kind]:
            raise self.error(f"the tag {_short_tag(tag)} does not fit the value", mark)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def items(self, end: type[yaml.Event], depth: int) -> Iterator[Node]:
        while not isinstance(event := next(self.events), end):
            yield self.node(event, depth + 1)

    def scalar(self, event: yaml.ScalarEvent, tag: str | None, mark: Mark) -> Node:
        text: str = event.value
        plain = event.implicit[0] and tag is None
        if tag is None:
            value = plain_scalar(text) if plain else text
            return Node("scalar", mark, value, merge=plain and text == "<<")
        kind = tag.rpartition(":")[2]
        value = text if kind in ("str", "!") else plain_scalar(text)
        if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if kind in _SCALARS and type(value) is not _SCALARS[kind]:
            raise self.error(f"{text!r} is not what its tag !!{kind} says", mark)
        return Node("scalar", mark, value)

    def syntax_error(self, error: yaml.MarkedYAMLError) -> InputError:
        mark = error.problem_mark or error.context_mark
        if mark is None:
            return InputError(f"not YAML: {error.problem}", file=self.file)
        lines = self.text.splitlines()
        line = lines[mark.line] if mark.line < len(lines) else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        hint = None
        if error.context_mark is not None and error.context_mark.line != mark.line:
            hint = f"begun at {error.context_mark.line + 1}:{error.context_mark.column + 1}"
        if line[mark.column : mark.column + 1] == "\t" or "\t" in line[: len(line) - len(line.lstrip())]:
            problem, hint = "a tab used for indentation", "YAML is indented by spaces only"
        elif "mapping values are not allowed" in problem:
            hint = "a second `:` on the line, or a line indented too far; text that holds `: ` needs quotes"
        elif "could not find expected ':'" in problem or "did not find expected key" in problem:
            hint = "look at the indentation here and on the line before, and for an unclosed quote or bracket"
        return self.error(f"not YAML: {problem}", Mark(mark.line + 1, mark.column + 1), hint)

    def bad_character(self) -> InputError:
        """The first character that YAML does not allow: the parsers count its place in different units."""
        found = _NOT_YAML.search(self.text)
        before = self.text[: found.start() if found else 0]
        mark = Mark(before.count("\n") + 1, len(before) - before.rfind("\n"))
        name = f": U+{ord(found[0]):04X}" if found else ""
        return self.error(f"a character that YAML does not allow{name}", mark, "is this a text file?")

    def error(self, message: str, mark: Mark, hint: str | None = None) -> InputError:
        return InputError(message, file=self.file, line=mark.line, column=mark.column, hint=hint)


_SCALARS = {"null": type(None), "bool": bool, "int": int, "float": float, "str": str}
_FITTING = {"scalar": tuple(_SCALARS), "list": ("seq",), "mapping": ("map",)}


def plain_scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar: YAML 1.2's core schema, and `_` between digits."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text[0] in "tT"
    if _INT.fullmatch(text) and len(text) <= 400:
        base = {"0x": 16, "0o": 8}.get(text[:2], 10)
        return int(text, base)
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _INF.fullmatch(text):
        return float(f"{match[1]}inf")
    return float("nan") if _NAN.fullmatch(text) else text


def _mark(event: yaml.Event) -> Mark:
    start = event.start_mark
    assert start is not None, "parsers give every event its place"
    return Mark(start.line + 1, start.column + 1)


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!", 1)
