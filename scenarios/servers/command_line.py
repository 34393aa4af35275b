"""A command line: `vllm serve ...`, SGLang's, TensorRT-LLM's, or a container with one of them."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scenarios.servers import launch_of_image, launches, program
from scenarios.servers.server import Start
from simulator.errors import InputError, did_you_mean

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
