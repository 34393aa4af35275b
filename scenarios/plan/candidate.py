"""A candidate of a plan: its settings, the scenario that they make, and its price; and which candidates there are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import yaml

from scenarios.assembly.engines import caches_prefixes, engine_keys, groups_of, policy_label, resolved_yaml, with_policy
from scenarios.assembly.replica_parts import build
from scenarios.assembly.workloads import build_workload
from scenarios.runs.variants import as_variant, split_variants
from scenarios.schema.cost import AutoCostConfig, LinearCostConfig, ProfileCostConfig
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.hints import did_you_mean
from scenarios.studies.study import Axis, Setting, check_once, grid
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.policies import DEFAULT_POLICY, PLAIN_POLICY, rules_of

POLICY, GPU = "engine.policy", "hardware.gpu"
TENSOR_PARALLEL, PIPELINE_PARALLEL = "hardware.tensor_parallel", "hardware.pipeline_parallel"


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings by key, and their scenario; `left_out` are keys of the scenario that its policy does not take."""

    settings: Setting
    scenario: Scenario
    left_out: tuple[str, ...] = field(default=())

    @property
    def label(self) -> str:
        """The candidate in a few words: its values, with the last part of the key where that is needed."""
        return ", ".join(_worded(key, value) for key, value in self.settings.items()) or self.scenario.name

    def named_settings(self) -> Setting:
        """Return the settings, with the GPU and the policy even where they do not differ."""
        return {GPU: self.scenario.hardware.gpu, POLICY: self.scenario.engine.policy, **self.settings}

    def with_replicas(self, replicas: int | None) -> Scenario:
        """Return its scenario with so many replicas."""
        if replicas is None or replicas == self.scenario.replicas:
            return self.scenario
        return self.scenario.model_copy(update={"replicas": replicas})

    def with_settings(self, settings: Mapping[str, Any]) -> Candidate:
        """Return another candidate, in which these keys differ too. Raises InputError where they do not fit."""
        return make_candidate(self.scenario, {**self.settings, **settings})

    def gpus(self, replicas: int) -> int:
        """Count the GPUs of so many replicas; of a fleet of groups, all of theirs."""
        if self.scenario.fleet is None:
            return replicas * self.scenario.hardware.gpus
        return sum(group.replicas * group.scenario.hardware.gpus for group in groups_of(self.scenario))

    def usd_per_hour(self, replicas: int) -> float | None:
        """Return the price of these GPUs; None where it is not known."""
        total = 0.0
        for group in groups_of(self.scenario):
            price = group.scenario.resolve_gpu().usd_per_hour
            if price is None:
                return None
            count = replicas if self.scenario.fleet is None else group.replicas
            total += count * group.scenario.hardware.gpus * price
        return total


def make_candidate(base: Scenario, settings: Mapping[str, Any]) -> Candidate:
    """Make a candidate of settings over a scenario; keys of the engine that its policy does not take are left out.

    Raises InputError where a setting is none, or the scenario cannot be built.
    """
    engine = {_of_engine(key): value for key, value in settings.items() if _of_engine(key)}
    others = [f"{key}={json.dumps(value)}" for key, value in settings.items() if not _of_engine(key)]
    changed = load(base, others) if others else base
    policy = engine.pop("policy", base.engine.policy)
    if not isinstance(policy, str):
        raise InputError(f"engine.policy: must be text, not {policy!r}")
    if not engine and policy == base.engine.policy:
        return Candidate(dict(settings), changed)
    scenario, left_out = with_policy(changed, policy, engine)
    kept = {key: value for key, value in settings.items()
            if key.removeprefix("engine.").partition(".")[0] not in left_out}  # fmt: skip
    return Candidate(kept, scenario, left_out)


def _of_engine(key: str) -> str:
    """The key of the engine that a dotted key is; '' for any other, and for one inside a mapping of the engine."""
    own = key.removeprefix("engine.")
    return own if own != key and "." not in own else ""


def make_candidates(base: Scenario, settings: Sequence[Setting]) -> list[Candidate]:
    """Make the candidates of a grid, each once: settings that a policy does not take make no candidate of their own."""
    found: dict[str, Candidate] = {}
    for setting in settings:
        candidate = make_candidate(base, setting)
        found.setdefault(json.dumps(candidate.settings, sort_keys=True, default=str), candidate)
    return list(found.values())


def firsts(candidates: Sequence[Candidate]) -> list[int]:
    """Return, for each candidate, the place of the first one whose runs are the same to the last bit.

    Two names of one scheduler make the same runs where all else is equal, defaults and the server's host included.
    """
    rules = [rules_of(candidate.scenario.engine.policy) for candidate in candidates]
    names = {rule: {c.scenario.engine.policy for c, r in zip(candidates, rules, strict=True) if r == rule}
             for rule in rules}  # fmt: skip
    seen: dict[str, int] = {}
    return [
        seen.setdefault(_content(candidate, rule), place) if len(names[rule]) > 1 else place
        for place, (candidate, rule) in enumerate(zip(candidates, rules, strict=True))
    ]


