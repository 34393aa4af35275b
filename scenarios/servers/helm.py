"""Helm values: vLLM's production stack, and llm-d's model service."""

import re
from collections.abc import Mapping
from typing import Any

from scenarios.servers.config_file import as_words
from scenarios.servers.kubernetes import container_start
from scenarios.servers.start import VLLM, Start, entries, mapping


def read_values(data: Mapping[str, Any], file: str) -> list[Start]:
    """Return the servers of a file of values; none where it is of neither chart."""
    if isinstance(data.get("servingEngineSpec"), Mapping):
        specs = entries(data["servingEngineSpec"].get("modelSpec"))
        return [_of_stack(spec, file) for spec in specs if isinstance(spec, Mapping)]
    artifacts = data.get("modelArtifacts")
    if not isinstance(artifacts, Mapping):
        return []
    name = str(artifacts.get("name") or str(artifacts.get("uri", "")).removeprefix("hf://"))
    roles = [role for role in ("decode", "prefill") if isinstance(data.get(role), Mapping)]
    found = [_of_llm_d(data[role], name, role, file) for role in roles]
    return [start for start in found if start is not None]


def _of_stack(spec: Mapping[str, Any], file: str) -> Start:
    config = dict(mapping(spec.get("vllmConfig")))
    extra = [str(word) for word in entries(config.pop("extraArgs", None))]
    flags = {_hyphens(key): value for key, value in config.items() if key not in ("v0", "v1")}
    place = f"{file}: modelSpec {spec.get('name', '')}".strip()
    said = {"replicas": (spec["replicaCount"], f"replicaCount of {place}")} if spec.get("replicaCount", 1) != 1 else {}
    notes = [f"{place} asks for {spec['requestGPU']} GPUs"] if "requestGPU" in spec else []
    image = f"{spec.get('repository', '')}:{spec.get('tag', '')}"
    words = [*VLLM.split(), str(spec.get("modelURL", "")), *as_words(flags), *extra]
    return Start(place, words, image, str(spec.get("nodeSelectorTerms", "")), said=said, notes=notes)


def _of_llm_d(pods: Mapping[str, Any], model: str, role: str, file: str) -> Start | None:
    replicas = pods.get("replicas", 1)
    containers = entries(pods.get("containers"))
    if pods.get("create") is False or not replicas or not containers:
        return None
    place = f"{file}: {role}"
    tensor = str(mapping(pods.get("parallelism")).get("tensor", 1))
    container = dict(mapping(containers[0]))
    if container.get("modelCommand") != "custom":
        own = [model, "--tensor-parallel-size", tensor, *entries(container.get("args"))]
        container |= {"command": [*VLLM.split()], "args": own}
    gpu = " ".join(str(pods.get(key, "")) for key in ("nodeSelector", "acceleratorTypes", "podAnnotations"))
    return container_start(container, place, replicas, gpu)


def _hyphens(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", key).lower()
