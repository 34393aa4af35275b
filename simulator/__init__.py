"""Tells if the core runs compiled: an installation may have modules compiled by mypyc beside their sources (setup.py).

Both give the same results, to the last bit. With `BATCHLAB_PURE=1` in the environment the sources run in any case.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType

# Modules that setup.py compiles where that is asked for.
COMPILED = ("division", "request_state")

_CORE = "simulator.engine.replica"  # all of the core is compiled, or nothing


class Sources:
    """A finder of modules of `simulator` that knows no compiled ones."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The source of a module; None where that is for other finders to find."""
        if path is None or not name.startswith("simulator."):
            return None
        found = [FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name, target) for folder in path]
        return next((spec for spec in found if spec is not None), None)


def heed_environment() -> None:
    """Find sources alone from now on, if the environment asks for it."""
    if os.environ.get("BATCHLAB_PURE", "0") not in ("", "0"):
        sys.meta_path.insert(0, Sources)


def core_name() -> str:
    """The core that runs here, in words."""
    return "compiled core" if is_compiled() else "pure Python"


def is_compiled() -> bool:
    """True if the core that runs here is compiled."""
    spec = find_spec(_CORE)
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


heed_environment()
