"""Which preemption, and which policy, go together: what may not be is refused with the reason."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scenarios.schema.engine import Engine, UserEngine
from simulator.plan import PolicyFeatures
from simulator.policies import built_in_policies, policy_class, policy_parameters

if TYPE_CHECKING:
    from scenarios.schema.scenario import Scenario
    from simulator.policies.parts.system import System

_QUESTIONS = {"order": "order", "victim": "victim", "preemption_mode": "preemption"}
"""Keys that answer a question of `System`, which other policies answer for themselves."""


def why_fixed(policy: str, key: str) -> str | None:
    """Why a built-in policy does not take `order`, `victim` or `preemption_mode`, and which do; None for other keys."""
    system: System | None = getattr(sys.modules[policy_class(policy).__module__], "SYSTEM", None)
    if key not in _QUESTIONS or system is None:
        return None
    able = [name for name in built_in_policies() if key in policy_parameters(policy_class(name))]
    return f"its own is: {getattr(system, _QUESTIONS[key])}; these take it: {', '.join(able)}"


def check_overlap(scenario: Scenario) -> None:
    """Raise InputError for `swap_overlap` where nothing is ever swapped."""
    engine = scenario.engine
    if not engine.swap_overlap:
        return
    if scenario.hardware.swap_space_gib == 0:
        reason, hint = "hardware.swap_space_gib is 0", "give hardware.swap_space_gib"
    elif not overlaps(engine.policy):
        able = ", ".join(name for name in built_in_policies() if overlaps(name))
        reason, hint = f"the policy {engine.policy} never swaps", f"these do: {able}"
    elif (mode := _mode(engine)) in ("recompute", "pause"):
        reason, hint = f"preemption_mode is {mode}", "preemption_mode: swap or auto"
    else:
        return
    raise scenario.error("engine.swap_overlap", f"there is nothing to overlap: {reason}", f"{hint}; or leave it out")


def overlaps(policy: str) -> bool:
    """Whether a policy may swap; a user's own may, as far as anybody knows."""
    return ".py:" in policy or PolicyFeatures.of(policy_class(policy)).swaps


def _mode(engine: Engine) -> object:
    """The preemption mode, where the policy has one and says so."""
    if isinstance(engine, UserEngine):
        return engine.preemption_mode if "preemption_mode" in engine.given() else None
    takes = policy_parameters(policy_class(engine.policy))
    return engine.preemption_mode if "preemption_mode" in takes else None
