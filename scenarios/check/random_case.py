"""A random scenario in a form that shrinks well, and the same as the scenario that `batchlab run` takes."""

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from simulator.workload import Workload

# A model whose KV takes 256 bytes a token, so that blocks and GiB convert into each other exactly.
_MODEL = {
    "layers": 1, "hidden": 64, "intermediate": 64, "heads": 1, "kv_heads": 1, "vocab": 64,
    "max_model_len": 1_000_000, "dtype_bytes": 2, "kv_dtype_bytes": 2,
}  # fmt: skip
_BYTES_PER_TOKEN = 256


@dataclass(frozen=True, slots=True)
class RandomRequest:
    """A request: when it arrives, its lengths, its cap, its priority, its class."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int = 0
    class_name: str = "default"


@dataclass(frozen=True, slots=True)
class Cost:
    """Step times, as `cost.kind: linear`."""

    base_s: float = 1.0
    per_token_s: float = 0.0
    per_context_token_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RandomCase:
    """Requests sorted by arrival, the first at 0; a replica's blocks (vLLM's count); the policy's parameters."""

    requests: tuple[RandomRequest, ...]
    num_gpu_blocks: int
    block_size: int
    parameters: Mapping[str, object] = field(default_factory=dict)
    cost: Cost = Cost()
    num_host_blocks: int = 0
    swap_s_per_block: float | None = None  # None: the GPU's own link
    replicas: int = 1
    router: str = "round_robin"

    def workload(self) -> Workload:
        """Return the requests in columns."""
        columns: dict[str, Any] = {
            each.name: np.array([getattr(request, each.name) for request in self.requests], dtype=np.int64)
            for each in fields(RandomRequest)[1:-1]
        }
        arrival_s = np.array([request.arrival_s for request in self.requests], dtype=np.float64)
        names = tuple(sorted({request.class_name for request in self.requests}))
        classes = np.array([names.index(request.class_name) for request in self.requests], dtype=np.int64)
        return Workload(arrival_s=arrival_s, class_index=classes, class_names=names, **columns)

    def scenario(self, name: str, policy: str, trace: str) -> dict[str, Any]:
        """Return the scenario, with its requests in the file `trace`."""
        size = self.block_size
        hardware: dict[str, Any] = {"gpu": "h200", "num_gpu_blocks": self.num_gpu_blocks}
        if self.num_host_blocks:
            hardware["swap_space_gib"] = self.num_host_blocks * size * _BYTES_PER_TOKEN / 2**30
            if self.swap_s_per_block is not None:
                speed = size * _BYTES_PER_TOKEN / 1e9 / self.swap_s_per_block
                hardware["gpu"] = {"base": "h200", "host_link_gb_s": speed}
        found = {
            "name": name,
            "model": _MODEL,
            "hardware": hardware,
            "cost": {"kind": "linear", **asdict(self.cost)},
            "workload": {"trace": {"path": trace}},
            "engine": {"policy": policy, "block_size": size, **self.parameters},
        }
        return found if self.replicas == 1 else {**found, "replicas": self.replicas, "router": self.router}

    def trace(self) -> str:
        """Write the requests as a native trace, CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        names = [each.name for each in fields(RandomRequest)]
        if all(request.class_name == "default" for request in self.requests):
            names.remove("class_name")
        writer.writerow(["arrival_time_s", *(name.replace("class_name", "class") for name in names[1:])])
        writer.writerows([getattr(request, name) for name in names] for request in self.requests)
        return out.getvalue()


def as_yaml(data: Mapping[str, Any]) -> str:
    """Write a scenario as YAML: a line for each key, and flow style within."""
    return "".join(f"{key}: {_flow(value)}\n" for key, value in data.items())


_WORD = re.compile(r"(?!(?:true|false|null|yes|no|on|off)$)[A-Za-z][\w./-]*", re.IGNORECASE)


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and _WORD.fullmatch(value):
        return value
    return json.dumps(value)
