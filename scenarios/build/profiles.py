"""The profile of a scenario: found, read, and checked against model, GPU and parallelism."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from scenarios.schema.cost import ProfileCostConfig
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.hints import did_you_mean
from simulator.errors import InputError
from simulator.timing.profile import Options, Profile, ProfileCost, read_profile

CHANGED = " (changed)"
"""Ends the name of a GPU or model that a scenario alters."""

GRAPH_TOKENS = 512
"""The largest batch for which vLLM captures CUDA graphs, unless twice max_num_seqs is less (vLLM 0.19)."""


@cache
def shipped_profiles() -> dict[str, Path]:
    """The profiles that come with batchlab, by name."""
    spec = find_spec("calibration")
    folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
    return {path.stem: path for folder in folders for path in sorted((Path(folder) / "profiles").glob("*.json"))}


def build_profile_cost(scenario: Scenario, cost: ProfileCostConfig) -> ProfileCost:
    """The cost model of a scenario's profile. InputError where there is none, or it is of something else."""
    profile = _find(scenario, cost)
    _check(scenario, profile)
    most = cost.max_capture_tokens
    if most is None:
        most = min(GRAPH_TOKENS, 2 * scenario.engine.parameter("max_num_seqs"))
    options = Options(cost.host_s, cost.host_per_seq_s, cost.cuda_graphs, most, cost.skew, cost.all_reduce)
    return ProfileCost(profile, options)


def _find(scenario: Scenario, cost: ProfileCostConfig) -> Profile:
    if cost.path is not None:
        path = Path(cost.path)
        if not path.exists():
            near = did_you_mean(path.name, [entry.name for entry in sorted(path.parent.glob("*.json"))])
            raise scenario.error("cost.path", f"no such file: {path}", near)
        return read_profile(path)
    shipped = shipped_profiles()
    if cost.name is not None:
        return read_profile(shipped[cost.name])
    model, gpu, ranks = _wanted(scenario)
    for name, path in shipped.items():
        if not name.startswith(gpu):  # they are named so; reading all would take a while
            continue
        profile = read_profile(path)
        if (profile.model, profile.gpu, profile.tensor_parallel) == (model, gpu, ranks):
            return profile
    what = f"no shipped profile is of {model} on {gpu} with tensor_parallel {ranks}"
    hint = f"give a path, or kind: roofline, which needs none; there are: {', '.join(shipped) or 'none'}"
    raise scenario.error("cost.kind", what, hint)


def _wanted(scenario: Scenario) -> tuple[str, str, int]:
    gpu = scenario.resolve_gpu().name.removesuffix(CHANGED)
    return scenario.resolve_model().name, gpu, scenario.hardware.tensor_parallel


def _check(scenario: Scenario, profile: Profile) -> None:
    """Kernels of one model say nothing of another."""
    model, gpu, ranks = _wanted(scenario)
    key = "cost.path" if isinstance(scenario.cost, ProfileCostConfig) and scenario.cost.path else "cost.name"
    for what, ours, theirs in (
        ("model", model, profile.model),
        ("GPU", gpu, profile.gpu),
        ("tensor_parallel", str(ranks), str(profile.tensor_parallel)),
    ):
        if ours != theirs and theirs:
            raise scenario.error(key, f"{profile.name} is a profile for {what} {theirs}; the scenario has {ours}", None)


def describe(path: Path) -> tuple[str, ...]:
    """A profile in a line: name, what it is of, where it comes from, what it was tested with."""
    profile = read_profile(path)
    errors = profile.document.get("errors", {})
    worst = ", ".join(f"{kind} {errors[kind]['random']['mape']:.1f} %" for kind in errors if "random" in errors[kind])
    sources = "; ".join(str(source.get("source", "")) for source in profile.document.get("sources", ()))
    return (
        path.stem,
        f"{profile.model} on {profile.gpu}",
        f"tensor_parallel {profile.tensor_parallel}",
        str(profile.document.get("software", "")),
        f"held out: {worst}" if worst else "held out: not tested",
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
