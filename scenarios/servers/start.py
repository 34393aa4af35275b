"""A server as a source starts it: its words, its image, and what the source says beside them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from simulator.policies import built_in_policies, server_of
from simulator.servers import Launch

VLLM = "vllm serve"
"""The program of sources that name none."""


@dataclass(frozen=True, slots=True)
class Start:
    """One server of a source. `words` are its program and arguments, as far as they are known.

    `said` are keys of the scenario that the source says outside of flags, each with its value and where it stands;
    `gpu` is any text that may name the GPU; `options` are keys of a file of options.
    """

    place: str
    words: Sequence[str] = ()
    image: str = ""
    gpu: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, tuple[object, str]] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # texts of files by name, where the source holds them
    remark: str = ""  # a comment behind the words
    notes: Sequence[str] = ()


@cache
def _policies() -> Mapping[int, str]:
    """The policy of each command line that is the policy's own server; of two names of a scheduler the later one."""
    found = {name: server_of(name).launch for name in built_in_policies()}
    return {id(launch): name for name, launch in found.items() if launch is not None and launch.is_own}


def policy_of(launch: Launch) -> str:
    """Return the policy that a server schedules with."""
    return _policies()[id(launch)]


def launches() -> list[Launch]:
    """Return the command lines of servers, the newest of a program first."""
    found = [server_of(name).launch for name in _policies().values()]
    return sorted((launch for launch in found if launch is not None), key=lambda launch: launch.until)


def program(words: Sequence[str]) -> tuple[Launch, int] | None:
    """Find the program of a server among words; returns its command line and the place of its first argument."""
    known = [(name.removeprefix("python -m ").split(), launch) for launch in launches() for name in launch.programs]
    for place, word in enumerate(words):
        for parts, launch in sorted(known, key=lambda each: -len(each[0])):
            if [word.rpartition("/")[2], *words[place + 1 : place + len(parts)]] == parts:
                return launch, place + len(parts)
    return None


def launch_of_image(image: str) -> Launch | None:
    """Return the command line of the server that an image holds, by the image's name."""
    return next((launch for launch in launches() if any(part in image.lower() for part in launch.images)), None)


def with_values(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return words with variables replaced: `$(A)`, `$A`, `${A}` and `${A:-default}`, where a value is known."""

    def value(match: re.Match[str]) -> str:
        name, default = next((a, b) for a, b in ((match[1], None), (match[2], match[3]), (match[4], None)) if a)
        return environment.get(name, default if default is not None else match[0])

    return [re.sub(r"\$\((\w+)\)|\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)", value, word) for word in words]


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping of a file as it is, and an empty one for anything else: files of others are not checked here."""
    return value if isinstance(value, Mapping) else {}


def entries(value: object) -> list[Any]:
    """Return a list of a file as it is, and an empty one for anything else."""
    return value if isinstance(value, list) else []
