"""The `cost:` of a scenario: where step times come from. A kind is one class here, and its place in their union.

The config of a kind has `kind`, its other keys, and `build(scenario)`, which makes the cost model of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Self

from annotated_types import doc
from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from scenarios.schema.base import Strict, by_word
from scenarios.schema.source.hints import did_you_mean, refusal
from simulator.errors import InputError
from simulator.parameters import CHANGED, CLASS_PATTERN, file_of

if TYPE_CHECKING:
    from simulator.hardware.gpus import Gpu
    from simulator.hardware.models import Model
    from simulator.timing.cost import CostModel
    from simulator.timing.host import Host
    from simulator.timing.profile import Profile


# The scenario as its cost model sees it.

_HOST_KEYS = {"host_s": "step_s", "host_per_seq_s": "per_seq_s"}


def host_key(key: str) -> str | None:
    """A hint for the host's times, which stand at the top level for all kinds of cost; None for any other word."""
    return f"it is `host: {{{_HOST_KEYS[key]}: ...}}`, at the top level" if key in _HOST_KEYS else None


class _Hardware(Protocol):
    @property
    def tensor_parallel(self) -> int: ...

    @property
    def enable_expert_parallel(self) -> bool: ...


class _Engine(Protocol):
    @property
    def policy(self) -> str: ...

    @property
    def release(self) -> str | None:
        """The release of the policy's server; None for the newest."""

    def parameter(self, key: str, default: Any = None) -> Any:
        """A parameter of the policy: as given, or its default; `default` where it has neither."""


class Priced(Protocol):
    """A scenario, as its cost model sees it."""

    @property
    def hardware(self) -> _Hardware: ...

    @property
    def engine(self) -> _Engine: ...

    @property
    def host(self) -> object | None:
        """The host as given; None where nothing is."""

    def resolve_host(self) -> Host:
        """The host as given, completed by the engine's."""

    def resolve_model(self) -> Model: ...

    def resolve_gpu(self) -> Gpu: ...

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """An error about a key (dotted, as `cost.path`), placed where the scenario's source wrote it."""


# `cost: {kind: linear}`: a few coefficients.

Seconds = Annotated[float, Field(ge=0, le=1e6)]


class LinearCostConfig(Strict):
    """step_s = base_s + per_token_s * scheduled_tokens + per_context_token_s * context_tokens.

    A step that proposes drafts takes `per_drafted_token_s` for each of them more. Where the scenario gives `host`, that
    comes on top.
    """

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["linear"], doc("coefficients of your own")]
    base_s: Annotated[Seconds, doc("time of every step")]
    per_token_s: Annotated[Seconds, doc("time for each token computed in the step")]
    per_context_token_s: Annotated[Seconds, doc("time for each KV token of the step's requests, after the step")]
    per_drafted_token_s: Annotated[Seconds, doc("time for each draft proposed, where tokens are drafted")] = 0.0

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the time of drafts out where there is none."""
        found: dict[str, Any] = dump(self)
        return found if self.per_drafted_token_s else {k: v for k, v in found.items() if k != "per_drafted_token_s"}

    def build(self, scenario: Priced) -> CostModel:
        """The cost model, which asks nothing of the scenario but its `host`."""
        from simulator.timing.formula_cost import Linear
        from simulator.timing.host import WithHost

        linear = Linear(self.base_s, self.per_token_s, self.per_context_token_s, self.per_drafted_token_s)
        return linear if scenario.host is None else WithHost(linear, scenario.resolve_host())

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: it is in `base_s`."""
        return False

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.per_token_s + self.per_context_token_s == 0:
            raise refusal("a step would take no time", "at least one of the three must be above 0", key="base_s")
        return self


# `cost: {kind: roofline}`: step times from the dimensions of model and GPU.


