"""Traffic of one class, as a scenario's `workload` has it."""

from typing import Any


def lengths(tokens: Any) -> dict[str, Any]:
    """A number of tokens for all requests, or the ends of an even range."""
    if isinstance(tokens, tuple):
        return {"dist": "uniform", "min": tokens[0], "max": tokens[1]}
    return {"dist": "fixed", "value": tokens}


def one_class(
    requests: int, rate: float, inputs: Any, outputs: Any, *, name: str = "a", process: str = "poisson", **more: Any
) -> dict[str, Any]:
    """Requests of one class at so many a second; `more` are further keys of the workload."""
    arrival = {"process": process, "rate": rate}
    chosen = {"name": name, "arrival": arrival, "input": lengths(inputs), "output": lengths(outputs)}
    return {"requests": requests, "classes": [chosen], **more}
