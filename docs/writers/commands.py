"""The page of all commands, docs/commands.md."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from inspect import cleandoc
from typing import Any

from docs.writers.tables import texts

_HEAD = """# Every command

This page is written from the code (`make pages PAGES=commands`). `batchlab VERB --help` says the same. SCENARIO is the
path of a YAML file or the name of a shipped scenario (`batchlab list scenarios`). Exit codes: 0 done, 2 bad input (with
file, line, key and the nearest match), 1 a defect of ours. stdout is the same for equal input; progress, timing and
diagnostics go to stderr."""


def page() -> str:
    """The whole page, as Markdown."""
    from typer.main import get_command

    from scenarios.cli.app import app

    verbs = list(_verbs(get_command(app()), "batchlab"))
    counts = Counter(_row(one) for verb, _ in verbs for one in _options(verb))
    shared: dict[str, _Row] = {}  # by flag: the words that most commands have for it
    for row, count in counts.most_common():
        if count >= _SEVERAL:
            shared.setdefault(row[0].partition(" ")[0], row)
    lines = [
        _HEAD,
        "",
        "## Shared flags",
        "",
        "Each command lists which of these it takes.",
        "",
        *_table(sorted(shared.values())),
    ]
    for verb, words in verbs:
        lines += _section(verb, words, shared.values())
    return "\n".join(lines) + "\n"


_SEVERAL = 4  # commands that have a flag with the same words: it is told once
_Row = tuple[str, str]


def _verbs(command: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Each command with its words, those of a group in its order."""
    for verb, each in getattr(command, "commands", {}).items():
        words = f"{name} {verb}"
        if hasattr(each, "commands"):
            yield from _verbs(each, words)
        else:
            yield each, words


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and one.name != "help"]


def _row(option: Any) -> _Row:
    """A flag with its value, and its words."""
    value = _value(option)
    names = ", ".join([*option.opts, *option.secondary_opts])
    return f"{names} {value}".strip(), (option.help or "").replace("|", " or ")


def _table(rows: Iterable[_Row]) -> Iterator[str]:
    return texts(("flag", "what"), ((f"`{flag}`", told) for flag, told in rows))


def _section(command: Any, words: str, shared: Collection[_Row]) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    yield f"\n## {words.removeprefix('batchlab ')}\n"
    yield f"`{' '.join([words, *(one.metavar or one.name.upper() for one in arguments)])}`\n"
    yield cleandoc(command.help or "")
    rows = [(one.metavar or one.name.upper(), getattr(one, "help", "") or "") for one in arguments]
    rows = [row for row in rows if row[0] != "SCENARIO"]
    options = [_row(one) for one in _options(command)]
    if own := rows + [row for row in options if row not in shared]:
        yield "\n" + "\n".join(_table(own))
    if also := [f"`{flag.partition(' ')[0].rstrip(',')}`" for flag, told in options if (flag, told) in shared]:
        yield f"\nAlso {', '.join(also)}."


def _value(option: Any) -> str:
    """The value that follows a flag; empty for a switch."""
    if option.is_flag:
        return ""
    return str(option.metavar or option.name.upper()).replace("|", " or ")
