"""The page of all commands, docs/commands.md."""

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

from docs.writers.tables import texts

_HEAD = """# Every command

This page is written from the code (`make pages PAGES=commands`); a test keeps it true.
`batchlab --help` and `batchlab VERB --help` say the same. SCENARIO is a path or the name of a shipped scenario. Exit
codes: 0 done, 2 bad input (with file, line, key and the nearest match), 1 a defect of ours. stdout is the same for
equal input; progress, timing and diagnostics go to stderr."""


def page() -> str:
    """The whole page, as Markdown."""
    from typer.main import get_command

    from scenarios.cli.app import app

    return "\n".join([_HEAD, *_commands(get_command(app()), "batchlab")]) + "\n"


def _commands(command: Any, name: str) -> Iterator[str]:
    """A section for each command, those of a group in its order."""
    for verb, each in getattr(command, "commands", {}).items():
        words = f"{name} {verb}"
        if hasattr(each, "commands"):
            yield from _commands(each, words)
        else:
            yield from _section(each, words)


def _section(command: Any, words: str) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and one.name != "help"]
    yield f"\n## {words.removeprefix('batchlab ')}\n"
    yield f"`{' '.join([words, *(one.metavar or one.name.upper() for one in arguments)])}`\n"
    yield cleandoc(command.help or "")
    rows = [(one.metavar or one.name.upper(), "", getattr(one, "help", "") or "") for one in arguments]
    rows += [(", ".join([*one.opts, *one.secondary_opts]), _value(one), one.help or "") for one in options]
    if rows:
        cells = ((f"`{flag}`", value and f"`{value}`", told.replace("|", " or ")) for flag, value, told in rows)
        yield "\n" + "\n".join(texts(("flag", "value", "what"), cells))


def _value(option: Any) -> str:
    """The value that follows a flag; empty for a switch."""
    if option.is_flag:
        return ""
    return str(option.metavar or option.name.upper()).replace("|", " or ")
