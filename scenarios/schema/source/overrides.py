"""`--set a.b=VALUE`: values of a scenario replaced before anything is checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from scenarios.schema.source.hints import nearest
from scenarios.schema.source.yaml_source import KeyPath, describe, key_name, parse_yaml
from simulator.errors import InputError


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[KeyPath, str]:
    """Set each override's value in `data`, in order; returns which override wrote which path, as `--set ...`.

    The value is YAML. A path's parts are keys; in a list, indices or the items' names. Mappings missing on the way
    are made.
    Raises InputError, naming the override, for what is not `a.b=VALUE` and for a path through a value without keys.
    """
    written: dict[KeyPath, str] = {}
    for override in overrides:
        parts, value = _split(override)
        name = f"--set {override}"
        path, made = _write(data, parts, value, name)
        written = {old: by for old, by in written.items() if old[: len(path)] != path}
        written[path] = written[made] = name
    return written


def _split(override: str) -> tuple[list[str], object]:
    """The path and the value of `a.b=VALUE`."""
    name = f"--set {override}"
    dotted, equals, text = override.partition("=")
    parts = [part.strip() for part in dotted.split(".")]
    if not equals or not all(parts):
        raise InputError("not of the form a.b=VALUE", file=name, hint="as in: --set engine.max_num_seqs=128")
    try:
        return parts, parse_yaml(text, name).data
    except InputError as error:
        raise InputError(f"{dotted}: the value is {error.message}", file=name, hint=error.hint) from None


def _write(data: dict[str, Any], parts: list[str], value: object, name: str) -> tuple[KeyPath, KeyPath]:
    """Set the value. Returns its path, and that of the outermost mapping that had to be made for it, if any."""
    at: Any = data
    done: list[str] = []
    made: int | None = None
    while parts:
        key: Any
        if isinstance(at, list):
            key = _index(at, parts.pop(0), ".".join(done), name)
        elif isinstance(at, dict):
            key = _pop_key(at, parts)
            if parts and at.get(key) is None:
                at[key] = {}
                made = made or len(done) + 1
        else:
            here = ".".join(done)
            hint = f"to replace it as a whole: --set '{here}={{{parts[0]}: ...}}'"
            raise InputError(f"{here} is {describe(at)}: it has no key {parts[0]!r}", file=name, hint=hint)
        done.append(key_name(key))
        if not parts:
            at[key] = value
        at = at[key]
    return tuple(done), tuple(done[:made])


def _index(items: list[Any], part: str, here: str, name: str) -> int:
    """An index of a list: a number, or the `name` of one of its items."""
    if part in (known := [str(index) for index in range(len(items))]):
        return known.index(part)
    names = [entry.get("name") if isinstance(entry, Mapping) else None for entry in items]
    if names.count(part) == 1:
        return names.index(part)
    named = [word for word in names if isinstance(word, str)]
    near = nearest(part, named)
    hint = f"did you mean {here}.{near}?" if near else (f"or by name: {', '.join(named)}" if named else None)
    allowed = f"0 to {len(items) - 1}" if items else "none, it is empty"
    raise InputError(f"{here} is a list: {part!r} is not one of its indices ({allowed})", file=name, hint=hint)


def _pop_key(mapping: Mapping[Any, object], parts: list[str]) -> Any:
    """Take the next key from the parts: several of them where the mapping has a key with a dot, like quantile 0.5."""
    keys = {key_name(key): key for key in mapping}
    length = next((n for n in range(len(parts), 1, -1) if ".".join(parts[:n]) in keys), 1)
    word = ".".join(parts[:length])
    del parts[:length]
    return keys.get(word, word)
