"""Names in sources: the model of a repository or path, the GPU of a label, the version of an image."""

import re
from pathlib import Path
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.hardware.gpus import GPUS
from simulator.hardware.model_names import bare_name, precision_in
from simulator.hardware.models import HUGGING_FACE, MODELS, built_in_of, published_fields


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
    own = built_in_of(name)
    if own is None:
        bare = bare_name(name)
        hint = f"{did_you_mean(bare, MODELS)}give a model of `batchlab list models` or a config.json: --set model=NAME"
        raise InputError(f"the model {name} is not known", file=place, hint=hint)
    fields = published_fields(own, name)
    model: Any = {"base": own, **fields} if fields else own
    changed = f" in {precision_in(name)}" if fields else ""
    return model, name if name == HUGGING_FACE[own] else f"{name}: as {HUGGING_FACE[own]}{changed}"


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
