"""Translate the names of GPUs and models in sources to batchlab's own."""

import re
from collections.abc import Iterable

from simulator.errors import InputError
from simulator.hardware.gpus import GPUS
from simulator.hardware.model_config import is_config, named_model
from simulator.hardware.models import MODELS, Model, custom_model, find_model

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


def model_of(text: str) -> Model:
    """Find the model that a command names: built in, the path of a config.json, or dimensions as `{layers: 32, ...}`.

    InputError where it is none of these.
    """
    if text.lstrip().startswith("{"):
        import yaml

        try:
            dimensions = yaml.safe_load(text)
        except yaml.YAMLError:
            dimensions = None
        if not isinstance(dimensions, dict):
            raise InputError(f"not a mapping of dimensions: {text}", hint="'{layers: 32, hidden: 4096, ...}'")
        return custom_model(dimensions)
    if is_config(text):
        return named_model(text)
    try:
        return find_model(model_name(text) or text)
    except InputError as error:
        hint = f"{error.hint}; any other by the path of its config.json, or by its dimensions, '{{layers: 32, ...}}'"
        raise InputError(error.message, hint=hint) from None


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _best(plain: str, names: Iterable[str], whole: bool = False) -> str:
    """The longest name that `plain` contains; with `whole`, that it equals."""
    fitting = [name for name in names if (_plain(name) == plain if whole else _plain(name) in plain)]
    return max(fitting, key=len, default="")
