"""The experiment of a law: a scenario that can be run again, with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.memory.blocks import KVBlocks
from simulator.plan import Policy
from simulator.policy_traits import Traits
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
