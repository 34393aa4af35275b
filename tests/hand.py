"""Small schedules to be worked out by hand: a step lasts a second, and is shown as what it computes of whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.plan import Policy
from simulator.results.records import Records
from simulator.timing.formula_cost import Linear
from tests.laws.scenarios import Memory, Scenario, make_workload

ONE_SECOND = Linear(1.0)


@dataclass(frozen=True, slots=True)
class Told:
    """A run, with its decisions."""

    records: Records
    decisions: list[dict[str, Any]]

    @property
    def scheduled(self) -> list[dict[str, int]]:
        """Tokens computed of each request, step by step."""
        return [step["scheduled"] for step in self.decisions]

    def column(self, name: str) -> list[Any]:
        """A column of the requests."""
        values: list[Any] = getattr(self.records.requests, name).tolist()
        return values

    def steps(self, name: str) -> list[Any]:
        """A member of the decisions, step by step."""
        return [step[name] for step in self.decisions]


def serve(
    policy: Policy,
    lengths: Sequence[tuple[int, int]],
    arrivals: Sequence[float] | None = None,
    *,
    memory: Memory | None = None,
    priority: Sequence[int] | None = None,
    max_tokens: int | None = None,
    cost: Linear = ONE_SECOND,
) -> Told:
    """Requests of (input, output) lengths, all at 0 s unless told, through a policy; blocks of 4 tokens, plenty."""
    workload = make_workload(
        list(arrivals or [0.0] * len(lengths)),
        list(lengths),
        priority=None if priority is None else list(priority),
        max_tokens=max_tokens,
    )
    scenario = Scenario(workload, policy, memory or Memory(1001, 4, 0), cost)
    run = scenario.run(log_decisions=True)
    assert run.decisions is not None
    return Told(run.records, run.decisions)


def tokens(**scheduled: int) -> Mapping[str, int]:
    """Of a request named by its row, as in `tokens(r0=8, r1=1)`."""
    return {name.removeprefix("r"): count for name, count in scheduled.items()}
