"""The variants of a comparison: a policy, and the engine's keys in which it departs from the scenario.

On the command line `--policies` holds them in one line, `static,chunked_prefill:max_num_batched_tokens=512`: commas
between variants, colons between a policy and its settings, values as in YAML. In Python the same texts, or mappings
of the keys of `engine:`.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from scenarios.assembly.engine_policy import policy_label, resolved_yaml, with_policy
from scenarios.assembly.replica_parts import build
from scenarios.assembly.unused_keys import engine_keys
from scenarios.runs.labels import arrange
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.hints import did_you_mean
from scenarios.schema.source.overrides import apply_overrides
from scenarios.schema.source.yaml_source import parse_yaml
from simulator.errors import InputError

FLAG = "--policies"
_FORM = "as in: chunked_prefill:max_num_batched_tokens=512:max_num_seqs=64"
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy as the user names it, and what it is given beside the scenario's own keys."""

    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""  # as it was written, for messages


def split_variants(text: str) -> list[str]:
    """Split a line into variants, at the commas outside of brackets and quotes."""
    return [part.strip() for part in split_outside(text, ",") if part.strip()]


def as_variant(source: str | Mapping[str, Any]) -> Variant:
    """Return the variant that a text or a mapping (`policy` and further keys of the engine) names.

    Raises InputError for a text that is not `policy:key=value:key=value`, and for a mapping without a policy.
    """
    if isinstance(source, Mapping):
        settings = dict(source)
        policy = settings.pop("policy", None)
        if not isinstance(policy, str):
            raise InputError(f"no policy in {dict(source)!r}", file=FLAG, hint="a mapping needs `policy`")
        text = ":".join([policy, *(f"{key}={value}" for key, value in settings.items())])
        return Variant(policy, settings, text)
    policy, *parts = _split_policy(source.strip())
    if re.search(r"[({\[ ]", policy) and not policy.partition(":")[0].endswith(".py"):
        text = f"{policy!r} is no name of a policy: policies are parted by commas, settings by colons"
        raise InputError(text, file=FLAG, hint=_FORM)
    settings = {}
    for part in parts:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        key = key.removeprefix("engine.")
        if not equals or not re.fullmatch(r"\w+", key):
            raise InputError(f"{part!r} in {source!r} is not of the form key=value", file=FLAG, hint=_FORM)
        if key in settings:
            raise InputError(f"{key} is given twice in {source!r}", file=FLAG)
        try:
            settings[key] = parse_yaml(value, FLAG).data
        except InputError as error:
            raise InputError(f"{key} in {source!r}: the value is {error.message}", file=FLAG, hint=error.hint) from None
    return Variant(policy, settings, source.strip())


