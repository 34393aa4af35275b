"""A run in the formats of other tools, a file each: a module of this folder with `FORMAT` holds one, and nothing
registers it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from reports.exports.exported_run import ExportFormat


@cache
def export_formats() -> Mapping[str, ExportFormat]:
    """Every format by its name, in the order of the names."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found: list[ExportFormat] = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return {each.name: each for each in sorted(found, key=lambda each: each.name)}
