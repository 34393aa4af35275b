"""The candidates of a plan: GPUs, policies and settings, as the flags name them or as they apply to the scenario."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from scenarios.assembly.replica_parts import build
from scenarios.assembly.unused_keys import caches_prefixes, engine_keys
from scenarios.assembly.workloads import build_workload
from scenarios.plan.candidate import (
    GPU,
    PIPELINE_PARALLEL,
    POLICY,
    TENSOR_PARALLEL,
    Candidate,
    make_candidate,
    make_candidates,
)
from scenarios.plan.sizes import with_sizes
from scenarios.runs.variants import as_variant, split_variants
from scenarios.schema.cost.auto import AutoCostConfig
from scenarios.schema.cost.linear import LinearCostConfig
from scenarios.schema.cost.profile import ProfileCostConfig
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.hints import did_you_mean
from scenarios.studies.study_axes import Axis, Setting, check_once, grid
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.policies import DEFAULT_POLICY, PLAIN_POLICY

CACHING, SEQS, BUDGET, REPLICAS = (
    "engine.enable_prefix_caching", "engine.max_num_seqs", "engine.max_num_batched_tokens", "replicas",
)  # fmt: skip
_SEQS = (32, 64, 128, 256, 512)
_BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
_POLICIES = (DEFAULT_POLICY, PLAIN_POLICY)  # besides the scenario's own: prompts beside the decodes, or before them
_MOST = 5000  # candidates


@dataclass(frozen=True, slots=True)
class Space:
    """The candidates, those that cannot be built with the reason, and what a reader must know of all of them."""

    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[Candidate, str], ...]
    notes: tuple[str, ...]


def space(
    base: Scenario, *, gpus: Sequence[str] = (), policies: str = "", axes: Sequence[Axis] = (), by_default: bool = False
) -> Space:
    """Make the grid of GPUs, policies and axes; with `by_default`, of the settings that apply where no axis is given.

    GPUs are compared on an equal footing: where one has no profile, all take the roofline, and a note says so. Unless
    an axis holds it, tensor parallel varies with the GPU.
    Raises InputError for what no scenario can be, naming the flag.
    """
    settings = _grid(base, gpus, policies, axes, by_default)
    settings, notes = _equal_footing(base, settings)
    if not by_default:  # the best settings split the same GPUs in other ways
        settings, sizes = with_sizes(base, settings)
        notes = [*notes, *sizes]
    every = make_candidates(base, settings)
    _check_taken(every, [key for axis in axes for key in axis.keys])
    found, refused = [], []
    for candidate in every:
        try:
            build(candidate.scenario)
        except InputError as error:
            refused.append((candidate, f"{error.message}."))
        else:
            found.append(candidate)
    if not found and len(refused) == 1:
        build(refused[0][0].scenario)  # raises: a scenario that cannot be run is bad input
    for key in {key: None for candidate in found for key in candidate.left_out}:
        names = dict.fromkeys(c.scenario.engine.policy for c in found if key in c.left_out)
        if key in base.engine.model_fields_set:
            notes.append(f"{', '.join(names)} does not take {key}: left out there")
    return Space(tuple(found), tuple(refused), tuple(notes))


def _grid(base: Scenario, gpus: Sequence[str], policies: str, axes: Sequence[Axis], by_default: bool) -> list[Setting]:
    keys = [key for axis in axes for key in axis.keys]
    for key, flag, given in ((GPU, "--gpus", gpus), (POLICY, "--policies", policies)):
        if given and key in keys:
            raise InputError(f"{key} is varied already", file=flag, hint="name its values once")
    check_once(keys, "--vary")
    settings = grid([_gpu_axis(gpus), *axes] if gpus else list(axes))
    if policies:
        own = [_policy_setting(base, text) for text in split_variants(policies)]
        settings = [{**setting, **policy} for setting in settings for policy in own]
    if by_default and not axes:
        settings = [whole for setting in settings for whole in _applicable(base, setting, bool(policies))]
    if len(settings) > _MOST:
        raise InputError(f"{len(settings):,} candidates are too many", file="--vary", hint=f"at most {_MOST:,}")
    return settings


def _check_taken(candidates: Sequence[Candidate], keys: Sequence[str]) -> None:
    """Raise InputError for a varied key of the engine that no candidate's policy takes."""
    for key in keys:
        if not key.startswith("engine.") or any(key in candidate.settings for candidate in candidates):
            continue
        known = dict.fromkeys(own for each in candidates for own in engine_keys(each.scenario.engine.policy, {}))
        what = f"no policy here takes {key}"
        raise InputError(what, file=f"--vary {key}", hint=did_you_mean(key.removeprefix("engine."), tuple(known)))


