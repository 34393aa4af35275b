"""JSON Schema of the keys whose values the models of `scenario` cannot list, and releases that are not known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_type_hints

from annotated_types import DocInfo, Unit
from pydantic import TypeAdapter

from scenarios.schema.source.hints import as_number
from simulator.errors import InputError
from simulator.policies import DEFAULT_POLICY, named_policies, policy_class, policy_parameters

if TYPE_CHECKING:
    from pydantic import BaseModel

    from simulator.parameters import Parameter


# A release of a server that is not known here: the nearest one that is, whose rules are taken in its place.
#
# Rules change seldom from one release to the next (`simulator/policies/chunked_prefill/versions.py`), so an older
# or newer release is served as the oldest or newest known one. A run says so; what is no release of that server is
# refused.

KEY = "version"
PATCH = r"(?:\.\d[\w.+-]*)?"
RELEASE = rf"^v?(\d{{1,2}})\.(\d{{1,2}}){PATCH}$"
DEVELOPMENT = r"^(?:main|nightly|latest|dev)\b[\w.+-]*$"


def nearest_known(known: Sequence[str], asked: object) -> str | None:
    """Of the known releases, oldest first, the one whose rules are taken for what is asked for; None for no release.

    A patch has the rules of its release, a build of the development branch those of the newest. Numbers more than one
    major release beyond the newest are no release.
    """
    text = str(asked)
    if re.match(DEVELOPMENT, text):
        return known[-1]
    numbers = _numbers(text)
    if not numbers or numbers[0] > _numbers(known[-1])[0] + 1:
        return None
    return known[max(0, sum(_numbers(each) <= numbers for each in known) - 1)]


def is_of(release: str, asked: object) -> bool:
    """True if what is asked for is this release, or a patch of it."""
    return _numbers(str(asked)) == _numbers(release)


def with_known(data: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The keys of an engine with a release that is known, and what was asked for instead; '' where it is known."""
    policy, asked = data.get("policy", DEFAULT_POLICY), data.get(KEY)
    if asked is None or isinstance(asked, bool) or policy not in named_policies():
        return dict(data), ""
    try:
        parameter = policy_parameters(policy_class(str(policy))).get(KEY)
    except InputError:  # said where the policy is loaded
        return dict(data), ""
    if parameter is None or not parameter.words or _is_written(parameter.words, asked):
        return dict(data), ""
    near = nearest_known(parameter.words, asked)
    if near is None:
        return dict(data), ""
    return {**data, KEY: near}, "" if is_of(near, asked) else str(asked)


def others(known: Sequence[str]) -> list[dict[str, Any]]:
    """JSON Schemas of what else `nearest_known` takes: text, and numbers of YAML's."""
    nearest, majors = {"x-allowed": "of any other release the nearest"}, _numbers(known[-1])[0] + 2
    release = rf"^v?(?:{'|'.join(map(str, range(majors)))})\.\d{{1,2}}{PATCH}$"
    return [
        {"type": "string", "pattern": f"{release}|{DEVELOPMENT}", **nearest},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": majors, **nearest},
    ]


def _is_written(known: Sequence[str], asked: object) -> bool:
    """True if a word is meant as it is, or as a number of YAML's (0.20)."""
    return asked in known or (isinstance(asked, float) and asked in map(float, known))


def _numbers(release: str) -> tuple[int, ...]:
    """The first two numbers of a release; none of what is no release."""
    found = re.match(RELEASE, release)
    return (int(found[1]), int(found[2])) if found else ()


Schema = dict[str, Any]


def model_schema() -> Schema:
    """A built-in model, or a mapping of dimensions."""
    from simulator.hardware.models import MODELS, REQUIRED, Model

    config = {"type": "string", "pattern": r"\.json$", "x-allowed": "the path of a Hugging Face config.json"}
    return _named_or_mapping([{"enum": list(MODELS)}, config], Model, REQUIRED, _precisions())


def draft_model_schema() -> Schema:
    """A draft model: a built-in model, or a mapping of dimensions; null for none."""
    from simulator.hardware.models import MODELS, REQUIRED, Model

    found = _named_or_mapping([{"enum": list(MODELS)}], Model, REQUIRED, _precisions())
    return {"anyOf": [*found["anyOf"], {"type": "null"}]}


