"""Arrival processes, a file each: a module of this folder holds one as its constant `PROCESS`. Nothing registers it.

A process is a class over `scenarios.schema.arrival.Arrival`: its keys in YAML, and how it is drawn. Its word is the
name of its file.
"""

from simulator.parameters import names_in


def process_at(value: object) -> str | None:
    """The place of the class that a mapping's `process` names, for `later`; None for what no file is called."""
    word = value.get("process") if isinstance(value, dict) else getattr(value, "process", None)
    return f"{__name__}.{word}:PROCESS" if word in names_in(__name__) else None
