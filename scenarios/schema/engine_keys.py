"""JSON Schema of `engine:`, whose keys are its own and those of the policy that it names."""

from collections.abc import Mapping

from scenarios.schema.allowed import Schema, parameter_schema
from scenarios.schema.engine import Engine
from simulator.policies import DEFAULT_POLICY, named_policies, policy_class, policy_parameters
from simulator.queues import QUEUES


def engine_schema() -> Schema:
    """The engine's own keys and the parameters of the policy that it names; any key beside a policy of the user's."""
    own = Engine.model_json_schema()["properties"]
    own["policy"].pop("x-allowed")
    of_policies = {name: policy_keys(name) for name in named_policies()}
    own["policy"]["default"] = DEFAULT_POLICY
    users = {key: own["policy"].pop(key) for key in ("type", "pattern")} | {"x-allowed": "`path.py:Class`"}
    own["policy"]["anyOf"] = [{"enum": list(of_policies)}, users]
    properties: Schema = {**own}
    for key in dict.fromkeys(key for keys in of_policies.values() for key in keys):
        properties[key] = _together({policy: keys[key] for policy, keys in of_policies.items() if key in keys})
    return {
        "type": "object",
        "properties": properties,
        "allOf": [
            {
                "if": {
                    "properties": {"policy": {"const": name}},
                    "required": [] if name == DEFAULT_POLICY else ["policy"],
                },
                "then": {"propertyNames": {"enum": [*own, *keys]}},
            }
            for name, keys in of_policies.items()
        ],
    }


def _together(declared: Mapping[str, Schema]) -> Schema:
    """One parameter as several policies declare it: all that any of them takes, and the default where they agree."""
    first, *others = declared.values()
    found = {**first, "x-policies": list(declared)}
    if any(other.get("default") != first.get("default") for other in others):
        found.pop("default", None)
    about = ("default", "description", "x-orders")
    arms = [{key: value for key, value in each.items() if key not in about} for each in declared.values()]
    different = [arm for index, arm in enumerate(arms) if arm not in arms[:index]]
    if len(different) > 1:
        found = {key: value for key, value in found.items() if key not in arms[0]} | {"anyOf": different}
    return found


def policy_keys(policy: str) -> dict[str, Schema]:
    """The parameters of a built-in policy as `engine:` takes them, then those of the orders that it can have."""
    own = policy_parameters(policy_class(policy))
    found = {name: parameter_schema(parameter) for name, parameter in own.items()}
    if "order" in own:
        for order in own["order"].words:
            for name, parameter in QUEUES[order].parameters.items():
                schema = found.setdefault(name, {**parameter_schema(parameter), "x-orders": []})
                schema["x-orders"].append(order)
    return found