def _gpu_axis(gpus: Sequence[str]) -> Axis:
    for name in gpus:
        try:
            find_gpu(name)
        except InputError as error:
            raise InputError(error.message, file="--gpus", hint=error.hint) from None
    return Axis((GPU,), tuple((name,) for name in dict.fromkeys(gpus)))


def _policy_setting(base: Scenario, text: str) -> Setting:
    variant = as_variant(text)
    scenario = make_candidate(base, {POLICY: variant.policy}).scenario
    taken = engine_keys(scenario.engine.policy, dict(variant.settings))
    for key in variant.settings:
        if key not in taken:
            raise InputError(f"{text}: {variant.policy} does not take {key}", file="--policies")
    return {POLICY: variant.policy, **{f"engine.{key}": value for key, value in variant.settings.items()}}


def _applicable(base: Scenario, setting: Setting, has_policies: bool) -> Iterator[Setting]:
    """Yield the default space around a setting: batch, step, policy, caching, and the GPUs of a replica."""
    around = make_candidate(base, setting).scenario
    policies = [around.engine.policy] if has_policies else [*dict.fromkeys((around.engine.policy, *_POLICIES))]
    content = build_workload(around).content is not None
    for split in _splits(around):
        for policy in policies:
            takes = engine_keys(policy, {})
            axes = [
                Axis((key,), tuple((value,) for value in values))
                for key, values in ((SEQS, _SEQS), (BUDGET, _BUDGETS))
                if key.removeprefix("engine.") in takes
            ]
            if content and caches_prefixes(policy):
                axes.append(Axis((CACHING,), ((False,), (True,))))
            for found in grid(axes):
                yield {**setting, **split, POLICY: policy, **found}


def _splits(around: Scenario) -> list[Setting]:
    """Split the same GPUs into replicas of other sizes: 4 as one of four, two of two. A fleet stays as it is.

    Where the scenario has a pipeline, the GPUs of a replica are also split into stages of other sizes.
    """
    if around.fleet is not None:
        return [{}]
    own, gpus = around.hardware, around.hardware.gpus * around.replicas
    sizes = [n for n in around.resolve_model().tensor_parallel_choices() if gpus % n == 0 and n <= 8]
    if own.pipeline_parallel > 1:
        depths = [n for n in range(1, min(gpus, around.resolve_model().layers) + 1) if gpus % n == 0]
        shapes = [(size, stages) for size in sizes for stages in depths if gpus % (size * stages) == 0]
    else:
        shapes = [(size, 1) for size in sizes]
    if len(shapes) < 2 or gpus == 1:
        return [{}]
    found: list[Setting] = [{}]
    for size, stages in shapes:
        depth = {PIPELINE_PARALLEL: stages} if own.pipeline_parallel > 1 else {}
        link = {"hardware.pipeline_link": None} if depth and stages == 1 and own.pipeline_link else {}
        if own.pp_layer_partition and stages != own.pipeline_parallel:
            link |= {"hardware.pp_layer_partition": None}  # it is one for as many stages
        setting: Setting = {TENSOR_PARALLEL: size, **depth, **link, REPLICAS: gpus // (size * stages)}
        with suppress(InputError):  # it does not fit, or has no measured kernels
            if (size, stages) != (own.tensor_parallel, own.pipeline_parallel):
                build(make_candidate(around, setting).scenario)
                found.append(setting)
    return found


def _equal_footing(base: Scenario, settings: list[Setting]) -> tuple[list[Setting], list[str]]:
    """Return the settings with step times of one kind for all GPUs, and notes on them."""
    gpus = dict.fromkeys(str(setting[GPU]) for setting in settings if isinstance(setting.get(GPU), str))
    if len(gpus) < 2:
        return settings, []
    if isinstance(base.cost, LinearCostConfig):
        note = "warning: a linear cost takes the same time on every GPU: they differ only in memory and price"
        return settings, [note]
    if not isinstance(base.cost, (ProfileCostConfig, AutoCostConfig)):
        return settings, []
    pinned = isinstance(base.cost, ProfileCostConfig) and (base.cost.name or base.cost.path) is not None
    without = [gpu for gpu in gpus if not _has_profile(load(base, ["cost={kind: profile}", f"{GPU}={gpu}"]))]
    if without:
        note = (
            f"warning: there is no profile of {base.resolve_model().name} on {', '.join(without)}: all GPUs take step "
            "times by roofline, so that they can be compared; leave these out to compare measured kernels"
        )
        return [{**setting, "cost": {"kind": "roofline"}} for setting in settings], [note]
    return ([{**setting, "cost": {"kind": "profile"}} for setting in settings] if pinned else settings), []


def _has_profile(scenario: Scenario) -> bool:
    try:
        scenario.cost.build(scenario)
    except InputError:
        return False
    return True
