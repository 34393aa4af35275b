"""The shipped policies, scenarios, models, GPUs and profiles as rows of text: a name, and what to know of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Row = tuple[str, ...]


def policies() -> list[Row]:
    """Name, the parameters it takes, what it is in a line."""
    from simulator.policies import built_in_policies, policy_class, policy_parameters

    rows = []
    for name in built_in_policies():
        cls = policy_class(name)
        rows.append((name, first_sentence(cls.__doc__), f"[{' '.join(policy_parameters(cls))}]"))
    return [*rows, ("path.py:Class", "your own: batchlab new policy NAME", "")]


def scenarios() -> list[Row]:
    """Name, and the first line of the file's comment."""
    from scenarios.schema.loader import header, shipped

    return [(name, _first(header(name))) for name in shipped()]


def models() -> list[Row]:
    """Name, parameters, weights and KV bytes in bf16, longest context."""
    from simulator.hardware.models import MODELS

    return [
        (
            name,
            f"{model.num_parameters / 1e9:7.2f} B parameters",
            f"{model.weight_bytes(1) / 2**30:6.1f} GiB weights",
            f"{model.kv_bytes_per_token(1) / 1024:6.1f} KiB KV per token",
            f"context {model.max_model_len:,}",
        )
        for name, model in MODELS.items()
    ]


def gpus() -> list[Row]:
    """Name, memory, bandwidth, compute, price, source."""
    from simulator.hardware.gpus import GPUS

    return [
        (
            name,
            f"{gpu.memory_gib:6.1f} GiB",
            f"{gpu.bandwidth_gb_s:5.0f} GB/s",
            f"{gpu.bf16_tflops:6.0f} bf16 TFLOP/s",
            "price unknown" if gpu.usd_per_hour is None else f"{gpu.usd_per_hour:.2f} USD/h",
            gpu.source,
        )
        for name, gpu in GPUS.items()
    ]


def profiles() -> list[Row]:
    """Name, what it is of, the software that was measured, held-out errors, source."""
    from scenarios.profiles import all_described

    return all_described()


def presets() -> list[Row]:
    """Name, the trace's own rate, what it is like."""
    from scenarios.schema.presets import PRESETS

    return [
        (name, "rate required" if each.rate is None else f"{each.rate:4.2f} requests/s", each.title)
        for name, each in PRESETS.items()
    ]


LISTINGS: Mapping[str, Callable[[], list[Row]]] = {
    "policies": policies,
    "scenarios": scenarios,
    "models": models,
    "gpus": gpus,
    "profiles": profiles,
    "presets": presets,
}


def first_sentence(text: str | None) -> str:
    """A docstring's first paragraph up to its first full stop, in one line."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=\w)\.(?:\s|$)", paragraph)[0]


def _first(comment: list[str]) -> str:
    return next((line.strip("# ").rstrip(".") for line in comment if line.strip("# ")), "")
