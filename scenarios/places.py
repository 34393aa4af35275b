"""Paths that name a place by a variable: `${BATCHLAB_SHARED}/measured/...` for data that is not shipped."""

import os
import re
from pathlib import Path

SHARED = "BATCHLAB_SHARED"
"""The variable that names the folder of real traces and measurements."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def shared_folder() -> Path:
    """Return the folder of traces and measurements: $BATCHLAB_SHARED, else `shared` beside the repository."""
    given = os.environ.get(SHARED)
    return Path(given) if given else Path(__file__).resolve().parents[2] / "shared"


def with_variables(path: str) -> str:
    """The path with each `${NAME}` replaced by that environment variable; one that is not set stays as it is.

    `${BATCHLAB_SHARED}` always has a value (`shared_folder`).
    """
    return _VARIABLE.sub(_value, path)


def _value(found: re.Match[str]) -> str:
    name = found[1]
    return str(shared_folder()) if name == SHARED else os.environ.get(name) or found[0]


def unset_hint(path: Path) -> str | None:
    """Return the variable to set, if a file is missing because it is not set; else None."""
    if (unset := _VARIABLE.search(str(path))) is not None:
        return f"the environment variable {unset[1]} is not set"
    shared = shared_folder()
    if path.is_relative_to(shared) and not shared.exists():
        return f"this scenario reads measurements that are not shipped: set {SHARED} to the folder that holds them"
    return None
