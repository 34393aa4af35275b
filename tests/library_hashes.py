"""Hashes of every file that the library's scenarios write: a table of what must stay while code moves.

`python -m tests.library_hashes` runs every scenario and shows what differs from tests/data/library_hashes.tsv, and
`--write` writes the table again; names after it take some runs alone. A file is hashed by what it holds: gzip
unpacked, npz by its arrays; the version, notes and sentences are left out, and so is where the shared data lies.

Runs that read real data are left out where that is absent. numpy computes `exp` or `log` to another last bit on some
processors, and then every figure differs: the table holds only where `arithmetic` is that of its first row.
"""

import argparse
import gzip
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import scenarios
from tests import shared_data
from tests.command import START

TABLE = Path(__file__).parent / "data" / "library_hashes.tsv"
ARITHMETIC = "arithmetic"
SHARED = "${BATCHLAB_SHARED}"
LEFT_OUT = ("notes", "version")
_DATA = re.compile(r'path: "\$\{BATCHLAB_SHARED\}/([^"]+)"')

COMPARED: Mapping[str, tuple[str, str]] = {
    "compare quickstart": ("quickstart", "static,continuous,preemptive,chunked_prefill,fastserve,in_time"),
    "compare claim-15": ("claim-15-four-systems", "orca,vllm,sglang,tensorrt_llm,tgi,sarathi,fastgen,vllm_v0"),
    "compare preemption-modes": (
        "preemption-modes",
        "preemptive:preemption_mode=recompute,preemptive:preemption_mode=swap,chunked_prefill:order=priority",
    ),
}
"""Comparisons by name: the scenario and the policies. Every built-in policy runs once."""
RUNS = (*scenarios.shipped(), *COMPARED)

Table = dict[str, dict[str, str]]
"""By run: file -> hash."""


def arithmetic() -> str:
    """Return the hash of functions whose last bit differs between processors and builds of numpy."""
    x = np.linspace(0.01, 30, 4099)
    found = [np.exp(x), np.log(x), np.sin(x), np.power(x, 0.37), np.sqrt(x), np.cumsum(x), np.asarray([x.sum(), x @ x])]
    rng = np.random.default_rng(0)
    found += [rng.lognormal(size=999), rng.gamma(0.7, size=999), rng.standard_exponential(999)]
    found.append(np.asarray([f(float(v)) for v in x for f in (math.exp, math.log, math.erf)]))
    return _short(b"".join(each.tobytes() for each in found))


def hashes_of(run: str) -> dict[str, str]:
    """Run the command in a process of its own; return the hash of each file that it wrote."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "run"
        done = subprocess.run(
            [*START, *_command(run), "--quiet", "--out", str(folder)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "BATCHLAB_SHARED": str(shared_data.root())},
        )
        assert done.returncode == 0, f"{run}: exit code {done.returncode}: {done.stderr}"
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): _short(content(path)) for path in files}


def _command(run: str) -> list[str]:
    if run in COMPARED:
        scenario, policies = COMPARED[run]
        return ["compare", scenario, "--policies", policies, "--no-report"]
    return ["run", run, "--log-decisions", "--no-sensitivity"]


def absent(run: str) -> list[str]:
    """Return the files of real data that the run reads and that are not here."""
    library = Path(scenarios.__file__).parent / "library"
    text = (library / f"{COMPARED[run][0] if run in COMPARED else run}.yaml").read_text(encoding="utf-8")
    return [file for file in _DATA.findall(text) if not (shared_data.root() / file).exists()]


def content(path: Path) -> bytes:
    """Return what a file holds that must stay the same."""
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    if path.suffix == ".json":
        return json.dumps(_figures(json.loads(path.read_bytes()))).encode()
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            about = json.dumps(_figures(json.loads(bytes(arrays["about"])))).encode()
            return about + b"".join(_array(name, arrays[name]) for name in sorted(arrays) if name != "about")
    if path.suffix == ".yaml":  # by its values: where lines are folded depends on the length of a path
        return json.dumps(yaml.safe_load(path.read_text("utf-8"))).replace(str(shared_data.root()), SHARED).encode()
    return path.read_bytes()


def _array(name: str, array: Any) -> bytes:
    return f"{name} {array.dtype.str} {array.shape}".encode() + bytes(array.tobytes())


def _figures(value: Any) -> Any:
    """Return a JSON value without what is worded: notes, versions, and strings of several words."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in LEFT_OUT}
        return {key: _figures(each) for key, each in kept.items() if not (isinstance(each, str) and " " in each)}
    if isinstance(value, list):
        return [_figures(each) for each in value]
    return value


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def read() -> Table:
    """Return the table as it is in the repository."""
    table: Table = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        run, file, sha = line.split("\t")
        table.setdefault(run, {})[file] = sha
    return table


def write(table: Table) -> None:
    """Write the table, a line a file, in the order of their names."""
    rows = [f"{run}\t{file}\t{sha}" for run in sorted(table) for file, sha in sorted(table[run].items())]
    TABLE.write_text("\n".join(["run\tfile\tsha256", *rows]) + "\n", encoding="utf-8")


def differing(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return the files whose hashes differ, or that only one side has."""
    return sorted(file for file in expected.keys() | found.keys() if expected.get(file) != found.get(file))


def main(arguments: Iterable[str] | None = None) -> int:
    """Compare the table with what the code writes now, or write it."""
    parser = argparse.ArgumentParser(prog="python -m tests.library_hashes", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="some runs alone")
    parser.add_argument("--write", action="store_true", help="write the table instead of comparing with it")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    if unknown := sorted(set(asked.runs) - set(RUNS)):
        parser.error(f"no run {', '.join(unknown)}; there are {', '.join(RUNS)}")
    table = read() if TABLE.exists() else {}
    here = {ARITHMETIC: {"": arithmetic()}}
    if not asked.write and table.get(ARITHMETIC) != here[ARITHMETIC]:
        print("the table was written where numpy's last bits are others: write it from the older code, then compare")
        return 2
    chosen = [run for run in asked.runs or RUNS if not absent(run)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        found = dict(zip(chosen, pool.map(hashes_of, chosen), strict=True))
    for run in sorted(set(asked.runs or RUNS) - set(chosen)):
        print(f"{run}: not run, its data are absent")
    if asked.write:
        gone = set(table) - set(RUNS)
        write({run: files for run, files in (table | here | found).items() if run not in gone or run == ARITHMETIC})
        return 0
    changed = {run: names for run in chosen if (names := differing(table.get(run, {}), found[run]))}
    for run, names in changed.items():
        print(f"{run}: {', '.join(names)}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
