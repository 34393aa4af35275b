"""The engines of a scenario: the groups of its fleet, the policy of each, and the keys that a policy does not use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from scenarios.schema.engine import ENGINE_KEYS, ONLY_GIVEN, where
from scenarios.schema.left_out import Around
from scenarios.schema.loader import dump, load
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.explain import Finding, Origin, explain
from simulator.errors import InputError, did_you_mean
from simulator.fleet.group import Role
from simulator.metrics.part_metrics import TDP_W, joules
from simulator.metrics.window import measured_window
from simulator.parameters import file_of, split_class
from simulator.policies import (
    DEFAULT_POLICY,
    built_in_policies,
    load_policy,
    policies_with,
    policy_class,
    policy_parameters,
    rules_of,
    system_of,
)
from simulator.policies.parts.preemption import needs_host
from simulator.policy_traits import Traits
from simulator.queues import QUEUES, Order, make_queue
from simulator.results.records import Records

if TYPE_CHECKING:
    from scenarios.schema.fleet import AutoscalingConfig, GroupConfig
    from scenarios.schema.source.yaml_source import KeyPath
    from simulator.plan import Policy


# Keys of the engine that its policy does not use: refused with the reason in a run, left out in a comparison.


def caches_prefixes(policy: str) -> bool:
    """Return whether the policy's admissions reckon with what a prefix cache holds."""
    return Traits.of(policy_class(policy)).caches_prefixes


def overlaps(policy: str) -> bool:
    """Return whether a policy may swap; a user's own may."""
    return file_of(policy) is not None or Traits.of(policy_class(policy)).swaps


def verifies_drafts(policy: str) -> bool:
    """Return whether the policy plans steps that verify drafts."""
    return Traits.of(policy_class(policy)).verifies_drafts


def takes_ahead(policy: str) -> bool:
    """Return whether the policy's requests own memory ahead of their drafts, as SGLang's do."""
    return Traits.of(policy_class(policy)).takes_ahead


def drafts(config: Any) -> int:
    """Return the drafts of a step that `engine.speculative_config` asks for, as data or as read; 0 for none."""
    if isinstance(config, Mapping):
        return int(config.get("num_speculative_tokens") or 0)
    return 0 if config is None else int(config.num_speculative_tokens)


def unused(policy: str, given: Mapping[str, Any]) -> dict[str, bool]:
    """Return the given keys that this policy does not use, each with whether its value asks for something."""
    found: dict[str, bool] = {}
    order = _order(policy, given)
    if given.get("enable_prefix_caching") and not caches_prefixes(policy):
        found["enable_prefix_caching"] = True
        if order in QUEUES and QUEUES[order].needs_prefix_cache:
            found["order"] = True
        elif order in QUEUES and QUEUES[order].cache_parameter in given:
            found[QUEUES[order].cache_parameter] = True
    if given.get("swap_overlap") and not overlaps(policy):
        found["swap_overlap"] = True
    if drafts(given.get("speculative_config")) and not verifies_drafts(policy):
        found["speculative_config"] = True
    taken = engine_keys(policy, {key: value for key, value in given.items() if key not in found})
    for key, value in given.items():
        if key not in taken:
            found[key] = _asks_for_something(key, value)
    return found


