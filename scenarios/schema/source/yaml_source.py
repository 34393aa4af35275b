"""Strict YAML: plain data, and the line and column of every key and value.

The reading follows YAML 1.2's core schema, not 1.1's: `1e-5` is a number, `on`, `yes` and `12:30` are strings, and
only `true` and `false` are booleans. Duplicate keys, tags beyond the core ones, several documents and nesting beyond
`MAX_DEPTH` are errors. Anchors, aliases and merge keys (`<<`) work.
"""

from dataclasses import dataclass, field
from pathlib import Path

from scenarios.schema.source.yaml_nodes import MAX_DEPTH, Composer, Mark, Node
from simulator.errors import InputError

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
