"""Kubernetes: whatever holds a pod (Deployment, StatefulSet, LeaderWorkerSet, KServe, Dynamo's graphs)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scenarios.servers.command_line import unfolded
from scenarios.servers.start import Start, entries, launch_of_image, mapping, program, with_values

GPUS = ("nvidia.com/gpu", "amd.com/gpu", "gpu")


def read_manifests(documents: Sequence[object], file: str) -> list[Start]:
    """Return the servers of all pods in manifests."""
    found, known = [], [document for document in documents if isinstance(document, Mapping)]
    maps = [document for document in known if document.get("kind") == "ConfigMap"]
    files = {str(name): str(text) for each in maps for name, text in mapping(each.get("data")).items()}
    for document in known:
        metadata = mapping(document.get("metadata"))
        place = f"{file}: {document.get('kind', 'manifest')} {metadata.get('name', '')}".strip()
        for start in _starts(document, place, 1):
            found.append(replace(start, files=files, gpu=f"{start.gpu} {metadata.get('annotations', '')}"))
    return found


def _starts(value: object, place: str, replicas: object) -> Iterator[Start]:
    if isinstance(value, list):
        for each in value:
            yield from _starts(each, place, replicas)
    if not isinstance(value, Mapping):
        return
    replicas = value.get("replicas", replicas)
    for container in [*entries(value.get("containers")), value.get("mainContainer")]:
        start = container_start(mapping(container), place, replicas, str(value.get("nodeSelector", "")))
        if start is not None:
            yield start
    for key, inner in value.items():
        if key not in ("containers", "initContainers", "mainContainer"):
            deeper = f"{place}, {key}" if _is_service(inner) else place
            yield from _starts(inner, deeper, replicas)


def _is_service(value: object) -> bool:
    """Return whether a value is a service of Dynamo's graph, whose key names it."""
    return isinstance(value, Mapping) and "extraPodSpec" in value


def container_start(container: Mapping[str, Any], place: str, replicas: object, gpu: str = "") -> Start | None:
    """Return the server of a container; None where it runs something else."""
    image = str(container.get("image", ""))
    pairs = [mapping(each) for each in entries(container.get("env"))]
    environment = {str(each.get("name")): str(each["value"]) for each in pairs if "value" in each}
    given = [*_list(container.get("command")), *_list(container.get("args"))]
    words = with_values(unfolded(given), environment)
    if program(words) is None and (launch_of_image(image) is None or not any(w.startswith("-") for w in words)):
        return None
    limits = mapping(mapping(container.get("resources")).get("limits"))
    gpus = next((f"{limits[name]} x {name}" for name in GPUS if name in limits), "")
    said = {"replicas": (replicas, f"replicas of {place}")} if replicas != 1 else {}
    return Start(place, words, image, gpu, environment, said, notes=[f"{place} asks for {gpus}"] if gpus else [])


def _list(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [] if value is None else str(value).split()