def _content(candidate: Candidate, rule: str) -> str:
    """Return all that a run depends on, with the first name of the policy's rules in place of its own."""
    data = yaml.safe_load(resolved_yaml(candidate.scenario))
    data["engine"]["policy"] = rule
    return json.dumps({key: value for key, value in data.items() if key != "name"}, sort_keys=True, default=str)


def _worded(key: str, value: object) -> str:
    if key == POLICY and isinstance(value, str):
        return policy_label(value)
    if key == GPU:
        return str(value.get("name", "a GPU") if isinstance(value, dict) else value)
    if key == TENSOR_PARALLEL:
        return f"TP {value}"
    if key == PIPELINE_PARALLEL:
        return f"PP {value}"
    if isinstance(value, Mapping):
        value = value.get("kind") or value.get("name") or json.dumps(value)
    return f"{key.rpartition('.')[2]} {('on' if value else 'off') if isinstance(value, bool) else value}"


# Tensor parallel beside the GPUs of a plan: a larger GPU may do alone what another does in a group of four.

_MOST_GPUS = 8  # GPUs of a replica: those of one machine
_ABOVE = 4  # times the smallest size that fits
_HELD = ("max_num_seqs", "max_num_batched_tokens")


def with_sizes(base: Scenario, settings: Sequence[Setting]) -> tuple[list[Setting], list[str]]:
    """Vary tensor parallel in settings that name a GPU and no size, over what fits; and note it, with what is held.

    The sizes are 1, 2, 4, 8, from the smallest that fits to four times it, and the scenario's own. A linear cost, which
    knows no GPU, and a fleet of groups, in which each has its own, stay as they are.
    """
    open_ = [setting for setting in settings if GPU in setting and TENSOR_PARALLEL not in setting]
    if not open_ or base.fleet is not None or isinstance(base.cost, LinearCostConfig):
        return list(settings), []
    fitting: dict[str, list[int]] = {}
    found: list[Setting] = []
    for setting in settings:
        if GPU not in setting or TENSOR_PARALLEL in setting:
            found.append(setting)
            continue
        gpu = str(setting[GPU])
        if gpu not in fitting:
            fitting[gpu] = _fitting(base, setting) or [base.hardware.tensor_parallel]
        found += [{GPU: setting[GPU], TENSOR_PARALLEL: size, **setting} for size in fitting[gpu]]
    varied = ", ".join(f"{gpu} {' '.join(map(str, sizes))}" for gpu, sizes in fitting.items())
    notes = [f"tensor parallel is varied over what fits ({varied}); --vary {TENSOR_PARALLEL}=N holds it"]
    given = {key for setting in settings for key in setting}
    held = [f"{key} {base.engine.parameter(key)}" for key in _HELD if f"engine.{key}" not in given]
    policy = [] if POLICY in given else [f"policy {base.engine.policy}"]
    notes.append(f"held as in the scenario: {', '.join([*policy, *held])}; --vary or --find config tries others")
    return found, notes


def _fitting(base: Scenario, setting: Setting) -> list[int]:
    """Return the sizes of a replica on a GPU that are tried, ascending."""
    own = base.hardware.tensor_parallel
    sizes: list[int] = []
    for size in base.resolve_model().tensor_parallel_choices():
        if size > max(_MOST_GPUS, own) or (size != own and sizes and size > _ABOVE * sizes[0]):
            continue
        if size == own or size & (size - 1) == 0:
            try:
                build(make_candidate(base, {**setting, TENSOR_PARALLEL: size}).scenario)
            except InputError:  # it does not fit, or has no measured kernels
                continue
            sizes.append(size)
    return sizes


# The candidates of a plan: GPUs, policies and settings, as the flags name them or as they apply to the scenario.

CACHING, SEQS, BUDGET, REPLICAS = (
    "engine.enable_prefix_caching", "engine.max_num_seqs", "engine.max_num_batched_tokens", "replicas",
)  # fmt: skip
_SEQS = (32, 64, 128, 256, 512)
_BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
_POLICIES = (DEFAULT_POLICY, PLAIN_POLICY)  # besides the scenario's own: prompts beside the decodes, or before them
_MOST_CANDIDATES = 5000  # candidates


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
    if len(settings) > _MOST_CANDIDATES:
        raise InputError(
            f"{len(settings):,} candidates are too many", file="--vary", hint=f"at most {_MOST_CANDIDATES:,}"
        )
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
