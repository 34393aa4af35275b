"""Labels that say in what runs differ, and the order in which they are shown.

A label holds what tells its run from the others: the scenario's name, the policy, then `key=value` of the keys that
differ, each by the shortest name that means no other key. Runs of one policy stand together, in the order of their
values: `max_num_seqs=64` before `max_num_seqs=256`.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePath
from typing import Any

from scenarios.assembly.engine_policy import policy_label

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
