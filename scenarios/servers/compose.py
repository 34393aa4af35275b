"""A compose file: the services of it that start a server."""

import os
import shlex
from collections.abc import Mapping
from typing import Any

from scenarios.servers.command_line import unfolded
from scenarios.servers.start import Start, entries, launch_of_image, mapping, program, with_values


def read_services(data: Mapping[str, Any], file: str) -> list[Start]:
    """Return the servers of a compose file."""
    found = []
    for name, service in data["services"].items():
        if not isinstance(service, Mapping):
            continue
        image = str(service.get("image", ""))
        given = service.get("environment")
        pairs = (
            given.items() if isinstance(given, Mapping) else (str(each).partition("=")[::2] for each in entries(given))
        )
        environment = {str(key): str(value) for key, value in pairs}
        words = [*_words(service.get("entrypoint")), *_words(service.get("command"))]
        words = with_values(unfolded(words), {**os.environ, **environment})
        if program(words) is None and launch_of_image(image) is None:
            continue
        place, deploy = f"{file}: service {name}", mapping(service.get("deploy"))
        replicas = deploy.get("replicas", service.get("scale", 1))
        said = {"replicas": (replicas, f"replicas of {place}")} if replicas != 1 else {}
        files = {}
        for each in map(mapping, entries(service.get("configs"))):
            text = mapping(mapping(data.get("configs")).get(str(each.get("source")))).get("content")
            if text is not None:
                files[str(each.get("target", "")).rpartition("/")[2]] = str(text)
        gpu = str(service.get("labels", ""))
        found.append(Start(place, words, image, gpu, environment, said, files=files))
    return found


def _words(value: object) -> list[str]:
    """A command as compose takes it: a list, or text that is split as a shell does."""
    return [str(each) for each in value] if isinstance(value, list) else shlex.split(str(value or ""))
