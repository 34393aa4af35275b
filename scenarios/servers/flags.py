"""Flags of servers: which flag says which key, written and read, and the command lines that have them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from scenarios.servers import launch_of_image, launches, program
from scenarios.servers.server import Flag, Launch, Start, as_words, plain
from simulator.errors import InputError, did_you_mean

# Flags of a server and keys of a scenario, by one table in both directions (`scenarios.servers.server.Launch`).

OPTIONS_FILE = "options.yaml"
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


# -------------------------------------------------------------------------------------------------------------- writing


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


# -------------------------------------------------------------------------------------------------------------- reading


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


def launch_of(start: Start) -> Launch:
    """Return the command line of a server, in the age that the source says."""
    found = program(start.words)
    launch = found[0] if found else launch_of_image(start.image)
    if launch is None:
        raise InputError("it starts no server that is known here", file=start.place)
    numbers = tuple(int(part) for part in (version_in(start.image) or "9999").split("."))
    variables = {f"{name}={value}" for name, value in start.environment.items()}
    for older in launches():
        told = older.told_by and (older.told_by in start.remark or older.switch in variables or numbers < older.until)
        if told and set(older.programs) == set(launch.programs):
            return older
    return launch


def version_in(image: str) -> str | None:
    """Return the version in an image's tag, as 0.11; None where the tag has none."""
    match = re.search(r":v?(\d+)\.(\d+)", image)
    return f"{match[1]}.{match[2]}" if match else None


def read_start(launch: Launch, start: Start, notes: list[str]) -> Read:
    """Read the flags of one source, the files that they name, and what else it says; notes are added."""
    found = program(start.words)
    read = read_words(launch, start.words[found[1] if found else 0 :])
    for flag, file in read.files.items():
        _read_file(read, launch, flag, file, start.files, notes)
    read_options(launch, dict(flat(start.options)), read)
    read_variables(launch, start.environment, read)
    said = dict(start.said)
    if replicas := re.search(r"on each of ([\d,]+) replicas", start.remark):
        said["replicas"] = (int(replicas[1].replace(",", "")), "the remark behind the command")
    if "replicas" in read.taken:
        ranks, flag = read.taken["ranks"] = read.taken["replicas"]
        if "replicas" in said:  # so many servers, each of so many ranks
            number, where = said["replicas"]
            read.taken["replicas"] = (int(str(number)) * int(str(ranks)), f"{where}, times {flag}")
            if "hardware.enable_expert_parallel" in read.taken:
                notes.append(f"warning: here all replicas share experts, not the {ranks} ranks of each server alone")
        elif launch.balancer and ranks != 1:
            read.taken["router"] = (launch.balancer, f"the server's own, for {flag}")
    read.taken = {**said, **read.taken}
    return read


def _read_file(read: Read, launch: Launch, flag: str, file: str, files: Mapping[str, str], notes: list[str]) -> None:
    """Read a file of flags that a command names: flags win over those of a file, options of a file over flags."""
    path = Path(file)
    if path.name not in files and not path.is_file():
        notes.append(f"warning: {flag} {file} is not a file here, so its settings are missing")
        return
    try:
        data = yaml.safe_load(files[path.name] if path.name in files else path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"cannot be read as YAML: {error}", file=file) from None
    if not isinstance(data, dict):
        raise InputError("expected a mapping of flags", file=file)
    if launch.options:
        read_options(launch, dict(flat(data)), read)
    else:
        read.add(read_words(launch, as_words(data)))


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


def knows(launch: Launch, name: str) -> bool:
    """Return whether a key is a flag or an option of a server, or the first part of one."""
    flags = [*launch.flags, *launch.options]
    names = {each for flag in flags for each in (*flag.names.split(), flag.names.partition(".")[0])}
    tables = (launch.without_effect, launch.not_modelled)
    return plain(name) in {plain(each) for each in names} or any(why(table, name) is not None for table in tables)


