"""What starts a server, as files: a script, a compose service, Kubernetes, llm-d's values, a graph of Dynamo's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from scenarios.servers.flags import OPTIONS_FILE, line
from simulator.servers import Launch

GPU_LABEL = "batchlab.gpu"
"""The annotation that says for which GPU a manifest was made."""
_TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}}
_FOLDER = "/etc/server"


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
