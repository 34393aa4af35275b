"""Candidates whose runs are the same to the last bit: one of them is searched for, the others have its answer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import yaml

from scenarios.assembly.engine_policy import resolved_yaml
from scenarios.plan.candidate import Candidate
from simulator.policies import policy_class


def firsts(candidates: Sequence[Candidate]) -> list[int]:
    """For each candidate the place of the first one whose runs are the same: its own, but for a twin.

    Twins have policies with the same rules, as `vllm` and `chunked_prefill`, and are equal in everything else, what a
    server's host and front end take by default included.
    """
    rules = {policy: rules_of(policy) for policy in {each.scenario.engine.policy for each in candidates}}
    shared = {rule for rule in rules.values() if list(rules.values()).count(rule) > 1}
    seen: dict[str, int] = {}
    found = []
    for place, candidate in enumerate(candidates):
        rule = rules[candidate.scenario.engine.policy]
        found.append(seen.setdefault(_content(candidate, rule), place) if rule in shared else place)
    return found


def rules_of(policy: str) -> str:
    """The policy whose rules this one has: of a class that adds nothing to another policy's, that one's name."""
    if ".py:" in policy:
        return policy
    cls: type = policy_class(policy)
    while _adds_nothing(cls) and cls.__base__ is not None and dataclasses.is_dataclass(cls.__base__):
        cls = cls.__base__
    return f"{cls.__module__}.{cls.__qualname__}"


def _adds_nothing(cls: type) -> bool:
    """Whether a dataclass is its base under another name: no parameter, no method, no check of its own."""
    own = [name for name in vars(cls) if not (name.startswith("__") and name.endswith("__"))]
    return not own and not vars(cls).get("__annotations__") and "__post_init__" not in vars(cls)


def _content(candidate: Candidate, rule: str) -> str:
    """All that a run depends on, with the rules in place of the policy's name."""
    data = yaml.safe_load(resolved_yaml(candidate.scenario))
    data["engine"]["policy"] = rule
    return json.dumps({key: value for key, value in data.items() if key != "name"}, sort_keys=True, default=str)
