"""The parts of a scenario's traffic: those that candidates are tried on, and those that they never see.

A trace is cut in time: its first part is for the search, the rest is held out. Traffic that is drawn has other seeds
for each. Every candidate is tried on the same requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.assembly.workloads import build_workload
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceWorkload
from simulator.errors import InputError

SEEDS = 8
"""Seeds of drawn traffic, those held out included, where none are asked for."""
_SHARES = (0.125, 0.5)  # of the traffic of the search that the first rounds see; the last sees all of it
_AT = "workload.trace"

Part = tuple[str, ...]
"""Overrides that make a scenario one with a part of its traffic."""


@dataclass(frozen=True, slots=True)
class Parts:
    """`rounds` has for each round of the race the parts that it runs, each round more; `held_out` is seen by none."""

    rounds: Sequence[Sequence[Part]]
    held_out: Sequence[Part]
    words: str


def parts_of(base: Scenario, seeds: int, holdout: float) -> Parts:
    """Cut the traffic; `holdout` is the share that is held out. Raises InputError for traffic that has no two parts."""
    if not 0.0 < holdout < 1.0:
        raise InputError(f"a share of {holdout:g} cannot be held out", file="--holdout", hint="above 0 and below 1")
    return _of_trace(base, holdout) if isinstance(base.workload, TraceWorkload) else _of_seeds(base, seeds, holdout)


def _of_seeds(base: Scenario, seeds: int, holdout: float) -> Parts:
    if seeds < 2:
        raise InputError(
            "drawn traffic needs a seed for the search and one to hold out", file="--seeds", hint="2 at least"
        )
    kept = min(max(round(seeds * holdout), 1), seeds - 1)
    every = [(f"seed={base.seed + number}",) for number in range(seeds)]
    seen = every[: seeds - kept]
    counts = sorted({*(max(1, math.floor(len(seen) * share)) for share in _SHARES), len(seen)})
    words = f"{len(seen)} seeds for the search, {kept} others held out"
    return Parts([seen[:count] for count in counts], every[seeds - kept :], words)


def _of_trace(base: Scenario, holdout: float) -> Parts:
    """Cut between two moments; early rounds see a piece around the middle of the part for the search."""
    once = load(base, [f"{_AT}.loop=1", f"{_AT}.copies=1", f"{_AT}.shift_s=null", f"{_AT}.arrival=null"])
    assert isinstance(once.workload, TraceWorkload)
    arrival_s = build_workload(once).arrival_s
    trace = once.workload.trace
    length_s = float(arrival_s[-1]) * trace.rate_scale if len(arrival_s) else 0.0
    if length_s <= 0.0:
        raise InputError("the trace's requests all arrive at once: there is no later part to hold out", file=trace.path)

    def cut(first: float, last: float) -> Part:
        end_s = length_s * (1 + 1e-9) if last == 1.0 else length_s * last  # the last request is in the last part
        start_s = length_s * first
        return (
            f"{_AT}.start_s={trace.start_s + start_s!r}", f"{_AT}.duration_s={end_s - start_s!r}", f"{_AT}.limit=null",
        )  # fmt: skip

    seen = 1.0 - holdout
    rounds = [[cut(seen * (1 - share) / 2, seen * (1 + share) / 2)] for share in _SHARES]
    words = f"the first {seen:.0%} of the trace's time for the search, the rest held out"
    return Parts([*rounds, [cut(0.0, seen)]], [cut(seen, 1.0)], words)
