"""The keys that a scenario leaves out, where its policy is a server's: they are as that server has them by default.

So it is for policies with `is_server`. A scenario whose cost of steps is linear, or a class of one's
own, studies an algorithm and no server: there the plain defaults hold, which the schema shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict

from scenarios.schema.cost import LinearCostConfig, OwnCostConfig
from scenarios.schema.engine import ONLY_GIVEN
from scenarios.servers import server_of
from scenarios.servers.server import Startup
from scenarios.servers.vllm import NEWEST_VERSION
from simulator.policies import policy_class, policy_parameters
from simulator.policy_traits import Traits

if TYPE_CHECKING:
    from scenarios.schema.engine import Engine
    from scenarios.schema.hardware import Hardware
    from simulator.hardware.gpus import Gpu
    from simulator.hardware.models import Model

CACHING = "engine.enable_prefix_caching"
_OF_ENGINE = ("block_size", "enable_prefix_caching")
_OF_HARDWARE = ("gpu_memory_utilization", "mem_fraction_static")


class Served(Protocol):
    """A scenario, as the defaults of its server see it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def hardware(self) -> Hardware: ...

    @property
    def cost(self) -> object: ...

    @property
    def defaults(self) -> Defaults | None: ...

    @property
    def model_fields_set(self) -> set[str]:
        """The keys that were given."""

    def model_dump(self, *, include: set[str], exclude_unset: bool) -> dict[str, Any]:
        """The values of these keys; only of those that were given, and of their own keys likewise."""

    def resolve_gpu(self) -> Gpu: ...

    def resolve_model(self) -> Model: ...


class Around(TypedDict, total=False):
    """What a group of a fleet knows of itself beside its scenario: its role, and whether it pulls by a connector."""

    role: Literal["both", "prefill", "decode"]
    pulls: bool


@dataclass(frozen=True, slots=True)
class Defaults:
    """A server's defaults by dotted key. `gave_way` says why some of them are not what the server alone would do."""

    server: str
    values: Mapping[str, Any]
    gave_way: Mapping[str, str]
    taken: Mapping[str, Any]  # those of keys that are left out

    def filled(self, scenario: Served) -> dict[str, object]:
        """Return the scenario's fields with what is taken; keys that were left out do not become given."""
        rooms: dict[str, dict[str, Any]] = {"engine": {}, "hardware": {}}
        for path, value in self.taken.items():
            room, _, key = path.partition(".")
            rooms[room][key] = value
        from scenarios.schema.cost import AutoCostConfig

        hardware = scenario.hardware.model_copy()
        hardware.__dict__.update(rooms["hardware"])
        cost = scenario.cost if "cost" in scenario.model_fields_set else AutoCostConfig(kind="auto")
        return {"engine": scenario.engine.with_usual(rooms["engine"]), "hardware": hardware, "cost": cost}


def is_servers(scenario: Served) -> bool:
    """Return whether keys that are left out are a server's."""
    if scenario.engine.policy_file is not None or isinstance(scenario.cost, (LinearCostConfig, OwnCostConfig)):
        return False
    return Traits.of(policy_class(scenario.engine.policy)).is_server


def given_keys(scenario: Served) -> dict[str, Any]:
    """Return the keys of engine and hardware that are given, dotted, with their values."""
    data = scenario.model_dump(include={"engine", "hardware"}, exclude_unset=True)
    return {f"{room}.{key}": value for room, values in data.items() for key, value in values.items()}


def defaults_of(scenario: Served, around: Around) -> Defaults:
    """Return what the server of the scenario's policy does by default on its GPU."""
    engine, gpu = scenario.engine, scenario.resolve_gpu()
    launch, cls = server_of(engine.policy).launch, policy_class(engine.policy)
    assert launch is not None  # every server's policy has a command line
    version = engine.parameter("version")
    model = scenario.resolve_model()
    given = given_keys(scenario)
    found = launch.usual(Startup(gpu.memory_gib, gpu.name, version, model, given))
    known = {f"engine.{key}" for key in (*policy_parameters(cls), *_OF_ENGINE) if key not in ONLY_GIVEN}
    known |= {f"hardware.{key}" for key in _OF_HARDWARE}
    values = {key: value for key, value in found.items() if key in known}
    gave_way = {key: why for key, why in _gives_way(cls, around).items() if values.get(key)}
    name = " ".join(filter(None, (launch.programs[0], version, "on", gpu.name)))
    values |= dict.fromkeys(gave_way, False)
    return Defaults(name, values, gave_way, launch.left_out(values, given))


def compared(scenario: Served) -> dict[str, Any] | None:
    """Return whose defaults hold, which keys have them, left out or not, and which do not; None for plain ones.

    It says the same of a scenario that writes the defaults out.
    """
    defaults = scenario.defaults
    if defaults is None:
        return None
    rooms = {"engine": scenario.engine.parameter, "hardware": lambda key: getattr(scenario.hardware, key)}
    now = {}
    for path in defaults.values:
        room, _, key = path.partition(".")
        is_own = room == "engine" and key in _OF_ENGINE
        now[path] = getattr(scenario.engine, key) if is_own else rooms[room](key)
    told: dict[str, Any] = {"of": defaults.server}
    told["taken"] = {path: value for path, value in now.items() if value == defaults.values[path]}
    told["otherwise"] = {path: defaults.values[path] for path in now if path not in told["taken"]}
    if defaults.gave_way:
        told["gave_way"] = dict(defaults.gave_way)
    if unknown := _unknown(scenario):
        told["unknown"] = unknown
    return told


def _unknown(scenario: Served) -> dict[str, str]:
    """Return what of the server's version is not known here, so that the nearest that is stands for it."""
    engine, found = scenario.engine, {}
    if engine.asked_release:
        found["engine.version"] = engine.asked_release
    if scenario.hardware.pipeline_parallel > 1 and (version := engine.parameter("version")) != NEWEST_VERSION:
        found["the batch queue of vLLM"] = version
    return found


def _gives_way(cls: type, around: Around) -> dict[str, str]:
    """Return the defaults of a server that cannot be simulated here, each with the reason."""
    found = {}
    if not Traits.of(cls).caches_prefixes:
        found[CACHING] = "this policy shares no prefixes here"
    elif around.get("role") == "decode" and not around.get("pulls"):
        found[CACHING] = "the group computes no prompts that it could keep"
    return found
