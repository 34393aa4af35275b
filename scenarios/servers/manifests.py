"""What starts a server, as files, written and read: compose, Kubernetes, Helm values, a graph of Dynamo's; a script.

Kubernetes: whatever holds a pod (Deployment, StatefulSet, LeaderWorkerSet, KServe, Dynamo's graphs). Helm: values of
vLLM's production stack and of llm-d's model service.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from scenarios.servers import launch_of_image, program
from scenarios.servers.flags import OPTIONS_FILE, line, unfolded, with_values
from scenarios.servers.server import Launch, Start, as_words
from scenarios.servers.vllm import PROGRAM

GPU_LABEL = "batchlab.gpu"
"""The annotation that says for which GPU a manifest was made."""
_TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}}
_FOLDER = "/etc/server"


# -------------------------------------------------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class Deployed:
    """A server's start: its command, a word each, its file of options, remarks on what these cannot say, and where.

    `gpus` are those of one server, its data-parallel ranks included; `replicas` is the number of servers.
    """

    launch: Launch
    words: Sequence[str]
    options: Mapping[str, Any]
    remarks: Sequence[str]
    model: str
    version: str | None
    gpu: str
    gpus: int
    replicas: int
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> list[str]:
        """The words before the model and the flags."""
        return self.launch.programs[0].split()

    @property
    def arguments(self) -> list[str]:
        """The words after the program, as in a container that has the file of options."""
        words = self.words[len(self.program) :]
        return [f"{_FOLDER}/{word}" if word == OPTIONS_FILE else word for word in words]

    @property
    def image(self) -> str:
        """A container image with the server."""
        return self.launch.container.format(version=self.version or self.launch.version)

    @property
    def name(self) -> str:
        """A name for its services, as Kubernetes allows it."""
        return re.sub(r"[^a-z0-9]+", "-", self.model.rpartition("/")[2].lower()).strip("-")[:50] or "server"


def files_of(server: Deployed) -> dict[str, str]:
    """Return the files by name. Those of llm-d and Dynamo are there for the servers that these start."""
    head = "".join(f"# {remark}\n" for remark in [f"{server.replicas} x {server.gpus} x {server.gpu}", *server.remarks])
    each = f"# on each of {server.replicas:,} replicas\n" if server.replicas > 1 else ""
    found = {
        "command.sh": f"#!/bin/sh\n{head}{each}{_exports(server)}exec {line(server.words)}\n",
        "compose.yaml": head + _yaml(_compose(server)),
        "kubernetes.yaml": head + "---\n".join(map(_yaml, _kubernetes(server))),
    }
    if server.options:
        found[OPTIONS_FILE] = _yaml(server.options)
    if any("/llm-d" in image for image in server.launch.images):
        found["llm-d-values.yaml"] = head + _yaml(_llm_d(server))
    worker = next((name for name in server.launch.programs if name.startswith("dynamo.")), None)
    if worker is not None:
        found["dynamo.yaml"] = head + "---\n".join(map(_yaml, _dynamo(server, worker)))
    return found


def _exports(server: Deployed) -> str:
    return "".join(f"export {name}={value}\n" for name, value in server.variables.items())


def _compose(server: Deployed) -> dict[str, Any]:
    port, last = server.launch.port, server.launch.port + server.replicas - 1
    device = {"driver": "nvidia", "count": server.gpus, "capabilities": ["gpu"]}
    service: dict[str, Any] = {
        "image": server.image,
        "entrypoint": server.program,
        "command": server.arguments,
        "ipc": "host",
        "ports": [f"{port}:{port}" if last == port else f"{port}-{last}:{port}"],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}", **server.variables},
        "labels": {GPU_LABEL: server.gpu},
        "deploy": {"replicas": server.replicas, "resources": {"reservations": {"devices": [device]}}},
    }
    found: dict[str, Any] = {"services": {server.name: service}}
    if server.options:
        service["configs"] = [{"source": "options", "target": f"{_FOLDER}/{OPTIONS_FILE}"}]
        found["configs"] = {"options": {"content": _yaml(server.options)}}
    return found


def _kubernetes(server: Deployed) -> list[dict[str, Any]]:
    labels = {"app": server.name}
    pod = _pod(server, {"command": server.program, "args": server.arguments})
    spec = {"replicas": server.replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod}}  # fmt: skip
    service = {"selector": labels, "ports": [{"port": 80, "targetPort": server.launch.port}]}
    return [
        *_config_map(server),
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _metadata(server), "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": server.name}, "spec": service},
    ]


def _dynamo(server: Deployed, worker: str) -> list[dict[str, Any]]:
    arguments = server.arguments if server.launch.model else ["--model", *server.arguments]
    pod = _pod(server, {"command": ["python3", "-m", worker], "args": arguments})
    container, volumes = pod["containers"][0], pod["volumes"]
    container["image"] = f"nvcr.io/nvidia/ai-dynamo/{worker.removeprefix('dynamo.')}-runtime:latest"
    frontend = {"componentType": "frontend", "replicas": 1,
                "extraPodSpec": {"mainContainer": {"image": container["image"]}}}  # fmt: skip
    of_worker = {
        "componentType": "worker",
        "replicas": server.replicas,
        "resources": {"limits": {"gpu": str(server.gpus)}},
        "extraPodSpec": {
            "mainContainer": {key: container[key] for key in container if key != "resources"},
            "volumes": volumes,
        },
    }
    graph = {"services": {"Frontend": frontend, "worker": of_worker}}
    kind = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment"}
    return [*_config_map(server), {**kind, "metadata": _metadata(server), "spec": graph}]


def _llm_d(server: Deployed) -> dict[str, Any]:
    flags = [*server.arguments[1:]]
    tensor = server.launch.flags[0].names.split()[0]
    ranks = 1
    if tensor in flags:  # the chart writes it from `parallelism`
        place = flags.index(tensor)
        ranks = int(flags[place + 1])
        del flags[place : place + 2]
    container = _pod(server, {"modelCommand": "vllmServe", "args": flags, "mountModelVolume": True})["containers"][0]
    return {
        "modelArtifacts": {
            "name": server.model,
            "uri": f"hf://{server.model}",
            "size": "500Gi",
            "authSecretName": "hf-token",
        },
        "decode": {
            "create": True,
            "replicas": server.replicas,
            "parallelism": {"tensor": ranks},
            "podAnnotations": {GPU_LABEL: server.gpu},
            "containers": [container],
        },
        "prefill": {"create": False},
    }


def _pod(server: Deployed, start: Mapping[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "server",
        "image": server.image,
        **start,
        "env": [_TOKEN, *({"name": name, "value": value} for name, value in server.variables.items())],
        "ports": [{"containerPort": server.launch.port}],
        "resources": {"limits": {"nvidia.com/gpu": str(server.gpus)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if server.options:
        container["volumeMounts"].append({"name": "options", "mountPath": _FOLDER})
        volumes.append({"name": "options", "configMap": {"name": f"{server.name}-options"}})
    return {"containers": [container], "volumes": volumes}


def _config_map(server: Deployed) -> list[dict[str, Any]]:
    if not server.options:
        return []
    name = {"name": f"{server.name}-options"}
    data = {OPTIONS_FILE: _yaml(server.options)}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": data}]


def _metadata(server: Deployed) -> dict[str, Any]:
    return {"name": server.name, "annotations": {GPU_LABEL: server.gpu}}


def _yaml(data: Mapping[str, Any]) -> str:
    return yaml.dump(dict(data), Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """Write shared parts again, as no reader of manifests wants anchors."""

    def ignore_aliases(self, data: object) -> bool:
        return True


# -------------------------------------------------------------------------------------------------------------- reading


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


_GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu")


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
    gpus = next((f"{limits[name]} x {name}" for name in _GPU_RESOURCES if name in limits), "")
    said = {"replicas": (replicas, f"replicas of {place}")} if replicas != 1 else {}
    return Start(place, words, image, gpu, environment, said, notes=[f"{place} asks for {gpus}"] if gpus else [])


def _list(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [] if value is None else str(value).split()


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
    words = [*PROGRAM.split(), str(spec.get("modelURL", "")), *as_words(flags), *extra]
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
        container |= {"command": [*PROGRAM.split()], "args": own}
    gpu = " ".join(str(pods.get(key, "")) for key in ("nodeSelector", "acceleratorTypes", "podAnnotations"))
    return container_start(container, place, replicas, gpu)


def _hyphens(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"-\1", key).lower()


def mapping(value: object) -> Mapping[str, Any]:
    """Return a mapping of a file as it is, and an empty one for anything else: files of others are not checked here."""
    return value if isinstance(value, Mapping) else {}


def entries(value: object) -> list[Any]:
    """Return a list of a file as it is, and an empty one for anything else."""
    return value if isinstance(value, list) else []
