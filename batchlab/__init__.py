"""batchlab in Python: the public names of `scenarios`, under the name of the distribution.

    import batchlab

    result = batchlab.run(batchlab.load("quickstart"))
    result  # a line, in a notebook a table
    result.summary["p99_ttft_ms"], result.requests, result.plot("timeline")

Names are imported when they are first used: importing the module costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import scenarios
from scenarios.version import __version__

if TYPE_CHECKING:
    from scenarios import Comparison, InputError, Result, Scenario, compare, dump, load, run, shipped

__all__ = [
    "Comparison",
    "InputError",
    "Result",
    "Scenario",
    "__version__",
    "compare",
    "dump",
    "load",
    "run",
    "shipped",
]


def __getattr__(name: str) -> object:
    if name not in scenarios.__all__:
        raise AttributeError(f"module 'batchlab' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(scenarios, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
