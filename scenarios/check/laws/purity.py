"""plan() is pure: the same view gives the same plan, and nothing changes."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from scenarios.check.experiment import Breach, Experiment
from simulator.plan import Policy, StepPlan, View
from simulator.request import RequestView
from simulator.simulate import Run

SEEN_OF_A_REQUEST = [name for name in vars(RequestView) if not name.startswith("_")]
SEEN_OF_A_VIEW = [name for name in vars(View) if not name.startswith("_")]


class ImpureError(Exception):
    """A plan depends on more than its view, or planning changed something."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach)  # as SimPy copies it
        self.breach = breach


def purity(experiment: Experiment, run: Run) -> Breach | None:
    """Asked twice for one view, and afresh, a policy makes the same plan; neither the view nor the policy changes."""
    policy = experiment.new_policy()
    try:
        experiment.run(make_policy=lambda: AskedTwice(deepcopy(policy), experiment.new_policy), fast_forward=False)
    except ImpureError as error:
        return error.breach
    return None


def snapshot(view: View) -> dict[str, Any]:
    """Copy everything that a policy can see: numbers, orders, and every member of every request."""
    seen: dict[str, Any] = {}
    for name in SEEN_OF_A_VIEW:
        value = getattr(view, name)
        if name in ("waiting", "running", "prefilling"):
            seen[name] = [{key: getattr(request, key) for key in SEEN_OF_A_REQUEST} for request in value]
            seen[f"len({name})"] = len(value)
        else:
            seen[name] = value
    return seen


@dataclass(slots=True)
class AskedTwice:
    """A policy that is asked twice at every step, and looked at before, between and after.

    `new_policy` makes one that has seen no step before; it costs a reading of the policy's file, and so is asked for
    the first plan, the second, the fourth, the eighth, ... `looks` collects what was seen.
    """

    inner: Any
    new_policy: Callable[[], Policy] | None = None
    looks: list[Mapping[str, Any]] = field(default_factory=list)
    asked: int = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def max_num_seqs(self) -> int:
        return int(self.inner.max_num_seqs)

    def plan(self, view: View) -> StepPlan:
        self.asked += 1
        state, before = _state(self.inner), snapshot(view)
        once: StepPlan = self.inner.plan(view)
        self._unchanged(view, before, state)
        again: StepPlan = self.inner.plan(view)
        self._unchanged(view, before, state)
        self._same(view, once, again, "asked again for the same view, it")
        if self.asked & (self.asked - 1) == 0 and (fresh := self._fresh(view, once)) is not None:
            self._same(view, once, fresh.plan(view), "a policy that has seen no step before")
            self._unchanged(view, before, state)
        self.looks.append(before)
        return again

    def _fresh(self, view: View, plan: StepPlan) -> Policy | None:
        """Return a fresh policy; None where a note has a class of the policy's file: a new load has another class."""
        own = type(self.inner).__module__
        if self.new_policy is None or own in (type(view.note).__module__, type(plan.note).__module__):
            return None
        return self.new_policy()

    def _unchanged(self, view: View, before: Mapping[str, Any], state: Mapping[str, str]) -> None:
        now = snapshot(view)
        for name, value in before.items():
            if now[name] != value:
                raise self._impure(view, f"planning changes the view: {_change(name, value, now[name])}")
        after = _state(self.inner)
        for name, text in after.items():
            if text != state.get(name):
                was = _brief(state.get(name, "not there"))
                raise self._impure(view, f"planning changes the policy: {name} was {was}, is {_brief(text)}")

    def _same(self, view: View, plan: StepPlan, other: StepPlan, whose: str) -> None:
        if plan == other:
            return
        name = next(name for name in StepPlan._fields if getattr(plan, name) != getattr(other, name))
        there, here = _brief(getattr(other, name)), _brief(getattr(plan, name))
        raise self._impure(view, f"{whose} plans {name} = {there}, where it planned {here}")

    def _impure(self, view: View, what: str) -> ImpureError:
        return ImpureError(Breach(f"plan {self.asked} of the run: {what}", time_s=view.now_s))


def _state(policy: object) -> dict[str, str]:
    """Return a policy's fields and attributes, which planning must leave as they are, as text."""
    names = [each.name for each in fields(policy)] if is_dataclass(policy) and not isinstance(policy, type) else []
    names += [name for name in getattr(policy, "__dict__", ()) if name not in names]
    return {name: repr(getattr(policy, name)) for name in names}


def _change(name: str, was: Any, now: Any) -> str:
    """The change of a member of the view: of its requests, the first that changed."""
    if isinstance(was, list) and [request["row"] for request in was] == [request["row"] for request in now]:
        for one, other in zip(was, now, strict=True):
            for key in one:
                if one[key] != other[key]:
                    return f"{key} of request {one['request_id']} was {_brief(one[key])}, is {_brief(other[key])}"
    return f"{name} was {_brief(was)}, is {_brief(now)}"


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
