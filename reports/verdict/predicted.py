"""Where a real server's metrics lie: the intervals of `prediction` in summary.json, beside the figures of a run."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from simulator.metrics.predicted import PREDICTION

Run = Mapping[str, Any]


def ends_of(runs: Sequence[Run], key: str) -> tuple[float, float] | None:
    """The ends of a metric's interval, their means over seeds; None where a run has none."""
    found = [(run.get(PREDICTION) or {}).get("metrics", {}).get(key) for run in runs]
    if not found or any(each is None for each in found):
        return None
    return fmean([each["low"] for each in found]), fmean([each["high"] for each in found])


def prediction_note(summaries: Mapping[str, Sequence[Run]]) -> str:
    """What the intervals are, and how the prices of steps were come by; empty where no run has one."""
    entries = {label: runs[0][PREDICTION] for label, runs in summaries.items() if runs and runs[0].get(PREDICTION)}
    if not entries:
        return ""
    percent = ", ".join(dict.fromkeys(f"{100 * entry['coverage']:g} %" for entry in entries.values()))
    whys = dict.fromkeys(entry["why"] for entry in entries.values())
    said = f"On a real server: {percent} of similar real servers fell in this range ({'; '.join(whys)})."
    # One kernel priced too high is so in all runs: what differs between them is the policy, or another setting.
    return f"{said} All runs share most of that error, so their order is more certain." if len(entries) > 1 else said
