"""Strict YAML: plain data, and the line and column of every key and value.

The reading follows YAML 1.2's core schema, not 1.1's: `1e-5` is a number, `on`, `yes` and `12:30` are strings, and
only `true` and `false` are booleans. Duplicate keys, tags beyond the core ones, several documents and nesting beyond
`MAX_DEPTH` are errors. Anchors, aliases and merge keys (`<<`) work.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from simulator.errors import InputError

# Nodes with their places from YAML text: PyYAML's events, composed under YAML 1.2's core schema.
#
# PyYAML's own composer overflows the C stack at deep nesting and follows YAML 1.1; ruamel.yaml's has no limit on
# depth or aliases, places a duplicate key at its mapping, and takes about eight times as long.

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


KeyPath = tuple[str, ...]
"""Keys from the root down. A list's index and a number used as key stand in it as `str` writes them."""

MAX_NODES = 1_000_000  # values in a document, aliases expanded: stops a document that explodes by its aliases
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A document as plain data (dict, list, str, int, float, bool, None), and the place of each part."""

    file: str
    data: object
    keys: dict[KeyPath, Mark] = field(default_factory=dict)
    values: dict[KeyPath, Mark] = field(default_factory=dict)


def read_yaml(path: Path, name: str | None = None) -> YamlSource:
    """The mapping in a YAML file; `name` is what messages call the file.

    Raises InputError, with file:line:column, for anything that cannot be read as one mapping.
    """
    file = str(path) if name is None else name
    return parse_mapping(_text(path, file), file)


def parse_mapping(text: str, file: str) -> YamlSource:
    """The mapping that a text holds. Raises InputError if it holds anything else."""
    source = parse_yaml(text, file)
    if isinstance(source.data, dict):
        return source
    if source.data is None:
        raise InputError("the file is empty", file=file, hint="expected a mapping, `key: value` on each line")
    mark = source.values[()]
    raise InputError(
        f"expected a mapping, `key: value` on each line, not {describe(source.data)}",
        file=file,
        line=mark.line,
        column=mark.column,
    )


def parse_yaml(text: str, file: str) -> YamlSource:
    """The one document of a text, of any type; None where there is none."""
    return _Expansion(file).expand(Composer(text, file).document())


def key_name(key: object) -> str:
    """A mapping's key as it stands in a `KeyPath`."""
    return key if isinstance(key, str) else str(key)


def describe(value: object) -> str:
    """A value in a message: its kind, and itself where it is short."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) <= 40 else f"the text {value[:37]!r}..."
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return repr(value)


def _text(path: Path, file: str) -> str:
    """The text of a file."""
    try:
        if path.is_dir():
            inside = path / "scenario.yaml"
            hint = f"did you mean {inside}?" if inside.is_file() else None
            raise InputError("is a folder; a YAML file is needed", file=file, hint=hint)
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot read the file: {reason}", file=file) from None
    if len(data) > MAX_BYTES:
        raise InputError(f"larger than {MAX_BYTES // 2**20} MiB: too large for a scenario or a study", file=file)
    if data.startswith(b"\x1f\x8b"):
        raise InputError("is gzip-compressed; a YAML file is plain text", file=file, hint=_TRACE_HINT)
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        raise InputError(
            f"is not UTF-8 text: byte 0x{data[error.start]:02x}",
            file=file,
            line=before.count(b"\n") + 1,
            column=len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1,
            hint="save it as UTF-8" if 0 not in data else "it looks like a binary file",
        ) from None
    return text


_TRACE_HINT = "a trace is not a scenario: name it in one, `workload: {trace: {path: ...}}`"


class _Expansion:
    """Plain data from nodes, with the place of every part."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.keys: dict[KeyPath, Mark] = {}
        self.values: dict[KeyPath, Mark] = {}

    def expand(self, root: Node | None) -> YamlSource:
        data = None if root is None else self.value(root, ())
        return YamlSource(self.file, data, self.keys, self.values)

    def value(self, node: Node, path: KeyPath) -> object:
        if len(self.values) > MAX_NODES:
            raise self.error(f"more than {MAX_NODES:,} values, aliases expanded", node.mark)
        self.values[path] = node.mark
        if node.kind == "mapping":
            return self.mapping(node, path)
        if isinstance(node.content, list):
            return [self.value(item, (*path, str(index))) for index, item in enumerate(node.content)]
        return node.content

    def mapping(self, node: Node, path: KeyPath) -> dict[object, object]:
        result: dict[object, object] = {}
        for key, value in self.pairs(node, 0):
            name = self.key(key)
            result[name] = None  # keeps the place in the order
            here = (*path, key_name(name))
            self.keys[here] = key.mark
            result[name] = self.value(value, here)
        return result

    def pairs(self, node: Node, depth: int) -> list[tuple[Node, Node]]:
        """The pairs of a mapping, `<<` resolved: its own keys first and stronger, then those merged in."""
        if depth > MAX_DEPTH:
            raise self.error("merged too often", node.mark)
        assert isinstance(node.content, list)
        own: dict[object, tuple[Node, Node]] = {}
        merged: list[Node] = []
        for key, value in node.content:
            if key.merge:
                merged.extend(value.content if value.kind == "list" else [value])
                continue
            name = self.key(key)
            if name in own:
                first = own[name][0].mark
                raise self.error(
                    f"duplicate key `{key_name(name)}`", key.mark, f"first given at {first.line}:{first.column}"
                )
            own[name] = (key, value)
        for other in merged:
            if other.kind != "mapping":
                raise self.error("`<<` merges a mapping or a list of mappings", other.mark)
            for key, value in self.pairs(other, depth + 1):
                own.setdefault(self.key(key), (key, value))
        return list(own.values())

    def key(self, node: Node) -> str | int | float:
        """A key: text or a number. Others are named as they are written, for the schema to refuse."""
        value = node.content
        if node.kind != "scalar" or value != value:
            raise self.error("a key must be text or a number", node.mark)
        if isinstance(value, bool) or value is None:
            return "null" if value is None else str(value).lower()
        assert isinstance(value, (str, int, float))
        return value

    def error(self, message: str, mark: Mark, hint: str | None = None) -> InputError:
        return InputError(message, file=self.file, line=mark.line, column=mark.column, hint=hint)
