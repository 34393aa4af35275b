"""Scenarios in Python, as on the command line:

    import scenarios

    scenario = scenarios.load("quickstart")
    result = scenarios.run(scenario)
    result.summary["p99_ttft_ms"], result.requests, result.steps, result.plot("timeline")

Names are imported when they are first used: importing the package costs nothing. `import batchlab` has the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scenarios.runs.comparison import Comparison, compare
    from scenarios.runs.result import Result
    from scenarios.runs.runner import run
    from scenarios.schema.loader import dump, load, shipped
    from scenarios.schema.scenario import Scenario
    from simulator.errors import InputError

_WHERE = {
    "Comparison": "scenarios.runs.comparison",
    "InputError": "simulator.errors",
    "Result": "scenarios.runs.result",
    "Scenario": "scenarios.schema.scenario",
    "compare": "scenarios.runs.comparison",
    "dump": "scenarios.schema.loader",
    "load": "scenarios.schema.loader",
    "run": "scenarios.runs.runner",
    "shipped": "scenarios.schema.loader",
}

__all__ = ["Comparison", "InputError", "Result", "Scenario", "compare", "dump", "load", "run", "shipped"]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'scenarios' has no attribute {name!r}")
    value: object = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
