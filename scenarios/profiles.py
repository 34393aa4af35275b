"""The cost profiles that come with batchlab: where they are, and what each is of."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from simulator.errors import InputError, did_you_mean
from simulator.timing.profile import Profile, read_profile


@cache
def shipped_profiles() -> dict[str, Path]:
    """The profiles that come with batchlab, by name."""
    spec = find_spec("calibration")
    folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
    return {path.stem: path for folder in folders for path in sorted((Path(folder) / "profiles").glob("*.json"))}


def profile_path(given: str) -> Path:
    """The file of a shipped profile's name, or the path as it is given. Raises InputError where there is neither."""
    shipped = shipped_profiles()
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
        raise InputError(f"no profile of the name {given!r}, and no such file", hint=hint)
    return path


def held_out_mape(profile: Profile) -> dict[str, float]:
    """Mean absolute error, in percent, of each kind of kernel on rows that the fit had not seen; empty if untested."""
    errors: Mapping[str, Mapping[str, Mapping[str, float]]] = profile.document.get("errors", {})
    return {kind: each["random"]["mape"] for kind, each in errors.items() if "random" in each}


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


def all_described() -> list[tuple[str, ...]]:
    """Every shipped profile in a line; a damaged one says so."""
    rows = []
    for name, path in shipped_profiles().items():
        try:
            rows.append(describe(path))
        except InputError as error:
            rows.append((name, f"cannot be read: {error.message}", "", "", "", ""))
    return rows