def why(table: Mapping[str, str], name: str) -> str | None:
    """Return the reason that a table has for a flag, also for its `no-` form and for keys below it."""
    forms = {plain(name), plain(name).removeprefix("no-"), plain(name).partition(".")[0]}
    for reason, names in table.items():
        if any(fnmatchcase(form, plain(each)) for each in names.split() for form in forms):
            return reason
    return None


def flat(data: Mapping[str, object], around: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of nested mappings under dotted keys."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{around}{key}.")
        else:
            yield f"{around}{key}", value


# A command line: `vllm serve ...`, SGLang's, TensorRT-LLM's, or a container with one of them.

_SHELLS = ("sh", "bash", "zsh", "ash", "dash")
_CONTAINERS = ("docker", "podman", "nerdctl")
_WANTED = (
    "a command (vllm serve, python -m sglang.launch_server, trtllm-serve, docker run), a file, or http://HOST:PORT"
)


def split_line(text: str, place: str = "command line") -> Start:
    """Return the words of a command line, without the shell around them; its comments are the remark."""
    text = re.sub(r"\\\s*\n", " ", text)
    line, _, behind = text.partition("  # ")
    remark = "; ".join([each[2:] for each in line.splitlines() if each.startswith("# ")] + [behind.strip()])
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError(f"{place}: {error}", hint="quote as a shell does") from None
    environment = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Z_][A-Z0-9_]*", name):
            environment[name] = value
    words = with_values([word for word in words if word not in ("&", "\\")], environment)
    files = {
        match[1]: match[2] for part in remark.split("; ") if (match := re.fullmatch(r"(\S+\.ya?ml): (\{.*\})", part))
    }
    return Start(place, words, environment=environment, remark=remark, files=files, gpu=remark)


def with_values(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return words with variables replaced: `$(A)`, `$A`, `${A}` and `${A:-default}`, where a value is known."""

    def value(match: re.Match[str]) -> str:
        name, default = next((a, b) for a, b in ((match[1], None), (match[2], match[3]), (match[4], None)) if a)
        return environment.get(name, default if default is not None else match[0])

    return [re.sub(r"\$\((\w+)\)|\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)", value, word) for word in words]


def unfolded(words: Sequence[str]) -> list[str]:
    """Return words with a script for a shell (`bash -c "..."`) in their place."""
    for place, word in enumerate(words):
        if word.rpartition("/")[2] in _SHELLS:
            for start, script in enumerate(words[place + 1 :], place + 1):
                if not script.startswith("-"):
                    return [*words[:place], *split_line(" ".join(words[start:])).words]
    return list(words)


def read_command(text: str, place: str = "command line") -> Start:
    """Return the server that a command line starts. Raises InputError where it starts none."""
    whole = split_line(text, place)
    words = unfolded(whole.words)
    found = program(words)
    image = _image(words)
    if found is None and image is None:
        known = [word for launch in launches() for name in launch.programs for word in name.split()]
        first = next((word for word in words if "=" not in word), "")
        hint = f"{did_you_mean(first, known)}SOURCE is {_WANTED}"
        raise InputError(f"nothing in {text.strip()[:60]!r} starts a server", file=place, hint=hint)
    if found is None and image is not None:
        words = words[image + 1 :]
    name = whole.words[image] if image is not None and image < len(whole.words) else ""
    return replace(whole, words=words, image=name)


def _image(words: list[str]) -> int | None:
    """Return the place of a server's image behind `docker run`."""
    if not any(word.rpartition("/")[2] in _CONTAINERS for word in words):
        return None
    names = (place for place, word in enumerate(words) if not word.startswith("-") and ("/" in word or ":" in word))
    return next((place for place in names if "=" not in words[place] and launch_of_image(words[place])
                 and words[place - 1] not in ("-v", "--volume", "--name", "-p", "-e", "--env")), None)  # fmt: skip
