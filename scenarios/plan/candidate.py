"""A candidate of a plan: its settings, the scenario that they make, and its price."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from scenarios.assembly.engine_policy import policy_label, resolved_yaml, with_policy
from scenarios.assembly.groups import groups_of
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.studies.study_axes import Setting
from simulator.errors import InputError
from simulator.policies import rules_of

POLICY, GPU = "engine.policy", "hardware.gpu"
TENSOR_PARALLEL, PIPELINE_PARALLEL = "hardware.tensor_parallel", "hardware.pipeline_parallel"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings by key, and their scenario; `left_out` are keys of the scenario that its policy does not take."""

    settings: Setting
    scenario: Scenario
    left_out: tuple[str, ...] = field(default=())

    @property
    def label(self) -> str:
        """The candidate in a few words: its values, with the last part of the key where that is needed."""
        return ", ".join(_worded(key, value) for key, value in self.settings.items()) or self.scenario.name

    def named_settings(self) -> Setting:
        """Return the settings, with the GPU and the policy even where they do not differ."""
        return {GPU: self.scenario.hardware.gpu, POLICY: self.scenario.engine.policy, **self.settings}

    def with_replicas(self, replicas: int | None) -> Scenario:
        """Return its scenario with so many replicas."""
        if replicas is None or replicas == self.scenario.replicas:
            return self.scenario
        return self.scenario.model_copy(update={"replicas": replicas})

    def with_settings(self, settings: Mapping[str, Any]) -> Candidate:
        """Return another candidate, in which these keys differ too. Raises InputError where they do not fit."""
        return make_candidate(self.scenario, {**self.settings, **settings})

    def gpus(self, replicas: int) -> int:
        """Count the GPUs of so many replicas; of a fleet of groups, all of theirs."""
        if self.scenario.fleet is None:
            return replicas * self.scenario.hardware.gpus
        return sum(group.replicas * group.scenario.hardware.gpus for group in groups_of(self.scenario))

    def usd_per_hour(self, replicas: int) -> float | None:
        """Return the price of these GPUs; None where it is not known."""
        total = 0.0
        for group in groups_of(self.scenario):
            price = group.scenario.resolve_gpu().usd_per_hour
            if price is None:
                return None
            count = replicas if self.scenario.fleet is None else group.replicas
            total += count * group.scenario.hardware.gpus * price
        return total


def make_candidate(base: Scenario, settings: Mapping[str, Any]) -> Candidate:
    """Make a candidate of settings over a scenario; keys of the engine that its policy does not take are left out.

    Raises InputError where a setting is none, or the scenario cannot be built.
    """
    engine = {_of_engine(key): value for key, value in settings.items() if _of_engine(key)}
    others = [f"{key}={json.dumps(value)}" for key, value in settings.items() if not _of_engine(key)]
    changed = load(base, others) if others else base
    policy = engine.pop("policy", base.engine.policy)
    if not isinstance(policy, str):
        raise InputError(f"engine.policy: must be text, not {policy!r}")
    if not engine and policy == base.engine.policy:
        return Candidate(dict(settings), changed)
    scenario, left_out = with_policy(changed, policy, engine)
    kept = {key: value for key, value in settings.items()
            if key.removeprefix("engine.").partition(".")[0] not in left_out}  # fmt: skip
    return Candidate(kept, scenario, left_out)


def _of_engine(key: str) -> str:
    """The key of the engine that a dotted key is; '' for any other, and for one inside a mapping of the engine."""
    own = key.removeprefix("engine.")
    return own if own != key and "." not in own else ""


def make_candidates(base: Scenario, settings: Sequence[Setting]) -> list[Candidate]:
    """Make the candidates of a grid, each once: settings that a policy does not take make no candidate of their own."""
    found: dict[str, Candidate] = {}
    for setting in settings:
        candidate = make_candidate(base, setting)
        found.setdefault(json.dumps(candidate.settings, sort_keys=True, default=str), candidate)
    return list(found.values())


def firsts(candidates: Sequence[Candidate]) -> list[int]:
    """Return, for each candidate, the place of the first one whose runs are the same to the last bit.

    Two names of one scheduler make the same runs where all else is equal, defaults and the server's host included.
    """
    rules = [rules_of(candidate.scenario.engine.policy) for candidate in candidates]
    names = {rule: {c.scenario.engine.policy for c, r in zip(candidates, rules, strict=True) if r == rule}
             for rule in rules}  # fmt: skip
    seen: dict[str, int] = {}
    return [
        seen.setdefault(_content(candidate, rule), place) if len(names[rule]) > 1 else place
        for place, (candidate, rule) in enumerate(zip(candidates, rules, strict=True))
    ]


def _content(candidate: Candidate, rule: str) -> str:
    """Return all that a run depends on, with the first name of the policy's rules in place of its own."""
    data = yaml.safe_load(resolved_yaml(candidate.scenario))
    data["engine"]["policy"] = rule
    return json.dumps({key: value for key, value in data.items() if key != "name"}, sort_keys=True, default=str)


def _worded(key: str, value: object) -> str:
    if key == POLICY and isinstance(value, str):
        return policy_label(value)
    if key == GPU:
        return str(value.get("name", "a GPU") if isinstance(value, dict) else value)
    if key == TENSOR_PARALLEL:
        return f"TP {value}"
    if key == PIPELINE_PARALLEL:
        return f"PP {value}"
    if isinstance(value, Mapping):
        value = value.get("kind") or value.get("name") or json.dumps(value)
    return f"{key.rpartition('.')[2]} {('on' if value else 'off') if isinstance(value, bool) else value}"