class RooflineCostConfig(Strict):
    """Step times from the dimensions of model and GPU."""

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["roofline"], doc("figures of model and GPU")]

    def build(self, scenario: Priced) -> CostModel:
        """The cost model of the scenario's model on its GPUs."""
        from simulator.timing.formula_cost import Roofline, WindowedRoofline

        host, model = scenario.resolve_host(), scenario.resolve_model()
        plain = Roofline(
            model,
            scenario.resolve_gpu(),
            scenario.hardware.tensor_parallel,
            host_s=host.step_s,
            host_per_seq_s=host.per_seq_s,
        )
        return WindowedRoofline(plain) if model.windowed_layers else plain

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default."""
        return True


# `cost: {kind: path.py:Class}`: a cost model of the user's own.


class OwnCostConfig(Strict):
    """A cost model of the user's own. Every key but `kind` is a parameter of its class."""

    model_config = ConfigDict(extra="allow")

    kind: Annotated[
        str,
        Field(pattern=CLASS_PATTERN, description="the path of a file and a class in it"),
        doc("class of your own, as `path.py:Class`"),
    ]

    @property
    def file(self) -> Path:
        """The file of the class."""
        file = file_of(self.kind)
        assert file is not None  # as the pattern says
        return file

    def build(self, scenario: Priced) -> CostModel:
        """The user's model, for the scenario's model and GPUs; with a host where the scenario gives one."""
        from simulator.timing.host import WithHost
        from simulator.timing.own_cost import load_own_cost

        ranks = scenario.hardware.tensor_parallel
        given: dict[str, Any] = dict(self.model_extra or {})
        own = load_own_cost(self.kind, given, scenario.resolve_model(), scenario.resolve_gpu(), ranks)
        return own if scenario.host is None else WithHost(own, scenario.resolve_host())

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: the class has it in its own seconds."""
        return False


# `cost: {kind: profile}`: step times from measured kernels. Which profile, and whether it is of this hardware.

ASSUMED = "assumed"
"""The source of a profile's host times, if they were not measured with it."""

HOPPER, TRITON_MXFP4_SINCE = ("h100", "h200"), (0, 12)
FUSED_UNDER = "trtllm"  # the engine whose tables hold the kernel of fused all-reduces
GRAPH_TOKENS = 512
"""The largest batch for which vLLM captures CUDA graphs, unless twice max_num_seqs is less (vLLM 0.19)."""


def _shipped(name: str) -> str:
    from scenarios.profiles import shipped_profiles, shipped_tables

    names = (*shipped_profiles(), *shipped_tables())
    if name not in names:
        raise refusal(f"no profile or tables called {name!r} come with batchlab", did_you_mean(name, names))
    return name


