"""The basis of a report's figures in words: model, GPU, step costs and their known error, seed, version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.verdict.shown_metrics import Summaries, Summary

KEY = "provenance"
"""The key of a summary."""


def provenance_of(summary: Summary) -> Mapping[str, Any]:
    """A summary's provenance; empty where it has none."""
    found: object = summary.get(KEY)
    return found if isinstance(found, Mapping) else {}


def provenance_words(summaries: Summaries) -> str:
    """Model, hardware, step costs, seeds and version of the runs in a line; '' where they are not known.

    What differs between runs is named with all its values.
    """
    known = [each for runs in summaries.values() for each in map(provenance_of, runs) if each]
    if not known:
        return ""
    costs = _distinct(cost_words(each["cost"]) for each in known)
    parts = [
        f"{_distinct(map(_hardware, known))}",
        f"step costs: {costs}",
        f"seed {_seeds([each['seed'] for each in known])}",
        f"batchlab {_distinct(each['version'] for each in known)}",
    ]
    return "; ".join(parts)


def cost_words(cost: Mapping[str, Any]) -> str:
    """A kind of step costs and how far it is known to be off."""
    error = cost["error"]
    if isinstance(error, Mapping):
        kinds = ", ".join(f"{key.removesuffix('_mape_percent')} {value:.1f} %" for key, value in error.items())
        error = f"mean error on held-out kernels: {kinds}"
    profile = f" {cost['profile']}" if "profile" in cost else ""
    return f"{cost['kind']}{profile} ({error})"


def _hardware(each: Mapping[str, Any]) -> str:
    ranks, replicas = each["tensor_parallel"], each["replicas"]
    gpu = f"{ranks} x {each['gpu']}" if ranks > 1 else each["gpu"]
    return f"{each['model']} on {gpu}, {replicas} replica{'s' if replicas != 1 else ''}"


def _distinct(texts: Any) -> str:
    return " / ".join(dict.fromkeys(texts))


def _seeds(seeds: Sequence[int]) -> str:
    """0; 0 and 3; 0 to 4."""
    found = sorted(set(seeds))
    if len(found) > 2 and found == [*range(found[0], found[-1] + 1)]:
        return f"{found[0]} to {found[-1]}"
    return ", ".join(map(str, found))