def engine_overrides(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides that set a parameter of the engine (`engine.KEY=...`, the policy itself apart), and the others."""
    ours: list[str] = []
    others: list[str] = []
    for override in overrides:
        path = [part.strip() for part in override.partition("=")[0].split(".")]
        (ours if len(path) > 1 and path[0] == "engine" and path[1] != "policy" else others).append(override)
    return ours, others


def overridden(engine: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The keys of the engine that the overrides set, with their values. Raises InputError for a bad override."""
    data = {"engine": dict(engine)}
    written = apply_overrides(data, overrides)
    return {path[1]: data["engine"][path[1]] for path in written if len(path) > 1}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The scenario of a variant, and what there is to say about keys that it does not take."""

    scenario: Scenario
    notes: tuple[str, ...]


def choose(base: Scenario, variants: Sequence[Variant], overrides: Sequence[str] = ()) -> dict[str, Chosen]:
    """Return the scenario of each variant by its label, in the order to show them.

    `overrides` set parameters of the engine (`engine_overrides`): each is applied to the policies that take it. Raises
    InputError for an unknown policy, for a setting that a policy does not take or refuses, for an override that no
    policy takes, and for two equal variants.
    """
    asked = overridden(base.engine.given(), overrides)
    scenarios: list[Scenario] = []
    notes: list[list[str]] = []
    refused: dict[str, list[int]] = {key: [] for key in asked}
    for index, variant in enumerate(variants):
        scenario, dropped = _scenario(base, variant, asked, overrides)
        scenarios.append(scenario)
        left_out = [key for key in dropped if key not in asked]
        notes.append([f"does not take {', '.join(left_out)}, left out here"] if left_out else [])
        for key in dropped:
            if key in asked:
                refused[key].append(index)
    resolved = [yaml.safe_load(resolved_yaml(scenario)) for scenario in scenarios]
    for index, data in enumerate(resolved):
        if (first := resolved.index(data)) < index:
            one, other = variants[first].text, variants[index].text
            what = f"{one} is named twice" if one == other else f"{other} is the same as {one}"
            raise InputError(what, file=FLAG, hint="every policy with its settings is compared once")
    differing = _by_default(scenarios)
    for place, notes_of in enumerate(notes):
        if place in differing:
            notes_of.append(differing[place])
    labels = arrange(resolved, [variant.settings for variant in variants])
    for key, those in refused.items():
        if len(those) == len(variants):
            raise _untaken(key, overrides, scenarios)
        if those:
            said = _applied(key, variants, those)
            for notes_of in notes:
                notes_of.append(said)
    return {label.text: Chosen(scenarios[label.place], tuple(notes[label.place])) for label in labels}


def _by_default(scenarios: Sequence[Scenario]) -> dict[int, str]:
    """Say of a server's policy beside plain ones which settings it has by default and they have not, by place."""
    found: dict[int, str] = {}
    plain = [scenario for scenario in scenarios if scenario.defaults is None]
    for place, scenario in enumerate(scenarios):
        if scenario.defaults is None or not plain:
            continue
        other = plain[0].resolved()
        differ = [
            f"{path.partition('.')[2]} {value}"
            for path, value in scenario.defaults.taken.items()
            for room, _, key in [path.partition(".")]
            if other[room].get(key) != value
        ]
        costs = [one.resolve_cost().kind for one in (scenario, plain[0])]
        differ += [f"cost {costs[0]}, not {costs[1]}"] if "cost" not in scenario.model_fields_set else []
        if differ:
            left = "--set makes them equal"
            found[place] = (
                f"has by default, as {scenario.defaults.server}, what others have not: {', '.join(differ)}; {left}"
            )
    return found


def _scenario(
    base: Scenario, variant: Variant, asked: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[Scenario, tuple[str, ...]]:
    """The scenario of a variant, and the keys left out for it. Checks that its parts fit together."""
    if "policy" in variant.settings:
        raise InputError(f"{variant.text}: a variant has one policy", file=FLAG, hint=_FORM)
    bare, _ = with_policy(base, variant.policy)
    taken = engine_keys(bare.engine.policy, {**base.engine.given(), **asked, **variant.settings})
    for key in variant.settings:
        if key not in taken:
            what = f"{variant.text}: {policy_label(variant.policy)} does not take {key}"
            raise InputError(what, file=FLAG, hint=did_you_mean(key, taken))
    try:
        scenario, dropped = with_policy(base, variant.policy, {**asked, **variant.settings})
        build(scenario)
    except InputError as error:
        if error.file is not None:
            raise
        for key in asked:
            if error.message.startswith(f"engine.{key}") and key not in variant.settings:
                raise InputError(error.message, file=_override(key, overrides), hint=error.hint) from None
        if not variant.settings:
            raise
        raise InputError(f"{variant.text}: {error.message}", file=FLAG, hint=error.hint) from None
    return scenario, dropped


def _applied(key: str, variants: Sequence[Variant], refusing: Collection[int]) -> str:
    """Say to which policies an override is applied, and to which not."""
    names = [policy_label(variant.policy) for variant in variants]
    taking = [name for index, name in enumerate(names) if index not in refusing]
    without = [name for index, name in enumerate(names) if index in refusing]
    does = "does" if len(set(without)) == 1 else "do"
    return (
        f"--set engine.{key} is applied to {', '.join(dict.fromkeys(taking))} alone: "
        f"{', '.join(dict.fromkeys(without))} {does} not take {key}"
    )


def _untaken(key: str, overrides: Sequence[str], scenarios: Sequence[Scenario]) -> InputError:
    """The error for an override that none of the compared policies takes."""
    known = dict.fromkeys(key for scenario in scenarios for key in engine_keys(scenario.engine.policy, {}))
    what = f"none of the compared policies takes engine.{key}"
    return InputError(what, file=_override(key, overrides), hint=did_you_mean(key, tuple(known)))


def _override(key: str, overrides: Sequence[str]) -> str:
    """The last override of a key of the engine, as the user wrote it."""
    found = (each for each in reversed(overrides) if re.match(rf"\s*engine\s*\.\s*{re.escape(key)}\b", each))
    return f"--set {next(found, f'engine.{key}')}"


def _split_policy(text: str) -> list[str]:
    """Split `path.py:Class:key=value` or `name:key=value` at its colons, except between a file and its class."""
    parts = list(split_outside(text, ":"))
    if len(parts) > 1 and parts[0].endswith(".py"):
        parts[:2] = [f"{parts[0]}:{parts[1]}"]
    return parts


def split_outside(text: str, mark: str) -> Iterator[str]:
    """Split a text at the marks that stand outside of brackets and quotes."""
    depth, quote, start = 0, "", 0
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == mark and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]
