"""Names in sources: the model of a repository or path, the GPU of a label, the version of an image."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import HUGGING_FACE, MODELS, SAME_DIMENSIONS
from simulator.hardware.precision import FP8, NVFP4

_VARIANT = r"-(?:instruct|chat|hf|it|base|v\d[\d.]*|\d{4})$"
_PRECISIONS: Mapping[str, Mapping[str, object]] = {"nvfp4": NVFP4, "fp4": NVFP4, "fp8": FP8}


def model_of(name: str, place: str) -> tuple[Any, str]:
    """Return the model of a repository, a folder or a config.json, and why it is the one.

    Raises InputError for one that is not known; `place` is where it was named.
    """
    if not name:
        raise InputError("names no model", file=place, hint="give one: --set model=NAME (batchlab list models)")
    path = Path(name)
    config = path / "config.json" if path.is_dir() else path
    if config.suffix == ".json" and config.is_file():
        return str(config.absolute()), f"{name}: its config.json"
    bare, precision = _bare(name)
    for own, repository in (*HUGGING_FACE.items(), *((own, name) for name, own in SAME_DIMENSIONS.items())):
        if repository == name or bare in (_bare(repository)[0], own):
            plain = not precision or (precision == "fp8" and MODELS[own].dtype_bytes == 1)
            model: Any = own if plain else {"base": own, **_PRECISIONS[precision]}
            changed = f" in {precision}" if not plain else ""
            return model, name if name == HUGGING_FACE[own] else f"{name}: as {HUGGING_FACE[own]}{changed}"
    hint = f"{did_you_mean(bare, MODELS)}give a model of `batchlab list models` or a config.json: --set model=NAME"
    raise InputError(f"the model {name} is not known", file=place, hint=hint)


def _bare(name: str) -> tuple[str, str]:
    """Return a repository's name without owner, precision and variant, and its precision."""
    text = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    precision = next((each for each in _PRECISIONS if f"-{each}" in text), "")
    text = re.sub(r"-(?:nvfp4|fp4|fp8|bf16)\b.*$", "", text)
    while (shorter := re.sub(_VARIANT, "", text)) != text:
        text = shorter
    return text, precision


def gpu_of(text: str) -> str | None:
    """Return the GPU that a label or a log names: every part of its name is in one word, the longest name first."""
    words = re.findall(r"[a-z0-9-]+", text.lower())
    for name in sorted(GPUS, key=len, reverse=True):
        if any(all(part in word for part in name.split("-")) for word in words):
            return name
    return None


def version_in(image: str) -> str | None:
    """Return the version in an image's tag, as 0.11; None where the tag has none."""
    match = re.search(r":v?(\d+)\.(\d+)", image)
    return f"{match[1]}.{match[2]}" if match else None
