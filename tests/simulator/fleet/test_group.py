"""Which replicas of a group share a policy."""

from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice

import pytest

from simulator.fleet.group import ReplicaGroup
from simulator.plan import Policy, StepPlan, View
from simulator.policies import built_in_policies, load_policy
from simulator.policies.continuous import Continuous
from tests.laws.scenarios import Memory


def policies(policy: Policy) -> list[Policy]:
    """The policies of three replicas."""
    return list(islice(ReplicaGroup(lambda: deepcopy(policy), Memory(10, 4)).policies(), 3))


@dataclass
class Open:
    """A policy that can change."""

    max_num_seqs: int = 4

    def plan(self, view: View) -> StepPlan:
        return StepPlan()


@dataclass(frozen=True, slots=True)
class Counting:
    """A frozen policy that holds what changes."""

    max_num_seqs: int = 4
    seen: list[float] = field(default_factory=list)

    def plan(self, view: View) -> StepPlan:
        self.seen.append(view.now_s)
        return StepPlan()


@dataclass(frozen=True)
class Late:
    """A frozen policy that sets a field when it plans."""

    max_num_seqs: int = 4
    first_s: float = field(init=False)

    def plan(self, view: View) -> StepPlan:
        object.__setattr__(self, "first_s", view.now_s)
        return StepPlan()


class Inheriting(Continuous):
    """A policy that inherits from a frozen one and has a name of its own, which it can set."""

    def plan(self, view: View) -> StepPlan:
        self.last_s = view.now_s
        return super().plan(view)


class InheritingSlot(Continuous):
    """The same with a slot."""

    __slots__ = ("last_s",)

    def plan(self, view: View) -> StepPlan:
        self.last_s = view.now_s
        return super().plan(view)


@pytest.mark.parametrize("name", built_in_policies())
def test_one_built_in_policy_serves_all_replicas(name: str) -> None:
    one, *others = policies(load_policy(name, {}))
    assert all(other is one for other in others)


@pytest.mark.parametrize("policy", [Open(), Counting(), Late(), Inheriting(4, 64), InheritingSlot(4, 64)])
def test_a_policy_that_can_change_is_one_replicas_own(policy: Policy) -> None:
    assert len(set(map(id, policies(policy)))) == 3
