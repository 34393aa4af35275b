"""Keys of the engine that have a meaning for vLLM's scheduler alone."""

from __future__ import annotations

from simulator.policies import built_in_policies, policy_class, policy_parameters

_WHY = {
    "async_scheduling": "planning a step while the one before it runs is modelled as vLLM does it",
    "version": "the versions are those of vLLM",
}


def why_vllms(key: str) -> str | None:
    """Why other policies do not take a key, and which do; None for keys that are not vLLM's alone."""
    if key not in _WHY:
        return None
    able = [name for name in built_in_policies() if key in policy_parameters(policy_class(name))]
    return f"{_WHY[key]}; these take it: {', '.join(able)}"
