"""The variants of a comparison, the engine's keys in which each departs from the scenario, and their labels.

On the command line `--policies` holds them in one line, `static,chunked_prefill:max_num_batched_tokens=512`: commas
between variants, colons between a policy and its settings, values as in YAML. In Python the same texts, or mappings
of the keys of `engine:`.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import PurePath
from typing import Any

import yaml

from scenarios.assembly.engines import engine_keys, policy_label, resolved_yaml, with_policy
from scenarios.assembly.replica_parts import build
from scenarios.schema.loader import apply_overrides
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.hints import did_you_mean
from scenarios.schema.source.yaml_source import parse_yaml
from simulator.errors import InputError

# Labels that say in what runs differ, and the order in which they are shown.
#
# A label holds what tells its run from the others: the scenario's name, the policy, then `key=value` of the keys
# that differ, each by the shortest name that means no other key. Runs of one policy stand together, in the order of
# their values: `max_num_seqs=64` before `max_num_seqs=256`.

MOST_KEYS = 3  # in a label; of more differences the first are shown
_HEAD = ("name", "engine.policy")
_VAGUE = ("kind", "process", "dist", "path", "format")  # keys that say nothing without the one above
_COME_WITH = {
    "host": "engine.",
    "cost": "engine.policy",
    "hardware.gpu_memory_utilization": "engine.policy",
    "hardware.mem_fraction_static": "engine.policy",
}
_NOTHING = object()

Flat = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Label:
    """A run's label, and the place of the run among those given."""

    text: str
    place: int


def arrange(runs: Sequence[Mapping[str, Any]], stated: Sequence[Collection[str]] | None = None) -> list[Label]:
    """Return a label for each scenario (resolved, as plain data), in the order to show them.

    An engine's keys are compared among the runs of one policy, for another policy has other keys. `stated` holds for
    each run the engine's keys that were chosen for it: where runs of a policy differ in several keys, labels name those
    alone. Equal scenarios have equal labels; scenarios that differ in more than `MOST_KEYS` keys may have them too.
    """
    flat = [_flat(run) for run in runs]
    policies = _policies([run["engine.policy"] for run in flat])
    groups: dict[tuple[str, str], list[int]] = {}
    for place, run in enumerate(flat):
        groups.setdefault((str(run.get("name")), policies[place]), []).append(place)
    several = [len(set(words)) > 1 for words in zip(*groups, strict=True)]
    of_name = {name: _elsewhere([run for run in flat if str(run.get("name")) == name]) for name, _ in groups}
    short = shortest_names({key for run in flat for key in run}, _VAGUE)
    labels: list[Label] = []
    for head, members in groups.items():
        everywhere = of_name[head[0]]
        of_group = _differing([flat[place] for place in members])
        keys = [*(key for key in of_group if key.startswith("engine.")), *everywhere]
        for place in sorted(members, key=lambda place: [_rank(flat[place].get(key)) for key in keys]):
            mine = [f"engine.{key}" for key in (stated[place] if stated else ())]
            told = [*(keys if stated is None or len(keys) == 1 else everywhere), *mine]
            told = [key for key in dict.fromkeys(told) if key in flat[place]]
            most = len(told) if stated else MOST_KEYS
            settings = [f"{short[key]}={_text(key, flat[place][key], flat)}" for key in told[:most]]
            words = [word for word, wanted in zip(head, several, strict=True) if wanted]
            more = ["…"] if len(told) > most else []
            text = " ".join(filter(None, (", ".join(words), ", ".join([*settings, *more]))))
            labels.append(Label(text or head[1], place))
    return labels


def _flat(data: Any, path: str = "") -> Flat:
    """Flatten nested mappings, keys joined by dots. A list of named items (the classes) counts by their names."""
    found: Flat = {}
    for key, value in _items(data):
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) or (isinstance(value, list) and value and all(_is_named(v) for v in value)):
            found |= _flat(value, here)
        else:
            found[here] = value
    return found


def _items(data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        yield from ((str(key), value) for key, value in data.items())
    else:
        yield from ((str(item["name"]), item) for item in data)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and "name" in value


def _differing(runs: Sequence[Flat]) -> list[str]:
    """The keys that not all runs hold with one value, in the order of the scenarios."""
    keys = dict.fromkeys(key for run in runs for key in run)
    return [key for key in keys if key not in _HEAD and any(_at(run, key) != _at(runs[0], key) for run in runs)]


def _elsewhere(runs: Sequence[Flat]) -> list[str]:
    """Return the keys outside `engine` in which the runs of one scenario differ.

    A host that comes with the engine is left out, and so are step costs and a share of memory that come with the
    policy: the engine's keys tell the runs apart already.
    """
    keys = [key for key in _differing(runs) if not key.startswith("engine.")]
    for part, owner in _COME_WITH.items():
        found: dict[str, set[str]] = {}
        for run in runs:
            of_owner, own = (str([(k, v) for k, v in run.items() if k.startswith(at)]) for at in (owner, part))
            found.setdefault(of_owner, set()).add(own)
        if len(found) > 1 and all(len(values) == 1 for values in found.values()):
            keys = [key for key in keys if not key.startswith(part)]
    # Other keys come with another kind of cost or arrival.
    return [key for key in keys if all(key in run for run in runs)] or keys


def _at(run: Flat, key: str) -> Any:
    value = run.get(key, _NOTHING)
    return (isinstance(value, bool), value)  # 1 and True are two values


def _policies(policies: Sequence[str]) -> list[str]:
    """The names of the policies, numbered where classes of several files have one name."""
    called: dict[str, str] = {}
    for policy in policies:
        if policy not in called:
            name = policy_label(policy)
            same = [label for label in called.values() if label == name or label.startswith(f"{name}-")]
            called[policy] = f"{name}-{len(same) + 1}" if same else name
    return [called[policy] for policy in policies]


def shortest_names(keys: Collection[str], vague: Collection[str] = ()) -> dict[str, str]:
    """Return for each dotted key its shortest ending that no other key has, and that is none of the `vague` words."""
    endings = {key: _endings(key, vague) for key in keys}
    count = Counter(chain.from_iterable(endings.values()))
    return {key: next((ending for ending in own if count[ending] == 1), key) for key, own in endings.items()}


def _endings(key: str, vague: Collection[str]) -> list[str]:
    parts = key.split(".")
    least = 2 if parts[-1] in vague and len(parts) > 1 else 1
    return [".".join(parts[-count:]) for count in range(least, len(parts) + 1)]


def _text(key: str, value: Any, runs: Sequence[Flat]) -> str:
    if isinstance(value, str):
        if key.rpartition(".")[2] != "path":
            return value
        paths = {str(run[key]) for run in runs if key in run}
        return PurePath(value).name if len({PurePath(path).name for path in paths}) == len(paths) else value
    if isinstance(value, float) and value == round(value) and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _rank(value: Any) -> tuple[int, float, str]:
    """The rank of a value: nothing before numbers, numbers by size, then texts."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, (bool, int, float)):
        return (1, float(value), "")
    return (2, 0.0, str(value))


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
