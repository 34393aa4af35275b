"""The experiment of a law: a scenario that can be run again, with one thing changed, and the runs compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from simulator.memory.blocks import KVBlocks
from simulator.plan import Policy
from simulator.policy_traits import Traits
from simulator.results.records import Records
from simulator.simulate import Run
from simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class Breach:
    """A breach of a law: `what` happened, with its numbers, and the first step and time at which it did."""

    what: str
    step: int | None = None
    time_s: float | None = None

    @classmethod
    def at(cls, step: Mapping[str, Any], what: str) -> Breach:
        """A breach in a step of the decision log."""
        return cls(what, step["step"], step["t_start_s"])

    def __str__(self) -> str:
        at = [] if self.step is None else [f"step {self.step}"]
        at += [] if self.time_s is None else [f"at {self.time_s:g} s"]
        return f"{' '.join(at)}: {self.what}" if at else self.what


class Experiment(Protocol):
    """A workload, a policy and a replica's memory, put together."""

    @property
    def workload(self) -> Workload: ...

    @property
    def policy(self) -> Policy: ...

    def new_policy(self) -> Policy:
        """A new policy, as if its file had just been read: it remembers nothing of an earlier one."""

    def on(self, workload: Workload) -> Experiment:
        """The experiment with other requests."""

    def run(
        self,
        *,
        fast_forward: bool = True,
        log_decisions: bool = False,
        make_blocks: Callable[[int, int], KVBlocks] = ...,
        make_policy: Callable[[], Policy] | None = None,
    ) -> Run:
        """Simulate it, by a new policy unless `make_policy` gives one for each replica."""


Law = Callable[[Experiment, Run], Breach | None]
"""A law: of the experiment and its run, one event a step with the decisions logged, the first breach; None if none."""


def asynchronous(experiment: Experiment) -> bool:
    """Return whether the policy plans a step while the last one runs: its results count for the plan after the next."""
    return Traits.of(experiment.policy).async_scheduling


# Runs compared: records to the last bit, decisions step by step.


def differences(a: Records, b: Records) -> list[str]:
    """List the columns in which two records differ by so much as a bit."""
    found = []
    for name in ("requests", "rows", "gaps", "requeues", "calls", "lives", "transfers", "drafts"):
        left, right = getattr(a, name), getattr(b, name)
        if left is None or right is None:
            found += [name] if left is not right else []
            continue
        for field in fields(left):
            if getattr(left, field.name).tobytes() != getattr(right, field.name).tobytes():
                found.append(f"{name}.{field.name}: {getattr(left, field.name)} {getattr(right, field.name)}")
    for name in ("step_end_s", "step_used_blocks"):
        if not np.array_equal(getattr(a, name), getattr(b, name)):
            found.append(f"{name}: {getattr(a, name)} {getattr(b, name)}")
    if a.reject_reasons != b.reject_reasons:
        found.append("reject_reasons")
    return found


def first_difference(
    one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]], told: tuple[str, str]
) -> Breach | None:
    """Find the first step at which two logs of decisions differ, and in what; `told` names the two logs."""
    for left, right in zip(one, two, strict=False):
        if left == right and list(left) == list(right):
            continue
        key = next((key for key in left if left[key] != right.get(key)), "")
        what = f"{key} is {left.get(key)}{told[0]}, {right.get(key)}{told[1]}"
        return Breach.at(left, what)
    if len(one) == len(two):
        return None
    more = max(one, two, key=len)[min(len(one), len(two))]
    return Breach.at(more, f"{len(one)} steps{told[0]}, {len(two)}{told[1]}")
