"""Formats of server logs, a file each: a module of this folder holds one as its constant `FORMAT`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from scenarios.measured.log_format import LogFormat


@cache
def log_formats() -> Mapping[str, LogFormat]:
    """Every format by its name, in the order of the names."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found: list[LogFormat] = sorted((module.FORMAT for module in modules), key=lambda each: each.name)
    formats = {each.name: each for each in found}
    if len(formats) < len(found):
        raise ValueError(f"two formats of logs have the same name: {[each.name for each in found]}")
    return formats
