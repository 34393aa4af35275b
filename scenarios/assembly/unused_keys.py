"""Keys of the engine that its policy does not use: refused with the reason in a run, left out in a comparison."""

from collections.abc import Mapping
from typing import Any

from scenarios.schema.engine import ENGINE_KEYS, where
from scenarios.schema.scenario import Scenario
from simulator.errors import did_you_mean
from simulator.parameters import file_of
from simulator.policies import built_in_policies, policies_with, policy_class, policy_parameters, system_of
from simulator.policies.parts.preemption import needs_host
from simulator.policy_traits import Traits
from simulator.queues import QUEUES


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
