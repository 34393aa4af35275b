"""The cost profiles and kernel tables that come with batchlab: where they are, and what each is of."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from simulator.errors import InputError, did_you_mean
from simulator.timing.profile import Profile, read_profile
from simulator.timing.tables import read_tables
from simulator.timing.tables.experts import SUFFIX, beside
from simulator.timing.tables.latent import SUFFIX as LATENT
from simulator.timing.tables.latent import find_latent
from simulator.timing.tables.linear import SUFFIX as LINEAR

TABLES_SUFFIX = ".json.gz"


@cache
def shipped_profiles() -> dict[str, Path]:
    """The profiles that come with batchlab, by name."""
    return {path.stem: path for path in _shipped("profiles", "*.json")}


@cache
def shipped_profile(name: str) -> Profile:
    """A profile that comes with batchlab, read once: every scenario of a sweep or a plan asks for it."""
    return read_profile(shipped_profiles()[name])


@cache
def shipped_tables() -> dict[str, Path]:
    """The tables of kernels that come with batchlab, by name; of a GPU, those of the newest software first."""
    found = {
        path.name.removesuffix(TABLES_SUFFIX): path
        for path in _shipped("tables", f"*{TABLES_SUFFIX}")
        if path not in shipped_parts()
    }
    return dict(sorted(found.items(), key=lambda entry: _newest_first(entry[0])))


def tables_for(gpu: str, engine: str, version: str = "") -> tuple[list[Path], list[Path]]:
    """The tables of a GPU: those of an engine, the nearest to a version first ('': the newest), and all others.

    Where the engine has none, all are taken for its own, vLLM's first.
    """
    found = {name: path for name, path in shipped_tables().items() if name.rsplit("-", 2)[0] == gpu}
    kinds = sorted({name.rsplit("-", 2)[1] for name in found}, key=lambda kind: (kind != engine, kind != "vllm", kind))
    by_kind = [[path for name, path in found.items() if name.rsplit("-", 2)[1] == kind] for kind in kinds]
    if kinds and kinds[0] == engine and re.fullmatch(r"\d+\.\d+(\..*)?", version):
        by_kind[0].sort(key=lambda path: abs(_minor(path.name) - int(version.split(".")[1])))
    own = by_kind[0] if by_kind and kinds[0] == engine else [path for some in by_kind for path in some]
    return own, [path for some in by_kind for path in some if path not in own]


def _minor(name: str) -> int:
    """The minor number of the version in a name ("h100-vllm-0.24.json.gz")."""
    return int(name.rsplit("-", 1)[1].split(".")[1])


@cache
def shipped_parts() -> tuple[Path, ...]:
    """The tables beside those of kernels: of experts, then of latent and of linear attention."""
    suffixes = (SUFFIX, f"{LATENT}{TABLES_SUFFIX}", f"{LINEAR}{TABLES_SUFFIX}")
    return tuple(path for suffix in suffixes for path in _shipped("tables", f"*{suffix}"))


def _shipped(folder: str, pattern: str) -> list[Path]:
    spec = find_spec("calibration")
    places = [] if spec is None else [*(spec.submodule_search_locations or ())]
    return [path for place in places for path in sorted((Path(place) / folder).glob(pattern))]


def _newest_first(name: str) -> tuple[str, list[int]]:
    before, _, version = name.rpartition("-")
    return before, [-int(part) for part in version.split(".") if part.isdigit()]


def profile_path(given: str) -> Path:
    """The file of a shipped name (a profile's, or that of tables), or the path as it is given.

    Raises InputError where there is neither.
    """
    shipped = {**shipped_profiles(), **shipped_tables()}
    path = Path(given)
    try:
        there = path.exists()
    except (OSError, ValueError):  # no name that a file can have
        there = False
    if given in shipped and not (there and path.is_file()):
        return shipped[given]
    if not there:
        listed = ", ".join(shipped) or "none"
        hint = f"{did_you_mean(given, shipped)}shipped profiles: {listed}; anything else is the path of a file"
        raise InputError(f"no shipped profile and no file is called {given!r}", hint=hint)
    return path


def held_out_mape(profile: Profile) -> dict[str, float]:
    """Mean absolute error, in percent, of each kind of kernel on rows that the fit had not seen; empty if untested."""
    errors: Mapping[str, Mapping[str, Mapping[str, float]]] = profile.document.get("errors", {})
    regimes = ("random", "thinned", "parallel")
    found = {kind: next((each[name] for name in regimes if name in each), None) for kind, each in errors.items()}
    return {kind: each["mape"] for kind, each in found.items() if each is not None}


def describe(path: Path) -> tuple[str, ...]:
    """A profile in a line: name, what it is of, where it comes from, what it was tested with."""
    profile = read_profile(path)
    errors = ", ".join(f"{kind} {percent:.1f} %" for kind, percent in held_out_mape(profile).items())
    sources = "; ".join(str(source.get("source", "")) for source in profile.document.get("sources", ()))
    return (
        path.stem,
        f"{profile.model} on {profile.gpu}",
        f"tensor_parallel {profile.tensor_parallel}",
        str(profile.document.get("software", "")),
        f"held out: {errors}" if errors else "held out: not tested",
        sources,
    )


def describe_tables(path: Path) -> tuple[str, ...]:
    """Tables in a line: name, what can be composed of them, the software that was measured, their source."""
    tables = read_tables(path)
    heads = sorted({table.head_dim for table in tables.decode})
    windows = sorted({table.window for table in tables.decode if table.window})
    kv = sorted({table.kv_dtype for table in tables.decode})
    parts = [f"weights {', '.join(tables.products)}", f"KV {', '.join(kv)}", f"heads of {', '.join(map(str, heads))}"]
    parts += [f"windows {', '.join(map(str, windows))}"] if windows else []
    experts = sorted({name for each in beside(path.parent, tables.gpu, tables.software) for name in each.precisions})
    parts += [f"experts {', '.join(experts)}"] if experts else []
    latent = find_latent(tables)
    kinds = [] if latent is None else sorted({modules.dtype for modules in latent.decode})
    parts += [f"latent attention {', '.join(kinds)}"] if kinds else []
    return (
        tables.name,
        f"any {'' if experts else 'dense '}model on {tables.gpu}",
        f"tensor_parallel {', '.join(map(str, (1, *sorted(tables.all_reduce))))}",
        tables.software,
        "; ".join(parts),
        "; ".join(str(source.get("source", "")) for source in tables.document.get("sources", ())),
    )


def all_described() -> list[tuple[str, ...]]:
    """Every shipped profile and all tables in a line; a damaged one says so."""
    rows = []
    for name, path in shipped_profiles().items():
        try:
            rows.append(describe(path))
        except InputError as error:
            rows.append((name, f"cannot be read: {error.message}", "", "", "", ""))
    return rows + [describe_tables(path) for path in shipped_tables().values()]
