"""Trace formats, a file each: a module of this folder holds one as its constant `FORMAT`. Nothing registers it."""

from collections.abc import Mapping
from functools import cache

from scenarios.traces.format import TraceFormat
from simulator.parameters import constants_in, users_object


@cache
def trace_formats() -> Mapping[str, TraceFormat]:
    """Every format by its name, in the order of the names."""
    found: list[TraceFormat] = sorted(constants_in(__name__, "FORMAT").values(), key=lambda each: each.name)
    formats = {each.name: each for each in found}
    if len(formats) < len(found):
        raise ValueError(f"two trace formats have the same name: {[each.name for each in found]}")
    return formats


def find_format(name: str) -> TraceFormat:
    """Return a format by its name, or one's own by `path.py:NAME`. Raises InputError where there is no such object."""
    if ":" not in name:
        return trace_formats()[name]
    found: TraceFormat = users_object("trace format", name, TraceFormat)
    return found
