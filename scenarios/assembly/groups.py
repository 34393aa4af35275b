"""The groups of a fleet, each as a scenario of its own; what their GPUs cost, and the energy that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from simulator.metrics.part_metrics import TDP_W, joules
from simulator.metrics.window import measured_window
from simulator.results.records import Records

if TYPE_CHECKING:
    from scenarios.schema.fleet import AutoscalingConfig, GroupConfig
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


# The cost of a run's GPUs: the time that each group's replicas were there, and its price.


def gpu_hours(scenario: Scenario, seconds: Mapping[str, float]) -> dict[str, float]:
    """GPU-hours of every group: its replicas' time, in seconds, x the GPUs of a replica."""
    gpus = {group.name: group.scenario.hardware.gpus for group in groups_of(scenario)}
    alone = next(iter(gpus.values()))
    return {name: spent * gpus.get(name, alone) / 3600 for name, spent in seconds.items()}


def cost_of(hours: Mapping[str, float], scenario: Scenario, output_tokens: int) -> float | None:
    """USD for a million output tokens; None without output, or where a price is not known."""
    usd = 0.0
    prices = [group.scenario.resolve_gpu().usd_per_hour for group in groups_of(scenario)]
    for price, spent in zip(prices, hours.values(), strict=True):
        if price is None:
            return None
        usd += price * spent
    return usd / output_tokens * 1e6 if output_tokens else None


def cost_per_million(scenario: Scenario, output_throughput: float | None) -> float | None:
    """USD for a million output tokens on the scenario's GPUs; None where the price or the throughput is not known."""
    from simulator.metrics.summary import cost_per_million_output_tokens

    usd_per_hour = 0.0
    for group in groups_of(scenario):
        of_gpu = group.scenario.resolve_gpu().usd_per_hour
        if of_gpu is None:
            return None
        usd_per_hour += group.replicas * group.scenario.hardware.gpus * of_gpu
    return cost_per_million_output_tokens(output_throughput, gpus=1, usd_per_gpu_hour=usd_per_hour)


# The energy of a run's GPUs, as the scenario asks for it.

_JOULES_A_KWH = 3.6e6


def energy_of(scenario: Scenario, records: Records, output_tokens: int, **cuts: float) -> dict[str, float]:
    """Joules and grams of CO2 a token, by the names of summary.json; none unless the scenario has `energy`.

    Raises InputError for a GPU whose power limit is not known.
    """
    asked = scenario.energy
    if asked is None or not output_tokens:
        return {}
    limits_w: list[float] = []
    for group in groups_of(scenario):
        gpu = group.scenario.resolve_gpu().name
        limit_w = asked.tdp_w or TDP_W.get(gpu)
        if limit_w is None:
            raise scenario.error("energy", f"the power limit of {gpu} is not known", "give energy.tdp_w, in watts")
        limits_w += [limit_w * group.scenario.hardware.gpus] * group.replicas
    limits_w += limits_w[-1:] * (records.replicas - len(limits_w))  # what an autoscaler added
    found = joules(records, measured_window(records, **cuts), limits_w[: records.replicas])
    entries = {
        "joules_per_output_token": found.taken / output_tokens,
        "joules_per_output_token_low": found.low / output_tokens,
        "joules_per_output_token_high": found.high / output_tokens,
    }
    if asked.grams_co2_per_kwh is not None:
        grams = found.taken / _JOULES_A_KWH * asked.grams_co2_per_kwh
        entries["grams_co2_per_million_output_tokens"] = grams / output_tokens * 1e6
    return entries