def _precisions() -> Mapping[str, Schema]:
    from simulator.hardware.model import PRECISION_WORDS

    about = {"quantization": "precision of all weights and their products", "kv_cache_dtype": "precision of the cache"}
    return {
        key: {"enum": list(words), "description": f"{about[key]}, in place of their fields below"}
        for key, words in PRECISION_WORDS.items()
    }


def whole_schema(model: type[BaseModel]) -> Schema:
    """The keys of a mapping, whole: what they refer to stands in its place; or null."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(each) for each in value]
        if not isinstance(value, dict):
            return value
        if isinstance(name := value.get("$ref"), str):
            return whole(parts[name.rpartition("/")[2]])
        return {key: whole(each) for key, each in value.items()}

    return {"anyOf": [whole(schema), {"type": "null"}]}


def gpu_schema() -> Schema:
    """A built-in GPU, or a mapping of figures."""
    from simulator.hardware.gpus import GPUS, REQUIRED, Gpu

    return _named_or_mapping([{"enum": list(GPUS)}], Gpu, REQUIRED)


def formats_schema() -> Schema:
    """The trace formats that can be read."""
    from scenarios.traces.formats import trace_formats
    from simulator.parameters import CLASS_PATTERN

    own = {"type": "string", "pattern": CLASS_PATTERN, "x-allowed": "`path.py:NAME`"}
    return {"anyOf": [{"enum": ["auto", *trace_formats()]}, own]}


def router_schema() -> Schema:
    """A built-in router, or a user's own: by its name, or as a mapping with its parameters."""
    from scenarios.schema.router import RouterConfig
    from simulator.fleet.router import RouterFeatures
    from simulator.fleet.routers import built_in_routers, router_class, router_parameters
    from simulator.parameters import CLASS_PATTERN

    users = {"type": "string", "pattern": CLASS_PATTERN, "x-allowed": "`path.py:Class`"}
    own = RouterConfig.model_json_schema()["properties"]
    mappings: list[Schema] = []
    for name in built_in_routers():
        features = RouterFeatures.of(router_class(name))
        keys = {"signal_interval_s": own["signal_interval_s"] | {"default": features.usual_interval_s}}
        if not features.reads_loads:
            keys.clear()
        keys["regret"] = own["regret"]
        keys |= {key: parameter_schema(parameter) for key, parameter in router_parameters(name).items()}
        mappings.append(_router_mapping({"const": name, "description": _first_line(router_class(name))}, keys))
    mappings.append(
        _router_mapping({**users, "description": "a router of your own"}, own) | {"additionalProperties": True}
    )
    return {"anyOf": [{"enum": list(built_in_routers())}, users, *mappings]}


def _router_mapping(kind: Schema, keys: Schema) -> Schema:
    properties = {"kind": kind, **{key: schema for key, schema in keys.items() if key != "kind"}}
    return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}


def _first_line(owner: Any) -> str:
    """The first sentence of a docstring, in one line, as a table has it."""
    sentence = " ".join((owner.__doc__ or "").split()).partition(". ")[0]
    return (sentence[:1].lower() + sentence[1:]).rstrip(".")


def parameter_schema(parameter: Parameter) -> Schema:
    """The JSON Schema of a policy's or an order's parameter, with its meaning, its unit and its default."""
    schema: Schema = TypeAdapter(parameter.annotation).json_schema()
    if parameter.words and all(as_number(word) is not None for word in parameter.words):  # YAML takes 0.20 for a number
        numbers = {"enum": [float(word) for word in parameter.words], "x-allowed": "with or without quotes"}
        schema = {"anyOf": [schema, numbers, *(others(parameter.words) if parameter.name == KEY else ())]}
    schema["description"] = parameter.doc
    if parameter.unit:
        schema["x-unit"] = parameter.unit
    return schema if parameter.default is MISSING else {**schema, "default": parameter.default}


def _named_or_mapping(
    named: list[Schema], cls: type, required: tuple[str, ...], words: Mapping[str, Schema] = MappingProxyType({})
) -> Schema:
    """Something by its name; or a mapping like the fields of a dataclass, over a `base` or with all `required`."""
    base = {"anyOf": named, "description": "gives what the mapping leaves out"}
    mapping = {
        "type": "object",
        "properties": {"base": base, **words, **field_schemas(cls)},
        "additionalProperties": False,
        "anyOf": [{"required": ["base"]}, {"required": list(required)}],
    }
    return {"anyOf": [*named, mapping]}


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