class ProfileCostConfig(Strict):
    """Step times from measured kernels: a shipped profile by `name`, a file by `path`, or what fits the scenario.

    A profile that was fitted to the scenario's model fits best. Where there is none, the model is composed from tables
    of its GPU: those of the policy's engine that hold all its parts, of the version nearest to `engine.version` or the
    newest. What they all lack comes from tables of other engines on the same GPU, which `provenance` calls borrowed;
    where that is not enough, these come first. What nobody measured is refused by name.
    """

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["profile"], doc("measured kernels")]
    name: Annotated[
        Annotated[str, AfterValidator(_shipped)] | None,
        doc("a profile or tables (`batchlab list profiles`); null, without a path: those that fit model and hardware"),
    ] = None
    path: Annotated[
        Annotated[str, Field(min_length=1, description="the path of a profile")] | None,
        doc("a profile of your own, or tables (.json.gz)"),
    ] = None
    cuda_graphs: Annotated[bool, doc("small steps run as CUDA graphs, padded to a captured size")] = True
    max_capture_tokens: Annotated[
        Annotated[int, Field(ge=1, le=10**6)] | None,
        doc("largest captured size; null: vLLM's, the smaller of 512 and twice max_num_seqs"),
    ] = None
    skew: Annotated[bool, doc("decodes of unequal contexts cost more than those of equal contexts")] = True
    all_reduce: Annotated[bool, doc("all-reduces of tensor parallelism cost time")] = True
    expert_load: Annotated[
        Literal["even", "balanced", "power_law_1.01", "power_law_1.2"] | None,
        doc("how tokens spread over the experts of tables; null: even, or power_law_1.01 where that takes longer"),
    ] = None
    moe_backend: Annotated[
        Literal["auto", "marlin", "triton", "flashinfer_cutlass", "flashinfer_trtllm"],
        doc("kernels that compute the experts of tables, as vLLM's --moe-backend; auto: those that vLLM chooses"),
    ] = "auto"
    fuse_allreduce_rms: Annotated[
        bool | None,
        doc(
            "all-reduces of tables hold the norms of small steps, as vLLM's pass_config; null: as the version has them"
        ),
    ] = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.name is not None and self.path is not None:
            raise refusal("a profile has either a name or a path", "keep one of the two", key="path")
        return self

    def build(self, scenario: Priced) -> CostModel:
        """The cost model of the profile. InputError where there is none, or it is of something else."""
        from scenarios.servers import server_of
        from simulator.timing.host import layer_launch_s
        from simulator.timing.profile import Options, ProfileCost

        profile = self.found(scenario)
        most = self.max_capture_tokens
        if most is None:
            most = min(GRAPH_TOKENS, 2 * scenario.engine.parameter("max_num_seqs"))
        host = scenario.resolve_host() if scenario.host is not None or self._takes_host(profile) else None
        step_s, per_seq_s = (None, None) if host is None else (host.step_s, host.per_seq_s)
        options = Options(step_s, per_seq_s, self.cuda_graphs, most, self.skew, self.all_reduce)
        if "parts" in profile.document:  # of kernels alone: nothing in them waits for a launch
            server = server_of(scenario.engine.policy)
            holds = self.max_capture_tokens is not None or server.prompt_graphs
            held = most if self.cuda_graphs and holds else 0
            model, gpu = scenario.resolve_model(), scenario.resolve_gpu()
            times = server.prompt_times(scenario.engine.release)
            layer_s = layer_launch_s(model, gpu, compiled=server.prompt_graphs)
            if server.untabled is not None and (own := server.untabled(model, gpu)) is not None:
                times, layer_s = times * own.prompt_times, own.layer_launch_s
            options = replace(options, layer_launch_s=layer_s, launched_above=held, prompt_times=times)
        return ProfileCost(profile, options)

    def found(self, scenario: Priced) -> Profile:
        """The profile that fits the scenario. InputError where there is none, or it is of something else."""
        profile = self._find(scenario)
        self._check(scenario, profile)
        self._check_experts(scenario, profile)
        self._check_fusion(scenario, profile)
        return profile

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: measured whole steps have it already."""
        if self.path is None:
            return True  # shipped profiles are of kernels
        try:
            return self._takes_host(self._find(scenario))
        except InputError:
            return True  # said when the cost is built

    @staticmethod
    def _takes_host(profile: Profile) -> bool:
        return bool(profile.document["host"].get("from") == ASSUMED)

    def _find(self, scenario: Priced) -> Profile:
        from scenarios.profiles import TABLES_SUFFIX, shipped_profile, shipped_profiles, shipped_tables
        from simulator.timing.profile import read_profile

        shipped, tables = shipped_profiles(), shipped_tables()
        if self.name is not None:
            if self.name in tables:
                return self._composed(scenario, tables[self.name], "cost.name")
            return shipped_profile(self.name)
        if self.path is None:
            return self._fitting(scenario)
        path = Path(self.path)
        if not path.exists():
            near = did_you_mean(path.name, [entry.name for entry in sorted(path.parent.glob("*.json*"))])
            if path.name in shipped or path.name in tables:
                near = f"what is shipped is given by its name: `cost.name={path.name}`"
            raise scenario.error("cost.path", f"no such file: {path}", near)
        if path.name.endswith(TABLES_SUFFIX):
            return self._composed(scenario, path, "cost.path")
        return read_profile(path)

    def _composed(self, scenario: Priced, path: Path, key: str, lenders: Sequence[Path] = ()) -> Profile:
        """The scenario's model from the tables of that file. InputError about `key` where they lack a part."""
        from simulator.timing.tables import compose, read_tables
        from simulator.timing.tables.experts import USUAL

        model, gpu, hardware = scenario.resolve_model(), scenario.resolve_gpu(), scenario.hardware
        others = tuple(map(read_tables, lenders))
        tables, how = read_tables(path), (self._backend(scenario), others, hardware.enable_expert_parallel)
        fused = read_tables(held) if (held := self._fused(scenario)) is not None else None
        try:
            return compose(tables, model, gpu, hardware.tensor_parallel, self.expert_load or USUAL, *how, fused)
        except InputError as error:
            raise scenario.error(key, error.message, error.hint) from None

    def _backend(self, scenario: Priced) -> str:
        """The kernels of the experts: as asked for, or those that the version chooses where tables have a newer one's.

        vLLM has the package of Triton's mxfp4 kernels since 0.12 (vllm pull request 28788). Before, Hopper computes
        mxfp4 by Marlin (`get_mxfp4_backend`, vllm/model_executor/layers/quantization/mxfp4.py:136 of 0.11.2), as later
        versions do with VLLM_MXFP4_USE_MARLIN=1 alone (line 156 of 0.16.0).
        """
        from scenarios.servers import server_of
        from scenarios.servers.vllm import VLLM

        asks, engine = self.moe_backend, scenario.engine
        if (
            asks != "auto"
            or server_of(engine.policy).kernels != VLLM.kernels
            or scenario.resolve_gpu().name not in HOPPER
        ):
            return asks
        version = str(engine.parameter("version", "")).split(".")[:2]
        old = len(version) == 2 and all(map(str.isdigit, version)) and tuple(map(int, version)) < TRITON_MXFP4_SINCE
        return "marlin" if old and scenario.resolve_model().expert_dtype == "mxfp4" else asks

    def _fused(self, scenario: Priced) -> Path | None:
        """The tables of all-reduces that hold the norms, where the engine has them so; None where norms stand apart.

        They are FlashInfer's, whose kernel TensorRT-LLM's tables have. By default those of dense models are taken so
        alone: runs of models with experts under vLLM 0.18 and 0.19 took as long as with norms apart (docs/served.md).
        """
        from scenarios.profiles import tables_for
        from scenarios.servers import server_of

        engine, asked = scenario.engine, self.fuse_allreduce_rms
        server = server_of(engine.policy)
        if asked is None:
            asked = server.fuses(engine.release) and not scenario.resolve_model().experts
        if server.fuses_since is None or not asked:
            return None
        own, _ = tables_for(scenario.resolve_gpu().name.removesuffix(CHANGED), FUSED_UNDER)
        return next((path for path in own if f"-{FUSED_UNDER}-" in path.name), None)

    def _fitting(self, scenario: Priced) -> Profile:
        """The shipped profile of model, GPU and parallelism; else what the GPU's tables amount to.

        Shipped profiles are of vLLM's kernels: tables of another engine of its own come before them.
        """
        from scenarios.profiles import shipped_profile, shipped_profiles, shipped_tables, tables_for
        from scenarios.servers import server_of
        from scenarios.servers.vllm import VLLM
        from simulator.timing.profile import described, refusal

        shipped, tables = shipped_profiles(), shipped_tables()
        model, gpu, ranks = scenario.resolve_model(), scenario.resolve_gpu(), scenario.hardware.tensor_parallel
        of_gpu = gpu.name.removesuffix(CHANGED)
        named = [name for name in shipped if name.startswith(of_gpu)]  # reading all would take a while
        profiles = (profile for profile in map(shipped_profile, named) if refusal(profile, model, gpu, ranks) is None)
        engine = scenario.engine
        kernels = server_of(engine.policy).kernels
        own, others = tables_for(of_gpu, kernels, str(engine.parameter("version")))
        if (kernels == VLLM.kernels or not own) and (fitted := next(profiles, None)) is not None:
            return fitted
        lacking: InputError | None = None
        every = (*own, *others)
        for path, lenders in (*((p, ()) for p in own), *((p, every) for p in every)):
            try:
                return self._composed(scenario, path, "cost.kind", [each for each in lenders if each != path])
            except InputError as error:
                lacking = lacking or error
        if (fitted := next(profiles, None)) is not None:
            return fitted
        if lacking is not None:
            raise lacking
        what = f"no shipped profile is of {described(model)} on {gpu.name} with tensor_parallel {ranks}"
        there = ", ".join((*shipped, *tables)) or "none"
        raise scenario.error("cost.kind", what, f"give a path, or kind: roofline, which needs none; there are: {there}")

    def _check_experts(self, scenario: Priced, profile: Profile) -> None:
        """Refuse what is said of experts where it would change nothing."""
        for key in ("expert_load", "moe_backend"):
            if getattr(self, key) != type(self).model_fields[key].default:
                model = scenario.resolve_model()
                if not model.experts:
                    raise scenario.error(f"cost.{key}", f"the model {model.name} has no experts", "leave the key out")
                if "parts" not in profile.document:
                    what = f"{profile.name} is a fitted profile; it says nothing of other kernels or loads of experts"
                    raise scenario.error(f"cost.{key}", what, "give tables by cost.name, or leave the key out")

    def _check_fusion(self, scenario: Priced, profile: Profile) -> None:
        """Refuse what is said of all-reduces where it would change nothing."""
        from scenarios.servers import server_of
        from simulator.timing.tables.all_reduces import FUSED, why_unfused

        if self.fuse_allreduce_rms is None:
            return
        key, policy = "cost.fuse_allreduce_rms", scenario.engine.policy
        if server_of(policy).fuses_since is None:
            raise scenario.error(key, f"it is vLLM's, and the policy is {policy}", "leave the key out")
        if scenario.hardware.tensor_parallel == 1:
            raise scenario.error(key, "one GPU reduces nothing", "leave the key out")
        if "parts" not in profile.document:
            what = f"{profile.name} is a fitted profile; it says nothing of other all-reduces"
            raise scenario.error(key, what, "give tables by cost.name, or leave the key out")
        if self.fuse_allreduce_rms and not any(name.startswith(FUSED) for name, _, _ in profile.document["parts"]):
            held = f"the times of {profile.name} hold norms in other parts", "give vLLM's tables by cost.name"
            what, hint = why_unfused(profile.gpu, scenario.hardware.tensor_parallel) or held
            raise scenario.error(key, what, f"{hint}; or leave the key out")

    def _check(self, scenario: Priced, profile: Profile) -> None:
        """Refuse a profile of something else: its kernels say nothing of the scenario's."""
        from simulator.timing.profile import refusal

        ranks = scenario.hardware.tensor_parallel
        refused = refusal(profile, scenario.resolve_model(), scenario.resolve_gpu(), ranks)
        if refused is not None:
            raise scenario.error("cost.path" if self.path else "cost.name", refused, None)


