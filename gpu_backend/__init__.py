"""The real backend: a model that runs on a device, measured and compared step by step."""

from __future__ import annotations

import importlib.util

from simulator.errors import InputError

INSTALL = "pip install -c constraints.txt -e '.[gpu]'"


def require_torch(device: str = "cpu") -> None:
    """Raise InputError where torch (with the command that installs it) or the named device is missing."""
    if importlib.util.find_spec("torch") is None:
        raise InputError("the real backend needs torch, which is not installed", hint=INSTALL)
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise InputError("torch finds no CUDA device", hint="--device cpu")
