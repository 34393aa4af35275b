"""`cost: {kind: profile}`: step times from measured kernels. Which profile, and whether it is of this hardware."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from annotated_types import doc
from pydantic import AfterValidator, Field, model_validator

from scenarios.schema.source.hints import did_you_mean, refusal
from scenarios.schema.strict import Strict

if TYPE_CHECKING:
    from scenarios.schema.cost.priced import Priced
    from simulator.timing.cost import CostModel
    from simulator.timing.profile import Profile

CHANGED = " (changed)"
"""Ends the name of a GPU or model that a scenario alters."""

GRAPH_TOKENS = 512
"""The largest batch for which vLLM captures CUDA graphs, unless twice max_num_seqs is less (vLLM 0.19)."""

Seconds = Annotated[float, Field(ge=0, le=1e6)]


def _shipped(name: str) -> str:
    from scenarios.profiles import shipped_profiles

    names = tuple(shipped_profiles())
    if name not in names:
        raise refusal(f"no profile called {name!r} comes with batchlab", did_you_mean(name, names))
    return name


class ProfileCostConfig(Strict):
    """Step times from measured kernels: a shipped profile by `name`, a file by `path`, or what fits the scenario."""

    kind: Annotated[Literal["profile"], doc("measured kernels")]
    name: Annotated[
        Annotated[str, AfterValidator(_shipped)] | None,
        doc("a profile of `batchlab list profiles`; null, without a path: the one that fits model and hardware"),
    ] = None
    path: Annotated[
        Annotated[str, Field(min_length=1, description="the path of a profile")] | None, doc("a profile of your own")
    ] = None
    host_s: Annotated[Seconds | None, doc("the host's work on a step; null: the profile's")] = None
    host_per_seq_s: Annotated[
        Seconds | None, doc("the host's work for each request of a step; null: the profile's")
    ] = None
    cuda_graphs: Annotated[bool, doc("small steps run as CUDA graphs, padded to a captured size")] = True
    max_capture_tokens: Annotated[
        Annotated[int, Field(ge=1, le=10**6)] | None,
        doc("largest captured size; null: vLLM's, the smaller of 512 and twice max_num_seqs"),
    ] = None
    skew: Annotated[bool, doc("decodes of unequal contexts cost more than equal ones")] = True
    all_reduce: Annotated[bool, doc("all-reduces of tensor parallelism cost time")] = True

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.name is not None and self.path is not None:
            raise refusal("a profile has either a name or a path", "keep one of the two", key="path")
        return self

    def build(self, scenario: Priced) -> CostModel:
        """The cost model of the profile. InputError where there is none, or it is of something else."""
        from simulator.timing.profile import Options, ProfileCost

        profile = self._find(scenario)
        self._check(scenario, profile)
        most = self.max_capture_tokens
        if most is None:
            most = min(GRAPH_TOKENS, 2 * scenario.engine.parameter("max_num_seqs"))
        options = Options(self.host_s, self.host_per_seq_s, self.cuda_graphs, most, self.skew, self.all_reduce)
        return ProfileCost(profile, options)

    def _find(self, scenario: Priced) -> Profile:
        from scenarios.profiles import shipped_profiles
        from simulator.timing.profile import read_profile

        shipped = shipped_profiles()
        if self.name is not None:
            return read_profile(shipped[self.name])
        if self.path is not None:
            path = Path(self.path)
            if not path.exists():
                near = did_you_mean(path.name, [entry.name for entry in sorted(path.parent.glob("*.json"))])
                if path.name in shipped:
                    near = f"a shipped profile is given by its name: `cost.name={path.name}`"
                raise scenario.error("cost.path", f"no such file: {path}", near)
            return read_profile(path)
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

    def _check(self, scenario: Priced, profile: Profile) -> None:
        """Refuse a profile of another model, GPU or parallelism: its kernels say nothing of these."""
        model, gpu, ranks = _wanted(scenario)
        key = "cost.path" if self.path else "cost.name"
        for what, ours, theirs in (
            ("model", model, profile.model),
            ("GPU", gpu, profile.gpu),
            ("tensor_parallel", str(ranks), str(profile.tensor_parallel)),
        ):
            if ours != theirs and theirs:
                text = f"{profile.name} is a profile for {what} {theirs}; the scenario has {ours}"
                raise scenario.error(key, text, None)


def _wanted(scenario: Priced) -> tuple[str, str, int]:
    """Model, GPU and tensor_parallel that the profile has to be of."""
    gpu = scenario.resolve_gpu().name.removesuffix(CHANGED)
    return scenario.resolve_model().name, gpu, scenario.hardware.tensor_parallel
