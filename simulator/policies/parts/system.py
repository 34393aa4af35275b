"""A row of the page of systems: one serving system's batching policy in a few words a question."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Checked:
    """How a policy's decisions were held against those of the system itself."""

    against: str  # the release, and which parts of it ran
    on: str  # so many cases and steps, of what kind, and how many are equal
    uncovered: str  # what was not compared, or is known to differ


@dataclass(frozen=True, slots=True)
class System:
    """A policy among the others: each field answers one question.

    Policies that share one are one scheduler under several names, each with defaults of its own.
    """

    name: str  # of the system, and where it was published
    batch: str  # when may the batch change?
    prompts: str  # how are prompts computed?
    grant: str  # what memory must be there for a request to enter?
    order: str  # in which order do requests wait?
    victim: str  # which request is preempted when memory runs out?
    preemption: str  # how?
    padding: str = "none"
    checked: Checked | None = None  # None: written from publications and sources alone

    def answer(self, parameter: str) -> str | None:
        """The policy's fixed rule where others have this parameter; None if no field describes it."""
        fixed = {"order": self.order, "victim": self.victim, "preemption_mode": self.preemption}
        return fixed.get(parameter)