# `cost: {kind: auto}`: the best step times that there are.


class AutoCostConfig(Strict):
    """Measured kernels as `kind: profile` finds them, else `kind: roofline`.

    In this order: a profile that was fitted to model and GPU; tables of the GPU and the policy's engine, of the version
    nearest to `engine.version`; tables of other engines on that GPU; figures of model and GPU. A run's `scenario.yaml`
    and `provenance` say which it was. A policy that is a server's takes this kind where `cost` is left out.
    """

    elsewhere: ClassVar = staticmethod(host_key)

    kind: Annotated[Literal["auto"], doc("measured kernels if there are any, else figures of model and GPU")]

    def chosen(self, scenario: Priced) -> ProfileCostConfig | RooflineCostConfig:
        """Return the kind of cost that stands for this one.

        Tables stand there by name, but for those that borrow parts from others.
        """
        from simulator.timing.tables import parts_of

        measured = ProfileCostConfig(kind="profile")
        try:
            profile = measured.found(scenario)
        except InputError:
            return RooflineCostConfig(kind="roofline")
        borrows = any(part.how == "borrowed" for part in parts_of(profile))
        return measured if borrows else ProfileCostConfig(kind="profile", name=profile.name)

    def build(self, scenario: Priced) -> CostModel:
        """The cost model of what is chosen: figures of model and GPU price every model."""
        return self.chosen(scenario).build(scenario)

    def takes_host(self, scenario: Priced) -> bool:
        """Return whether the engine's host is added by default: all kinds that are chosen lack it."""
        return True


# Every kind of `cost:`.

BuiltInCost = Annotated[
    LinearCostConfig | RooflineCostConfig | ProfileCostConfig | AutoCostConfig,
    Field(discriminator="kind"),
]


def _tag(value: object) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return "<own>" if isinstance(kind, str) and ".py" in kind else "<built-in>"


Cost = Annotated[
    Annotated[BuiltInCost, Tag("<built-in>")] | Annotated[OwnCostConfig, Tag("<own>")],
    Discriminator(_tag),
]


_PLACES = {
    "linear": "scenarios.schema.cost:LinearCostConfig",
    "roofline": "scenarios.schema.cost:RooflineCostConfig",
    "profile": "scenarios.schema.cost:ProfileCostConfig",
    "auto": "scenarios.schema.cost:AutoCostConfig",
}
cost_at = by_word("kind", _PLACES)
"""The place of a built-in kind's config, for `later`."""
