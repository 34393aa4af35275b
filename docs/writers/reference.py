"""The page of all keys of a scenario, docs/reference.md, written from its JSON Schema."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from docs.writers.json_schema import scenario_schema
from docs.writers.tables import texts
from scenarios.schema.allowed import Schema
from scenarios.schema.source.hints import unit_of

_HEAD = """# Every key of a scenario

This page is written from the code (`make pages PAGES=reference`). `scenarios/library/scenario.schema.json` tells an
editor the same, if the first line of a file names it, as in every shipped scenario. A key that is not listed is an
error with file, line, column and the nearest key. The command line sets any key: `--set hardware.tensor_parallel=2`.
Upper limits of 100,000 and more are not shown. "vLLM's" are the policies `chunked_prefill`, `in_time`, `real` and
`vllm`.

`model` may also be the path of a Hugging Face `config.json`, relative to the scenario's file, and so may the `base` of
a mapping: `model: {base: Llama-3.1-8B/config.json, kv_dtype_bytes: 1}`. Families: llama, mistral, mixtral, qwen2,
qwen3, qwen3_moe, qwen3_vl_text, qwen3_vl_moe_text, minimax_m2, glm4_moe, phi3, gemma, gpt2, gpt_oss, deepseek_v2,
deepseek_v3, deepseek_v32, glm_moe_dsa, kimi_k2, gemma3_text, qwen3_next, qwen3_5_text, qwen3_5_moe_text, llama4_text,
nemotron_h. A file that needs more is refused with the field. `fp8` weights count one byte each, embeddings included.
"""
_TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null",
          "object": "mapping", "array": "list"}  # fmt: skip
_MANY = 20
_HUGE = 1e5  # larger limits keep numbers within bounds, and are not told
_OF_VLLM = ("chunked_prefill", "in_time", "real", "vllm")
_Sections = dict[str, tuple[list[str], Schema]]


def page() -> str:
    """The whole page, as Markdown."""
    schema = scenario_schema()
    sections: _Sections = {}
    _collect("", schema, schema["$defs"], sections)
    lines = [_HEAD]
    told: list[list[str]] = []
    for places, mapping in sections.values():
        alike = sum(other == places for other, _ in sections.values()) > 1
        lines += [f"## {_heading(places, mapping, alike)}", ""]
        if len(places) > 1 and places not in told:
            told.append(places)
            lines += [f"Also {', '.join(f'`{place}`' for place in places[1:])}.", ""]
        if (text := mapping.get("description", "")).endswith("."):  # a class's own, not a key's
            lines += [text, ""]
        lines += [*_table(mapping, schema["$defs"]), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _collect(place: str, mapping: Schema, defs: Mapping[str, Schema], sections: _Sections) -> None:
    """Every mapping below a place, by what it holds: one that may stand in several places comes once."""
    properties = mapping["properties"]
    name = repr(sorted(properties) if len(properties) > _MANY else properties)  # a model may lack a few words of `base`
    places, _ = sections.setdefault(name, ([], mapping))
    if place in places:
        return
    places.append(place)
    for key, schema in mapping["properties"].items():
        inside = f"{place}.{key}" if place else key
        for arm in _arms(schema, defs):
            if "items" in arm:
                for item in _arms(arm["items"], defs):
                    if "properties" in item:
                        _collect(f"{inside}.N", item, defs, sections)
            elif "properties" in arm:
                _collect(inside, arm, defs, sections)


def _arms(schema: Schema, defs: Mapping[str, Schema]) -> Iterator[Schema]:
    """The types that a value may have, with references and unions resolved."""
    if "$ref" in schema:
        yield from _arms(defs[schema["$ref"].rpartition("/")[2]], defs)
    elif "properties" not in schema and (union := schema.get("anyOf") or schema.get("oneOf")):
        for arm in union:
            yield from _arms(arm, defs)
    else:
        yield schema


def _heading(places: list[str], mapping: Schema, alike: bool) -> str:
    """Where a mapping stands, and by which key it is told from others that stand there, if it is `alike` any."""
    where = f"`{places[0]}`" if places[0] else "Top level"
    chosen = [f"`{key}: {each['const']}`" for key, each in mapping["properties"].items() if "const" in each]
    chosen += [f"`{key}`" for key in mapping.get("required", ())]
    return f"{where} with {chosen[0]}" if alike and chosen else where


def _table(mapping: Schema, defs: Mapping[str, Schema]) -> Iterator[str]:
    of_policies = any("x-policies" in schema for schema in mapping["properties"].values())
    heads = ["key", "value", "default", "meaning", *(["policies"] if of_policies else [])]
    most = max((len(schema.get("x-policies", ())) for schema in mapping["properties"].values()), default=0)
    rows, targets = [], [key for key, schema in mapping["properties"].items() if _is_target(schema)]
    for key, schema in sorted(mapping["properties"].items(), key=lambda item: "const" not in item[1]):
        if key in targets[1:]:
            continue
        if targets and key == targets[0]:
            rows.append([", ".join(f"`{each}`" for each in targets), "number", "", _TARGETS])
            continue
        arms = list(_arms(schema, defs))
        cells = [f"`{key}`", _value(key, schema, arms), _default(key, schema, mapping), schema.get("description", "")]
        rows.append([*cells, *([_policies(schema, most)] if of_policies else [])])
    return texts(heads, rows)


_TARGETS = "target for this key of summary.json: at most, or at least where more is better"


def _is_target(schema: Schema) -> bool:
    return re.match(r"target: `\w+` of summary.json at (most|least)", schema.get("description", "")) is not None


def _value(key: str, schema: Schema, arms: list[Schema]) -> str:
    """What a value may be, and its unit."""
    kinds = [kind for kind in dict.fromkeys(_type(arm) for arm in arms) if kind != "null"]
    allowed = _joined(arms)
    if kinds == ["text"] and allowed:
        kinds = []
    unit = schema.get("x-unit") or unit_of(key)
    return ", ".join(
        [*([" or ".join(kinds)] if kinds else []), *([allowed] if allowed else []), *([unit] if unit else [])]
    )


def _type(schema: Schema) -> str:
    if "type" in schema:
        return _TYPES[schema["type"]]
    words = schema.get("enum", [schema.get("const")])
    return "text" if all(isinstance(word, str) for word in words) else "number"


def _joined(arms: list[Schema]) -> str:
    """The values that any of several arms allows; each word once."""
    found: list[str] = []
    for arm in arms:
        found += _words(arm) if "enum" in arm and "x-allowed" not in arm else [_allowed(arm)]
    return ", ".join(dict.fromkeys(filter(None, found)))


def _words(schema: Schema) -> list[str]:
    return [f"`{word}`" for word in schema.get("enum", [schema.get("const")])]


def _allowed(schema: Schema) -> str:
    if "x-allowed" in schema:
        return str(schema["x-allowed"])
    if "enum" in schema or "const" in schema:
        return ", ".join(_words(schema))
    parts = []
    for key, words in (("minimum", "at least"), ("exclusiveMinimum", "above")):
        parts += [f"{words} {_number(schema[key])}"] if key in schema else []
    for key, words in (("maximum", "at most"), ("exclusiveMaximum", "below")):
        parts += [f"{words} {_number(schema[key])}"] if schema.get(key, _HUGE) < _HUGE else []
    return " and ".join(parts)


def _number(value: float) -> str:
    """Few digits where that is exact: 1e9, 2147483647, 0.9."""
    short = re.sub(r"e([+-])0?", lambda sign: "e" + sign[1].strip("+"), f"{value:g}")
    return short if float(short) == value else str(value)


def _default(key: str, schema: Schema, mapping: Schema) -> str:
    if "default" in schema:
        return _written(schema["default"])
    if key in mapping.get("required", ()):
        return "required"
    return "by policy" if "x-policies" in schema else ""


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "as below" if len(value) > 2 else ", ".join(f"`{key}: {item}`" for key, item in value.items())
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return _number(value) if isinstance(value, (int, float)) else f"`{value}`"


def _policies(schema: Schema, most: int) -> str:
    """The policies that take a key, or the orders that do; nothing for a key of the engine's own."""
    if orders := schema.get("x-orders"):
        return "with the order " + " or ".join(f"`{order}`" for order in orders)
    names = schema.get("x-policies", ())
    if len(names) == most and most:
        return "all"
    rest = [f"`{name}`" for name in names if name not in _OF_VLLM]
    return ", ".join(["vLLM's", *rest]) if {*_OF_VLLM} <= {*names} else ", ".join(f"`{name}`" for name in names)
