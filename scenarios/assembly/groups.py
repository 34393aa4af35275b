"""The groups of a fleet. Each becomes a scenario; the scenario around it gives the keys that it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from scenarios.assembly.unused_keys import unused
from scenarios.schema.left_out import Around
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.explain import Finding, explain
from scenarios.schema.source.origin import Origin
from simulator.errors import InputError
from simulator.fleet.group import Role

if TYPE_CHECKING:
    from scenarios.schema.autoscaling import AutoscalingConfig
    from scenarios.schema.group import GroupConfig
    from scenarios.schema.source.yaml_source import KeyPath


@dataclass(frozen=True, slots=True)
class Group:
    """Equal replicas of a fleet: `scenario` is what they run, and has no groups of its own."""

    name: str
    scenario: Scenario
    role: Role = "both"
    autoscaling: AutoscalingConfig | None = None  # None also where there is nothing to scale

    @property
    def replicas(self) -> int:
        """The number of replicas that there are, or can be; `scenario.replicas` are there at the start."""
        return self.scenario.replicas if self.autoscaling is None else self.autoscaling.max_replicas


def groups_of(scenario: Scenario) -> tuple[Group, ...]:
    """Return the groups of the scenario's fleet; one group of all replicas where it has no fleet.

    Raises InputError for a group that cannot be, at the key of the group or of the scenario around it.
    """
    if scenario.fleet is None:
        return (Group("default", scenario),)
    return tuple(
        Group(group.name, _alone(scenario, place, group), group.role, group.scales)
        for place, group in enumerate(scenario.fleet)
    )


def merged(scenario: Scenario, group: GroupConfig) -> dict[str, Any]:
    """Return model, hardware, cost, host and engine of a group: its own keys, else the scenario's."""
    data = scenario.model_dump(exclude_unset=True)
    given = group.model_dump(exclude_none=True)
    found = {key: given.get(key, data.get(key)) for key in ("model", "cost", "host")}
    found["hardware"] = {**data.get("hardware", {}), **given.get("hardware", {})}
    found["engine"] = _engine(data.get("engine", {}), given.get("engine", {}), scenario.engine.policy)
    return {key: value for key, value in found.items() if value is not None}


def _engine(around: dict[str, Any], own: dict[str, Any], policy: str) -> dict[str, Any]:
    """Return the group's keys over the scenario's. Keys that the group's policy does not take are out."""
    found = {"policy": policy, **around, **own}
    if found["policy"] == policy:
        return found
    try:
        left_out = unused(found["policy"], found)
    except InputError:
        return found  # there is no such policy: the schema says so
    return {key: value for key, value in found.items() if key in own or key not in left_out}


def _alone(scenario: Scenario, place: int, group: GroupConfig) -> Scenario:
    """Return the group's replicas as a scenario."""
    data = {
        "name": scenario.name,
        "seed": scenario.seed,
        **merged(scenario, group),
        "sampling": scenario.sampling,
        "replicas": group.initial_replicas,
        "workload": scenario.workload,
        "slo": scenario.slo,
        "measure": scenario.measure,
    }
    origin = _GroupOrigin(scenario._origin, place, group.model_dump(exclude_none=True))
    link = scenario.kv_transfer
    around: Around = {"role": group.role, "pulls": link is not None and link.connector is not None}
    try:
        found = Scenario.model_validate(data, context=around)
    except ValidationError as error:
        raise origin.error(explain(error, Scenario, data)) from None
    found._base_dir, found._origin = scenario.base_dir, origin
    return found


class _GroupOrigin(Origin):
    """Places of a group's keys: in the group where it gives them, otherwise at the scenario's top level."""

    __slots__ = ("_around", "_given")

    def __init__(self, origin: Origin, place: int, given: dict[str, Any]) -> None:
        super().__init__(origin.file, origin.marks, origin.overrides)
        object.__setattr__(self, "_around", ("fleet", str(place)))  # the class is frozen
        object.__setattr__(self, "_given", given)

    _around: KeyPath
    _given: dict[str, Any]

    def error(self, findings: Sequence[Finding]) -> InputError:
        return super().error([Finding(self._whole(each.path), each.message, each.hint) for each in findings])

    def _whole(self, path: KeyPath) -> KeyPath:
        key_by_key = path[:1] in (("hardware",), ("engine",))
        given: Any = self._given
        for key in path[: 2 if key_by_key else 1]:
            given = given.get(key) if isinstance(given, dict) else None
        return path if given is None or not path else (*self._around, *path)
