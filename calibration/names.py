"""Names of GPUs and models as sources write them, brought to batchlab's own."""

from __future__ import annotations

import re
from collections.abc import Iterable

from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS

_GPU_ALIASES = {"a100sxm": "a100-80gb", "h100sxm": "h100", "h200sxm": "h200", "h10080gb": "h100"}
_TAILS = re.compile(r"(?:-?(?:instruct|chat|hf|base|\d{4}))+$")


def gpu_name(text: str) -> str:
    """batchlab's name of a GPU, from a driver's or a folder's; "" for an unknown one."""
    plain = _plain(text)
    for alias, name in _GPU_ALIASES.items():
        if alias in plain:
            return name
    return _best(plain, GPUS)


def model_name(text: str) -> str:
    """batchlab's name of a model, from its path on a hub (`Qwen/Qwen3-32B`); "" for an unknown one."""
    name = text.rpartition("/")[2].lower().removeprefix("meta-")
    name = _TAILS.sub("", name)
    return _best(_plain(name), MODELS, whole=True)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _best(plain: str, names: Iterable[str], whole: bool = False) -> str:
    """The longest of the names that `plain` contains, or is."""
    fitting = [name for name in names if (_plain(name) == plain if whole else _plain(name) in plain)]
    return max(fitting, key=len, default="")
