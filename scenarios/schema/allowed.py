"""JSON Schema of the keys whose values the models of `scenario` cannot list: they stand with models, GPUs, policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, get_type_hints

from annotated_types import DocInfo, Unit
from pydantic import TypeAdapter

Schema = dict[str, Any]

USERS_POLICY = r"\.py:[^\W\d]\w*$"


def model_schema() -> Schema:
    """A built-in model, or a mapping of dimensions."""
    from simulator.hardware.models import MODELS, REQUIRED, Model

    return _named_or_mapping(list(MODELS), Model, REQUIRED)


def gpu_schema() -> Schema:
    """A built-in GPU, or a mapping of figures."""
    from simulator.hardware.gpus import GPUS, REQUIRED, Gpu

    return _named_or_mapping(list(GPUS), Gpu, REQUIRED)


def formats_schema() -> Schema:
    """The trace formats that can be read."""
    from scenarios.traces.options import READABLE

    return {"enum": ["auto", *READABLE]}


def engine_schema() -> Schema:
    """The engine's own keys and the parameters of the policy that it names; any key beside a policy of the user's."""
    from simulator.policies import built_in_policies

    own, of_policies = _engine_keys(), {name: policy_keys(name) for name in built_in_policies()}
    properties: Schema = {**own}
    for policy, keys in of_policies.items():
        for key, schema in keys.items():
            known = properties.setdefault(key, {**schema, "x-policies": []})
            known["x-policies"].append(policy)
            if known.get("default") != schema.get("default"):
                known.pop("default", None)
    default = own["policy"]["default"]
    own["policy"]["anyOf"] = [{"enum": list(of_policies)}, {"type": "string", "pattern": USERS_POLICY}]
    return {
        "type": "object",
        "description": "A batching policy and its parameters.",
        "properties": properties,
        "allOf": [
            {
                "if": {
                    "properties": {"policy": {"const": policy}},
                    "required": [] if policy == default else ["policy"],
                },
                "then": {"propertyNames": {"enum": [*own, *keys]}},
            }
            for policy, keys in of_policies.items()
        ],
    }


def policy_keys(policy: str) -> dict[str, Schema]:
    """The parameters of a built-in policy as `engine:` takes them, in the policy's order."""
    from scenarios.schema.engine import Engine
    from simulator.policies import policy_class, policy_parameters

    known = Engine.model_json_schema()["properties"]
    keys = [key for name in policy_parameters(policy_class(policy)) for key in _spelled(name)]
    return {key: known[key] for key in keys if key in known}


def _spelled(parameter: str) -> tuple[str, ...]:
    """The keys of a parameter in the YAML: an order brings its own parameters along."""
    from scenarios.schema.engine import ORDER_KEYS

    return ("order", *ORDER_KEYS) if parameter == "order" else (parameter,)


def _engine_keys() -> dict[str, Schema]:
    from scenarios.schema.engine import _ENGINE_KEYS, Engine

    known = Engine.model_json_schema()["properties"]
    return {key: {**known[key]} for key in _ENGINE_KEYS}


def _named_or_mapping(names: list[str], cls: type, required: tuple[str, ...]) -> Schema:
    """A built-in name; or a mapping like the fields of a dataclass, over the built-in `base` or with all `required`."""
    base = {"enum": names, "description": "built-in one that gives what the mapping leaves out"}
    mapping = {
        "type": "object",
        "properties": {"base": base, **field_schemas(cls)},
        "additionalProperties": False,
        "anyOf": [{"required": ["base"]}, {"required": list(required)}],
    }
    return {"anyOf": [{"enum": names}, mapping]}


def field_schemas(cls: type) -> dict[str, Schema]:
    """The JSON Schema of every field of a dataclass, with its meaning, its unit and its default."""
    hints: Mapping[str, Any] = get_type_hints(cls, include_extras=True)
    found = {}
    for name, annotation in hints.items():
        schema: Schema = TypeAdapter(annotation).json_schema()
        for item in annotation.__metadata__:
            if isinstance(item, DocInfo):
                schema["description"] = item.documentation
            elif isinstance(item, Unit):
                schema["x-unit"] = item.unit
        default = cls.__dataclass_fields__[name].default  # type: ignore[attr-defined] # of a dataclass
        found[name] = schema if default is MISSING else {**schema, "default": default}
    return found
