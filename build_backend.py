"""The build: setuptools, and the compiler's packages where `BATCHLAB_COMPILE=1` asks for the compiled core.

pip calls these functions (PEP 517, PEP 660). An ordinary build needs setuptools alone.
"""

import os
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 - the hooks that stay as they are

NEEDED = ("mypy", "annotated-types", "numpy", "simpy", "sortedcontainers", "sortedcontainers-stubs")
"""The compiler, and the packages that the core imports: mypyc compiles by types, so it must see theirs too."""

Settings = dict[str, str | list[str]] | None


def is_asked_for() -> bool:
    """Tell whether the environment asks for the compiled core."""
    return os.environ.get("BATCHLAB_COMPILE", "0") not in ("", "0")


def compiler_needs() -> list[str]:
    """List the packages that compiling the core needs, in the versions of constraints.txt."""
    lines = Path(__file__).with_name("constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0]: line for line in lines if "==" in line}
    return [pins[name].replace("mypy==", "mypy[mypyc]==") for name in NEEDED]


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """List the packages that pip installs before it builds a wheel."""
    needs: list[str] = build_meta.get_requires_for_build_wheel(config_settings)
    return [*needs, *compiler_needs()] if is_asked_for() else needs


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """List the packages that pip installs before an editable install, which runs the sources: no core is compiled."""
    if is_asked_for():
        sys.exit(
            "batchlab: BATCHLAB_COMPILE=1 asks for the compiled core, and an editable install runs the sources: "
            "install without -e, or without BATCHLAB_COMPILE"
        )
    needs: list[str] = build_meta.get_requires_for_build_editable(config_settings)
    return needs
