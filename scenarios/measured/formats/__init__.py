"""Formats of server logs, a file each: a module of this folder holds one as its constant `FORMAT`."""

from collections.abc import Mapping
from functools import cache

from scenarios.measured.measured_run import LogFormat
from simulator.parameters import constants_in


@cache
def log_formats() -> Mapping[str, LogFormat]:
    """Every format by its name, in the order of the names."""
    found: list[LogFormat] = sorted(constants_in(__name__, "FORMAT").values(), key=lambda each: each.name)
    formats = {each.name: each for each in found}
    if len(formats) < len(found):
        raise ValueError(f"two formats of logs have the same name: {[each.name for each in found]}")
    return formats
