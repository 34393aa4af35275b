"""A YAML file of flags: vLLM's and SGLang's `--config`, TensorRT-LLM's `--extra_llm_api_options`."""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from scenarios.servers.start import Start, launches
from simulator.servers import Launch


def read_config(data: Mapping[str, object], place: str) -> Start | None:
    """Return the server that knows the most keys of a file of flags; None where none knows one."""
    launch = max(launches(), key=lambda each: sum(knows(each, key) for key in data))
    if not any(knows(launch, key) for key in data):
        return None
    words = launch.programs[0].split()
    if launch.options:
        return Start(place, words, options=dict(flat(data)))
    return Start(place, (*words, *as_words(data)))


def knows(launch: Launch, name: str) -> bool:
    """Return whether a key is a flag or an option of a server, or the first part of one."""
    flags = [*launch.flags, *launch.options]
    names = {each for flag in flags for each in (*flag.names.split(), flag.names.partition(".")[0])}
    tables = (launch.without_effect, launch.not_modelled)
    return plain(name) in {plain(each) for each in names} or any(why(table, name) is not None for table in tables)


def plain(name: str) -> str:
    """Return the name of a flag without its hyphens in front, and with hyphens for underscores."""
    return name.lstrip("-").replace("_", "-")


def why(table: Mapping[str, str], name: str) -> str | None:
    """Return the reason that a table has for a flag, also for its `no-` form and for keys below it."""
    forms = {plain(name), plain(name).removeprefix("no-"), plain(name).partition(".")[0]}
    for reason, names in table.items():
        if any(fnmatchcase(form, plain(each)) for each in names.split() for form in forms):
            return reason
    return None


def as_words(data: Mapping[str, object]) -> list[str]:
    """Return a mapping of flags as words: true is a flag alone, false its opposite."""
    words: list[str] = []
    for key, value in data.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            several = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(json.dumps(each) if isinstance(each, dict) else str(each) for each in several)]
    return words


def flat(data: Mapping[str, object], around: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings under dotted keys."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{around}{key}.")
        else:
            yield f"{around}{key}", value
