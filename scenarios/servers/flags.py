"""Flags of a server and keys of a scenario, by one table in both directions (`simulator.servers.Launch`)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import yaml

from scenarios.servers.config_file import plain, why
from simulator.servers import Flag, Launch

OPTIONS_FILE = "options.yaml"
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


# ------------------------------------------------------------------------------------------------------------- writing


def words_of(launch: Launch, model: str, values: Mapping[str, object]) -> list[str]:
    """Return the command line for values by key, a word each; a flag and its value are two."""
    values = {**values, **launch.fixed}
    found = [*launch.programs[0].split(), *([launch.model] if launch.model else []), model]
    for flag in launch.flags:
        if flag.says(values.get(flag.key)):
            found += [flag.names.split()[0], *([] if flag.means is not None else [_worded(flag, values[flag.key])])]
    return found + ([launch.options_flags[0], OPTIONS_FILE] if launch.options else [])


def variables_of(launch: Launch, values: Mapping[str, object]) -> dict[str, str]:
    """Return the variables of the environment for values by key."""
    return {flag.names: _worded(flag, values[flag.key]) for flag in launch.variables if flag.says(values.get(flag.key))}


def options_of(launch: Launch, values: Mapping[str, object]) -> dict[str, Any]:
    """Return the file of options for values by key; empty for a server without one."""
    found: dict[str, Any] = {}
    for flag in launch.options:
        if flag.says(values.get(flag.key)):
            *around, last = flag.names.split()[0].split(".")
            holder = found
            for key in around:
                holder = holder.setdefault(key, {})
            holder[last] = flag.words[values[flag.key]] if flag.words else values[flag.key]
    return found


def unsaid(launch: Launch, values: Mapping[str, object], defaults: Mapping[str, object]) -> list[str]:
    """Return remarks on keys of the engine that differ from the policy's defaults and that no flag says."""
    flags = [*launch.flags, *launch.options]
    said = {*launch.fixed, *(launch.joined({}) if launch.joined else ()), "engine.version"}
    said |= {key for key in values if any(flag.key == key and (flag.says(value) or value == flag.default)
                                          for flag in flags for value in [values[key]])}  # fmt: skip
    return [f"no flag says {key} {values[key]}" for key in values if key.startswith("engine.") and key not in said
            and key in defaults and values[key] != defaults[key]]  # fmt: skip


def line(words: Iterable[str]) -> str:
    """Return words as a shell takes them."""
    return shlex.join(words)


def flow(options: Mapping[str, Any]) -> str:
    """Return options as YAML on one line."""
    return yaml.safe_dump(dict(options), default_flow_style=True, sort_keys=False, width=10**6).strip()


def _worded(flag: Flag, value: Any) -> str:
    if flag.write is not None:
        return flag.write(value)
    if flag.words:
        words = flag.words[value]
        return str(words if isinstance(words, str) else words[0])
    return f"{value:g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------------------- reading


@dataclass(slots=True)
class Read:
    """What flags say: the model, keys with value and flag, and the flags that say nothing here, each with the reason.

    `unknown` maps a flag to the nearest known one, or ''.
    """

    model: str = ""
    taken: dict[str, tuple[object, str]] = field(default_factory=dict)
    without_effect: dict[str, str] = field(default_factory=dict)
    not_modelled: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # files of flags, by the flag that names them

    def add(self, other: Read) -> None:
        """Add what another source says; what is known already stays."""
        self.model = self.model or other.model
        self.taken = {**other.taken, **self.taken}
        self.without_effect = {**other.without_effect, **self.without_effect}
        self.not_modelled = {**other.not_modelled, **self.not_modelled}
        self.unknown = {**other.unknown, **self.unknown}


def read_words(launch: Launch, words: Sequence[str]) -> Read:
    """Read the arguments of a server's program."""
    found, known = Read(), _by_name(launch.flags)
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not _is_flag(word):
            found.model = found.model or word
            continue
        name, equals, value = word.partition("=")
        own = known.get(plain(name), [])
        values = [value] if equals else []
        if not equals:
            while place < len(words) and not _is_flag(words[place]):
                if own and (values or (own[0].means is not None and words[place].lower() not in ("true", "false"))):
                    break
                values.append(words[place])
                place += 1
        _sort(launch, found, own, name, values)
    return found


def read_options(launch: Launch, options: Mapping[str, object], found: Read) -> None:
    """Read the keys of a file of options, dotted where they lie deeper, into what the flags say."""
    known = _by_name(launch.options)
    for name, value in options.items():
        _sort(launch, found, known.get(plain(name), []), name, [json.dumps(value) if value is None else str(value)])


def read_variables(launch: Launch, environment: Mapping[str, str], found: Read) -> None:
    """Read the variables of the environment that say a key into what the flags say."""
    for flag in launch.variables:
        if flag.names in environment:
            taken, value = _value(flag, [environment[flag.names]])
            said = f"{flag.names}={environment[flag.names]}"
            if taken:
                found.taken[flag.key] = (value, said)
            else:
                found.not_modelled[said] = "its value is not understood"


def _sort(launch: Launch, found: Read, own: Sequence[Flag], name: str, values: list[str]) -> None:
    said = " ".join([name, *values])
    if plain(name) in {plain(each) for each in (launch.model, *launch.model_names) if each}:
        found.model = values[0] if values else found.model
    elif plain(name) == "config" or plain(name) in map(plain, launch.options_flags):
        found.files[name] = values[0] if values else ""
    elif own:
        taken, value = _value(own[0], values)
        if taken:
            found.taken[own[0].key] = (value, said)
        else:
            found.not_modelled[said] = f"`{own[0].key}` has no value like this"
    elif (reason := why(launch.without_effect, name)) is not None:
        found.without_effect[said] = reason
    elif (reason := why(launch.not_modelled, name)) is not None:
        found.not_modelled[said] = reason
    else:
        tables = (*launch.without_effect.values(), *launch.not_modelled.values())
        others = [each for names in tables for each in names.split() if "*" not in each]
        every = [plain(each) for flag in (*launch.flags, *launch.options) for each in flag.names.split()]
        found.unknown[said] = next(iter(get_close_matches(plain(name), [*every, *others], n=1, cutoff=0.7)), "")


def _value(flag: Flag, values: Sequence[str]) -> tuple[bool, object]:
    """Return whether a flag's words are understood, and the value of its key."""
    text = values[0] if values else ""
    if flag.means is not None:
        return True, flag.means if text.lower() in ("", "true") else not flag.means
    for value, words in flag.words.items():
        if text.lower() in {str(word).lower() for word in (words if isinstance(words, tuple) else (words,))}:
            return True, value
    if flag.words:
        return False, None
    if flag.read is not None:
        try:
            return True, flag.read(text)
        except ValueError:
            return False, None
    return text != "", number(text)


def number(text: str) -> object:
    """Return a number as servers write it: 8k is 8,000 and 8K is 8,192 for them."""
    if match := re.fullmatch(r"(-?\d+(?:\.\d+)?)([kmgKMG])", text):
        return int(float(match[1]) * _UNITS[match[2]])
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d.*|-", word)


def _by_name(flags: Iterable[Flag]) -> dict[str, list[Flag]]:
    found: dict[str, list[Flag]] = {}
    for flag in flags:
        for name in flag.names.split():
            found.setdefault(plain(name), []).append(flag)
    return found
