"""Names of the folders that results go to without --out: what was run, and what makes this run different.

    runs/quickstart-static
    runs/quickstart-chunked_prefill-max_num_batched_tokens=512-seed=3
    runs/quickstart-compare-static+continuous-seeds=5

Equal command lines have equal names, different ones different names: what does not fit into a file name is replaced
by dashes and told apart by a hash.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from simulator.named_class import split_class

RUNS = Path("runs")  # below the working directory
LONGEST = 120  # characters of a name; file systems allow 255 bytes
_SECTIONS = ("engine.", "hardware.", "workload.")  # left out of a key: what follows is clear without it
_SAID_ALREADY = ("name", "engine.policy")  # keys whose value begins the name
_UNSAFE = re.compile(r"[^\w.+,=-]+")


def default_folder(*parts: str, changed: Sequence[str] = ()) -> Path:
    """The folder for results of `parts` (a scenario, a policy, ...) under the overrides `changed` (`a.b=VALUE`).

    Of several overrides of a key the last counts, and their order does not matter; empty parts are left out.
    """
    clear = [_UNSAFE.sub("-", part) for part in parts if part]
    changes = _changes(changed)
    name = "-".join([*clear, *map(_file_name, changes)])
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9].rstrip('-')}-{_hash('-'.join([*parts, *changes]))}"
    return RUNS / name


def policy_name(policy: str) -> str:
    """A policy as a part of a name: a user's own by file and class, for two files may have classes of one name."""
    file, name = split_class(policy)
    return f"{Path(file).stem}.{name}" if file else name


def _changes(overrides: Sequence[str]) -> list[str]:
    """Each changed key with its value, by key; the seed last."""
    values = {}
    for override in overrides:
        key, _, value = override.partition("=")
        values[key.strip()] = value.strip()
    keys = sorted((key for key in values if key not in _SAID_ALREADY), key=lambda key: (key == "seed", key))
    return [f"{key}={values[key]}" for key in keys]


def _file_name(change: str) -> str:
    """A change as a part of a file name, with a hash where it cannot be written as it is."""
    section = next((section for section in _SECTIONS if change.startswith(section)), "")
    text = change.removeprefix(section)
    safe = _UNSAFE.sub("-", text).strip("-").replace("=-", "=")
    return safe if safe == text else f"{safe}-{_hash(change)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
