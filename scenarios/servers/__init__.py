"""Servers around the policies, an engine a file; flags, files and logs are read and written by their tables.

The server of the policy `some_name` is the constant `SOME_NAME` of an engine's file, that of a user's own policy the
constant `SERVER` beside it. The files of engines stand in `_engines`, and policies are on no list.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType

from scenarios.servers.server import Launch, Server
from scenarios.servers.vllm import LIKE_VLLM
from simulator import policies
from simulator.errors import InputError
from simulator.policies import built_in_policies, policy_class


def server_of(policy: str) -> Server:
    """The server that has a policy. One like vLLM where no file has one, or the policy cannot be loaded."""
    with suppress(InputError):
        module = policy_class(policy).__module__
        own: Server | None = getattr(sys.modules[module], "SERVER", None)
        package, _, name = module.rpartition(".")
        if own is not None or package != policies.__name__:
            return own or LIKE_VLLM
        of_engines = (getattr(engine, name.upper(), None) for engine in _engines())
        return next((found for found in of_engines if isinstance(found, Server)), LIKE_VLLM)
    return LIKE_VLLM


def _engines() -> Iterator[ModuleType]:
    """The files of the engines. vLLM's is the first: a run of its policies loads no other."""
    from scenarios.servers import vllm

    yield vllm
    from scenarios.servers import sglang, tensorrt_llm, tgi

    yield from (sglang, tensorrt_llm, tgi)


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
