"""Backends of a layer's small operators (`gpu_backend.pointwise`), by name."""

from __future__ import annotations

import importlib.util

from gpu_backend.attention.backends import default_attention
from gpu_backend.pointwise import Pointwise, TorchPointwise
from simulator.errors import InputError
from simulator.hardware.dimensions import check_choice

POINTWISE = ("torch", "triton")


def default_pointwise(device: str) -> str:
    """The kernels where our attention kernel is the default too, torch's operators elsewhere."""
    return "triton" if default_attention(device) == "triton" else "torch"


def open_pointwise(name: str, eps: float) -> Pointwise:
    """Open the operators of that name. InputError for an unknown name, and where Triton is not installed."""
    check_choice(name, POINTWISE, "pointwise")
    if name == "torch":
        return TorchPointwise(eps)
    if importlib.util.find_spec("triton") is None:
        raise InputError("pointwise triton cannot be used: triton not installed", hint="there: torch")
    from gpu_backend.pointwise_kernels import TritonPointwise  # which loads Triton

    return TritonPointwise(eps)
