"""The folder for results: its name, and the rule for results that are there already, which all verbs share.

1. A new or an empty folder is filled.
2. A folder in which batchlab wrote nothing is refused, always.
3. A folder with results of batchlab is refused before anything runs, unless the same output would be written again:
   the same scenario and, for a comparison, the same runs. Then files may be added (a report, pictures, decisions) and
   equal ones are written again; none is changed and none removed.
4. `overwrite` lifts 3: results are replaced, and files of earlier results that are not written again are removed.
   Files that batchlab did not write stay.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scenarios.runs.storage import run_folder
from scenarios.runs.storage.run_folder import REPLACE, is_partial, staging, unwritable
from simulator.errors import InputError
from simulator.parameters import split_class

# Names of the folders that results go to without --out: what was run, and what makes this run different.
#     runs/quickstart-static
#     runs/quickstart-chunked_prefill-max_num_batched_tokens=512-seed=3
#     runs/quickstart-compare-static+continuous-seeds=5
#
# Equal command lines have equal names, different ones different names: what does not fit into a file name is
# replaced by dashes and told apart by a hash.

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


Expected = Mapping[str, Callable[[], str]]
SWEEP = "a sweep"
_KINDS = {
    run_folder.COMPARISON: "a comparison",
    run_folder.STUDY: SWEEP,
    run_folder.PLAN: "a plan",
    run_folder.SEARCH: "a search",
    run_folder.EXPERIMENT: "an experiment",
    run_folder.VALIDATION: "a validation",
    run_folder.LOCKSTEP: "a lockstep",
    run_folder.FREE_RUNNING: "a free-running lockstep",
    run_folder.MEASUREMENT: "a measurement",
    run_folder.SUMMARY: "a run",
    run_folder.EXPLANATION: "an explanation",
}
"""What a folder holds, by a file that tells; the first that is there says it."""


@contextmanager
def output(
    target: Path,
    *,
    overwrite: bool = False,
    expected: Expected | None = None,
    runs: Collection[Path] = (),
    owned: Collection[str] | None = None,
) -> Iterator[Path]:
    """Yield a folder to write into. At the end its files move to `target`, all or none, by the rule above.

    `expected` maps files to functions for the texts that they will hold, where these are known beforehand: if `target`
    has the same, the output counts as the same. None: it never is (measured times). `runs` are the run folders that a
    comparison will hold, relative to `target`. `owned` are the files that `overwrite` may remove; default: all that
    batchlab writes.

    Raises InputError before the block where the rule refuses or `target` cannot be written, and after it where a file
    of `target` would change after all (the policy's own file or the trace did).
    """
    check_output(target, overwrite=overwrite, expected=expected, runs=runs)
    replace = None if not overwrite else run_folder.owned_files(target) if owned is None else owned
    with staging(target, replace=replace) as folder:
        yield folder


@contextmanager
def output_file(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield the path of a single file to write, which takes the place of `path` at the end.

    Raises InputError where `path` exists with another content, unless `overwrite`, or cannot be written.
    """
    with staging(path.parent, replace=() if overwrite else None) as folder:
        yield folder / path.name


def check_output(target: Path, *, overwrite: bool, expected: Expected | None, runs: Collection[Path] = ()) -> None:
    """Raise InputError where the rule refuses `target`; see `output`."""
    if not target.is_dir():
        return  # to be made, or to fail on being made
    try:
        names = sorted(path.name for path in target.iterdir() if not is_partial(path.name))
    except OSError as error:
        raise unwritable(target, error) from error
    if not names:
        return
    kind = kind_of(target)
    if kind is None and (others := [name for name in names if name not in run_folder.own_names()]):
        raise InputError(
            f"the folder {target} is not empty and holds no earlier run of batchlab: {others[0]} is in it",
            hint="choose an empty or a new folder with --out; --overwrite replaces only what batchlab wrote",
        )
    if overwrite:
        return
    why = "" if expected is None else _difference(target, expected, runs)
    if expected is not None and not why:
        return
    report = " and its report" if kind and run_folder.REPORT in names else ""
    raise InputError(f"{target} holds {kind or 'a report'}{report} already{why}", hint=REPLACE)


def kind_of(target: Path) -> str | None:
    """The kind of results in `target`, as `a run`; None where it holds none, or a report alone."""
    return next((kind for name, kind in _KINDS.items() if (target / name).is_file()), None)


def _difference(target: Path, expected: Expected, runs: Collection[Path]) -> str:
    """Say how the results in `target` differ from the new ones, as the end of a sentence; '' if they do not."""
    for name, text in expected.items():
        try:
            there = (target / name).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return f", without a readable {name}"
        if there != (here := text()):
            return f"; its {name} differs{_lines(there, here)}"
    if expected and {*run_folder.compared_runs(target)} != {*runs}:
        return "; its policies or seeds differ"
    return ""


def _lines(there: str, here: str) -> str:
    """The first line in which two texts differ."""
    for old, new in zip(there.splitlines(), here.splitlines(), strict=False):
        if old != new:
            return f" ({old.strip()} there, {new.strip()} here)"
    return ""


def same_scenario(scenario_yaml: Callable[[], str]) -> Expected:
    """The files that `output` expects of a run of this scenario, whose YAML is asked for where results are there."""
    return {run_folder.SCENARIO: scenario_yaml}
