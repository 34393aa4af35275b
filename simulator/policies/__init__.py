"""Batching policies by name: `some_name` is the class `SomeName` of `some_name.py`, or of `some_name/__init__.py`.

A policy is one file. A policy whose step is compiled is a folder: `__init__.py` holds its parameters, `step.py` its
rule, other files what no other policy uses. `parts/` holds what several policies share.

A user's own policy is named `path/to/file.py:ClassName` and loaded the same way. There is no list to add a policy to.
"""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from simulator.errors import InputError
from simulator.parameters import Parameter, check_given, named_class, names_in, parameters_of, split_class
from simulator.plan import Policy
from simulator.policies.parts.preemption import System

Dash = tuple[float, tuple[float, ...]] | Literal["-"]
"""A line style: solid, or an offset and the lengths of dashes and gaps."""
DEFAULT_POLICY = "chunked_prefill"
"""The policy of a scenario that names none. Plans and remedies propose it."""
PLAIN_POLICY = "continuous"
"""The policy that plans and remedies propose beside the default: prompts before the decodes, nothing to set."""
REAL_POLICIES = ("real", "real_sglang")
"""The policies that ask a real scheduler. They have no rules of their own and run only where that scheduler is."""
COMPARED = ("static", PLAIN_POLICY, "preemptive", DEFAULT_POLICY)
"""The policies that are compared where a user names none: one of each kind."""


def built_in_policies() -> tuple[str, ...]:
    """Names of the policies whose rules come with batchlab, sorted."""
    return tuple(name for name in named_policies() if name not in REAL_POLICIES)


def named_policies() -> tuple[str, ...]:
    """Names of all policies that a scenario may name, sorted."""
    return names_in(__name__)


def policy_class(name: str, base: Path | None = None) -> type[Policy]:
    """The class of a built-in policy, or of `path.py:Class`, the path being relative to `base`."""
    cls = named_class("policy", name, __name__, base)
    if not dataclasses.is_dataclass(cls) or not callable(getattr(cls, "plan", None)):
        path, class_name = split_class(name)
        raise InputError(f"{class_name} is no policy", file=str(Path(base or ".") / path), hint=_CONTRACT)
    return cast("type[Policy]", cls)


def policy_parameters(cls: type[Policy]) -> Mapping[str, Parameter]:
    """A policy's parameters by name, in the order of its fields."""
    return parameters_of(cls)


def policies_with(parameter: str) -> tuple[str, ...]:
    """The built-in policies that take a parameter, sorted."""
    return tuple(name for name in built_in_policies() if parameter in policy_parameters(policy_class(name)))


def system_of(policy: str) -> System | None:
    """A policy's row on the page of systems; None for a user's policy without one."""
    return cast("System | None", _declared(policy, "SYSTEM"))


def style_of(policy: str) -> tuple[str, Dash] | None:
    """Return the colour and line style of a built-in policy in every picture; None where it takes a free one."""
    return cast("tuple[str, Dash] | None", _declared(policy, "STYLE")) if policy in built_in_policies() else None


def rules_of(policy: str) -> str:
    """The first built-in policy that is the same scheduler under another name, else the policy itself."""
    if policy not in built_in_policies():
        return policy
    return next(name for name in built_in_policies() if system_of(name) is system_of(policy))


def _declared(policy: str, name: str) -> Any:
    """The value that a policy's file gives a name; None if it has no such name."""
    return getattr(sys.modules[policy_class(policy).__module__], name, None)


def load_policy(name: str, parameters: Mapping[str, object], base: Path | None = None) -> Policy:
    """A policy with its parameters. An InputError names one that is unknown, missing or out of its limits."""
    cls = policy_class(name, base)
    check_given("policy", name, policy_parameters(cls), parameters)
    try:
        policy = cls(**parameters)
    except (TypeError, ValueError) as error:
        raise InputError(f"policy {name} refuses its parameters: {error}") from error
    slots = getattr(policy, "max_num_seqs", None)
    if not isinstance(slots, int):
        raise InputError(f"policy {name} has no max_num_seqs, the number of its batch's slots", hint=_CONTRACT)
    if slots < 1:
        raise InputError(f"policy {name} refuses its parameters: max_num_seqs must be at least 1, not {slots}")
    return policy


_CONTRACT = "a policy is a dataclass with max_num_seqs and plan(view) -> StepPlan (see simulator/plan.py)"