def engine_keys(policy: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of `engine:` that a policy takes: its parameters, its queue order's, and the engine's own."""
    order = _order(policy, given)
    of_order = QUEUES[order].parameters if order in QUEUES else {}
    return (*policy_parameters(policy_class(policy)), *of_order, *ENGINE_KEYS)


def _order(policy: str, given: Mapping[str, Any]) -> Any:
    own = policy_parameters(policy_class(policy))
    return given.get("order", own["order"].default) if "order" in own else None


def refuse_unused(scenario: Scenario) -> None:
    """Raise InputError for a parameter that neither the policy nor its order takes, and that asks for something."""
    engine = scenario.engine
    for key, asks in unused(engine.policy, engine.given()).items():
        if asks:
            raise scenario.error(f"engine.{key}", *_why_unused(scenario, key))


def check_overlap(scenario: Scenario) -> None:
    """Raise InputError for `swap_overlap` where nothing is ever swapped."""
    engine = scenario.engine
    if not engine.swap_overlap:
        return
    mode = engine.parameter("preemption_mode")
    if scenario.hardware.swap_space_gib == 0:
        reason, hint = "hardware.swap_space_gib is 0", "give hardware.swap_space_gib"
    elif not overlaps(engine.policy):
        able = ", ".join(name for name in built_in_policies() if overlaps(name))
        reason, hint = f"the policy {engine.policy} never swaps", f"these do: {able}"
    elif mode is not None and not needs_host(mode):
        reason, hint = f"preemption_mode is {mode}", "preemption_mode: swap or auto"
    else:
        return
    raise scenario.error("engine.swap_overlap", f"there is nothing to overlap: {reason}", f"{hint}; or leave it out")


def _asks_for_something(key: str, value: object) -> bool:
    """Return whether a value differs from the default of the default policy, else of the first that takes the key.

    A switch that is off asks nothing of a policy without it, where its default is null.
    """
    from scenarios.schema.declared import DECLARED

    if key not in DECLARED:
        return True
    default = DECLARED[key][0].default
    return value != default and not (default is None and value is False)


def _why_unused(scenario: Scenario, key: str) -> tuple[str, str]:
    """Return message and hint for an unused key: the policies or orders that take it, or the key that was meant."""
    from scenarios.schema.declared import DECLARED

    policy = scenario.engine.policy
    own = policy_parameters(policy_class(policy))
    orders = ", ".join(order for order, kind in QUEUES.items() if key in kind.parameters and not kind.is_internal)
    if orders and "order" in own:
        order = scenario.engine.parameter("order")
        return f"the order {order} does not use this key", f"orders that take it: {orders}"
    message = f"the policy {policy.rpartition(':')[2]} does not use this key"
    if orders:
        return message, f"orders that take it: {orders}; these take an order: {', '.join(policies_with('order'))}"
    if key in DECLARED:
        system = system_of(policy)
        fixed = None if system is None else system.answer(key)
        able = f"these take it: {', '.join(policies_with(key))}"
        if fixed is not None:
            return message, f"its own is: {fixed}; {able}"
        return message, f"{able} ({DECLARED[key][0].doc}); it takes: {', '.join(own)}"
    meant = where(key) or did_you_mean(key, own).rstrip()
    return message, f"{meant} it takes: {', '.join(own)}".strip()


# The groups of a fleet, each as a scenario of its own; what their GPUs cost, and the energy that they take.


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


# The policy of a scenario's engine and its queue order: built, labelled, exchanged, written out with its defaults.


def build_policy(scenario: Scenario) -> Policy:
    """Return the policy with the scenario's parameters.

    Raises InputError for a key that neither the policy nor its order takes, unless its value asks for nothing.
    """
    engine = scenario.engine
    try:
        own = policy_parameters(policy_class(engine.policy))
    except InputError as error:
        raise error if error.file else scenario.error("engine.policy", error.message, error.hint) from None
    refuse_unused(scenario)
    parameters = {key: value for key, value in engine.settled().items() if key in own}
    order = engine.parameter("order") if "order" in own else None
    if isinstance(order, str):
        parameters["order"] = build_order(scenario, order)
    if parameters.get("max_num_partial_prefills", 1) > 1 and not parameters.get("long_prefill_token_threshold"):
        # vLLM's `SchedulerConfig.__post_init__`, up to 0.26; its scheduler never read the argument.
        parameters["long_prefill_token_threshold"] = int(0.04 * scenario.resolve_model().max_model_len)
    try:
        return load_policy(engine.policy, parameters)
    except InputError as error:
        key = next((key for key in parameters if f": {key} " in error.message), "policy")
        raise error if error.file else scenario.error(f"engine.{key}", error.message, error.hint) from None


def policy_traits(scenario: Scenario) -> Traits:
    """Return the traits that the scenario's policy declares, as it is configured."""
    return Traits.of(build_policy(scenario))


def is_default(scenario: Scenario) -> bool:
    """Return whether the scenario's policy is the default scheduler, under any of its names."""
    return rules_of(scenario.engine.policy) == rules_of(DEFAULT_POLICY)


def with_chunks(scenario: Scenario) -> dict[str, str | int]:
    """Return the settings under which prompts are computed in chunks: the policy's own, else the default policy's."""
    engine = scenario.engine
    if "enable_chunked_prefill" in engine.takes():
        return {} if engine.parameter("enable_chunked_prefill") else {"engine.enable_chunked_prefill": True}
    return {} if is_default(scenario) else {"engine.policy": DEFAULT_POLICY}


def policy_label(policy: str) -> str:
    """The name of a policy in tables: its own, or the class of a user's policy."""
    return split_class(policy)[1]


def policies_label(scenario: Scenario) -> str:
    """The name of a run in tables: its policy, or all policies of a fleet."""
    return "+".join(dict.fromkeys(policy_label(group.scenario.engine.policy) for group in groups_of(scenario)))


def with_policy(
    scenario: Scenario, policy: str, asked: Mapping[str, object] | None = None
) -> tuple[Scenario, tuple[str, ...]]:
    """Exchange the policy. Returns the scenario, and the keys of the engine that the new policy does not take.

    It leaves these keys out. `asked` holds further keys of the engine, which replace the scenario's own. A relative
    path in `policy` counts from the working directory.
    """
    data = scenario.model_dump(exclude_unset=True)
    try:
        bare = load({**data, "engine": {"policy": policy}})
    except InputError as error:
        raise InputError(error.message, file="--policies", hint=error.hint) from None
    given = {**data.get("engine", {}), **(asked or {}), "policy": bare.engine.policy}
    left_out = unused(bare.engine.policy, given)
    kept = {key: value for key, value in given.items() if key not in left_out}
    return load({**data, "engine": kept}), tuple(key for key, asks in left_out.items() if asks)


def resolved_yaml(scenario: Scenario) -> str:
    """Return the scenario as YAML with every default written out, also the policy's own.

    Keys of other policies, whose values ask for nothing, are left out.
    """
    data = scenario.model_dump(exclude_unset=True)
    data["engine"] = _resolved_engine(scenario)
    around = scenario.resolved_around()
    if scenario.fleet is not None:
        data["fleet"] = [_resolved_group(group) for group in groups_of(scenario)]
        del around["host"]  # each group has its own
    data |= {key: value for key, value in around.items() if value is not None}
    return dump(load(data, check_files=False))


def _resolved_engine(scenario: Scenario) -> dict[str, object]:
    given, known = scenario.model_dump(exclude_unset=True).get("engine", {}), scenario.engine.takes()
    plain = {k: value for k, value in _plain_parameters(scenario).items() if k in given or k not in ONLY_GIVEN}
    found = {key: plain.get(key, given.get(key)) for key in (*ENGINE_KEYS, *known) if key in {**given, **plain}}
    return {**found, "policy": scenario.engine.policy}


def _resolved_group(group: Group) -> dict[str, object]:
    whole, engine = group.scenario.model_dump(), group.scenario.engine
    host = group.scenario.resolved_around()["host"]
    rule = group.autoscaling
    scales = {} if rule is None else {"autoscaling": rule.model_dump(exclude_none=True)}
    return {
        "name": group.name,
        **({} if group.role == "both" else {"role": group.role}),
        **scales,
        **{key: whole[key] for key in ("replicas", "model", "hardware")},
        "cost": group.scenario.resolve_cost().model_dump(),
        **({} if host is None else {"host": host}),
        "engine": type(engine).model_validate(_resolved_engine(group.scenario)).with_usual(engine.usual).resolved(),
    }


def _plain_parameters(scenario: Scenario) -> Mapping[str, object]:
    """Return the parameters of the policy and its order that YAML can hold."""
    policy = build_policy(scenario)
    values = {key: getattr(policy, key) for key in policy_parameters(type(policy))}
    order = values.get("order")
    if isinstance(order, Order):
        values |= {"order": str(order), **order.parameters}
    return {key: value for key, value in values.items() if isinstance(value, (str, int, float, bool, dict))}


def build_order(scenario: Scenario, order: str) -> str:
    """Return the queue order for a policy: its name, with the given keys that are its parameters.

    Where it is the policy's default order, what is not given has the policy's values. The default deadline is the SLO's
    for the last token, else for the first; a request is late beyond the SLO's for the first token, unless given
    otherwise. Raises InputError for parameters that make no order, and for an order that needs a prefix cache where
    there is none.
    """
    kind = QUEUES.get(order)
    if kind is None:
        return order  # a user's policy may have orders of its own
    if kind.needs_prefix_cache and not scenario.engine.enable_prefix_caching:
        what = f"`{order}` orders by what a prefix cache holds, and enable_prefix_caching is false"
        raise scenario.error("engine.order", what, "give enable_prefix_caching: true; without it SGLang serves fcfs")
    if kind.needs_radix_tree and not Traits.of(policy_class(scenario.engine.policy)).has_radix_tree:
        what = f"`{order}` walks SGLang's radix tree, which {scenario.engine.policy} does not have"
        raise scenario.error("engine.order", what, "give policy: sglang")
    given = scenario.engine.given()
    if given.get(kind.cache_parameter) and not scenario.engine.enable_prefix_caching:
        what = "it counts what a prefix cache holds, and enable_prefix_caching is false"
        raise scenario.error(f"engine.{kind.cache_parameter}", what, "give enable_prefix_caching: true")
    parameters = {**(order.parameters if isinstance(order, Order) else {})}
    parameters |= {key: given[key] for key in kind.parameters if key in given}
    if scenario.slo is not None:
        ttft_ms, e2el_ms = scenario.slo.ttft_ms, scenario.slo.e2el_ms
        for key, limit_ms in (("deadline_s", ttft_ms if e2el_ms is None else e2el_ms), ("late_after_s", ttft_ms)):
            if key in kind.parameters:
                parameters.setdefault(key, None if limit_ms is None else limit_ms / 1000.0)
    if not parameters:
        return order
    found = Order(order, **parameters)
    try:
        make_queue(found)
    except InputError as error:
        raise scenario.error("engine.order", error.message, error.hint) from None
    return found
