"""The policy of a scenario's engine and its queue order: built, labelled, exchanged, written out with its defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scenarios.assembly.groups import Group, groups_of
from scenarios.assembly.unused_keys import refuse_unused, unused
from scenarios.schema.engine import ENGINE_KEYS, ONLY_GIVEN
from scenarios.schema.loader import dump, load
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.parameters import split_class
from simulator.policies import DEFAULT_POLICY, load_policy, policy_class, policy_parameters, rules_of
from simulator.policy_traits import Traits
from simulator.queues import QUEUES, Order, make_queue

if TYPE_CHECKING:
    from simulator.plan import Policy


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
