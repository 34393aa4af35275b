"""The scenario as data: every key of the YAML, its type, its range and its default.

What is wrong with a value is said by pydantic and turned into file:line:column by `scenarios.schema.loader`; what only
goes wrong together is said by the validators here, through `refusal`.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from annotated_types import doc
from pydantic import Discriminator, Field, PrivateAttr, Tag, ValidationInfo, model_validator

from scenarios.schema.allowed import model_schema, router_schema
from scenarios.schema.base import JsonSchema, NameOrMapping, Strict, later, refusing
from scenarios.schema.cost import RooflineCostConfig, cost_at
from scenarios.schema.engine import Engine, NamedEngine, Seconds, engine_schema, named_at
from scenarios.schema.hardware import Hardware
from scenarios.schema.left_out import Around, Defaults, defaults_of, is_servers
from scenarios.schema.router import Router, RouterConfig, as_config
from scenarios.schema.source.explain import Finding, Origin
from scenarios.schema.source.hints import did_you_mean, refusal
from simulator.errors import InputError
from simulator.hardware.gpus import Gpu, gpu_of
from simulator.hardware.models import Model, model_of
from simulator.hardware.stages import layers_of_stages
from simulator.parameters import CLASS_PATTERN, split_class
from simulator.policies.parts.preemption import needs_host

if TYPE_CHECKING:
    from simulator.metrics.warmup_cut import WarmupCut
    from simulator.results.records import Records


# The `measure:` of a scenario: the part of a run that is measured.


def _moved(key: str) -> str | None:
    return "is the top-level `front_end: {fixed_s: ...}`" if key == "front_end_s" else None


class Measure(Strict):
    """The window over which metrics are taken, and metrics of one's own."""

    elsewhere: ClassVar = staticmethod(_moved)

    warmup_s: Annotated[
        Annotated[Seconds, Tag("<number>")] | Annotated[Literal["auto"], Tag("<word>")],
        Discriminator(lambda value: "<word>" if value == "auto" else "<number>"),
        Field(description="a number of at least 0, or auto"),
        doc(
            "time cut off at the start; `auto`: until TTFT and TPOT have settled, by MSER-5, and the summary says when"
        ),
    ] = 0.0
    cooldown_s: Annotated[Seconds, doc("time cut off at the end")] = 0.0
    metrics: Annotated[
        list[Annotated[str, Field(pattern=CLASS_PATTERN, description="the path of a file and a name in it")]],
        doc("metrics of your own, each `path.py:NAME`"),
    ] = Field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        """The files of one's own metrics."""
        return [Path(split_class(name)[0]) for name in self.metrics]

    def warmup(self, records: "Records") -> "WarmupCut | None":
        """The warm-up that was found in a run; None where it is given in seconds."""
        from simulator.metrics.warmup_cut import warmup_cut

        return warmup_cut(records) if self.warmup_s == "auto" else None

    def cuts(self) -> dict[str, float]:
        """The parts that are cut off whatever the run does. ValueError where the warm-up is found in each run."""
        if self.warmup_s == "auto":
            raise ValueError("the warm-up depends on the run")
        return {"warmup_s": self.warmup_s, "cooldown_s": self.cooldown_s}

    def window(self, records: "Records") -> dict[str, float]:
        """The parts that are cut off a run, as the metrics take them."""
        found = self.warmup(records)
        warmup_s = self.warmup_s if found is None else found.cut_s
        assert warmup_s != "auto"
        return {"warmup_s": warmup_s, "cooldown_s": self.cooldown_s}


if TYPE_CHECKING:
    from scenarios.schema.cost import Cost
    from scenarios.schema.declared import AnyNamedEngine
    from scenarios.schema.fleet import FlowControlConfig, GroupConfig
    from scenarios.schema.hardware import EnergyConfig
    from scenarios.schema.host import FrontEndConfig, HostConfig, KVTransferConfig, SamplingConfig
    from scenarios.schema.slo import SloConfig
    from scenarios.schema.trace import TraceWorkload
    from scenarios.schema.workload import GeneratedWorkload
    from simulator.front_end import FrontEnd
    from simulator.metrics.latency import Slo
    from simulator.timing.host import Host
else:
    AnyNamedEngine = later("scenarios.schema.declared:AnyNamedEngine", named_at)
    Cost = later("scenarios.schema.cost:Cost", cost_at)
    EnergyConfig = later("scenarios.schema.hardware:EnergyConfig")
    FlowControlConfig = later("scenarios.schema.fleet:FlowControlConfig")
    FrontEndConfig = later("scenarios.schema.host:FrontEndConfig")
    GeneratedWorkload = later("scenarios.schema.workload:GeneratedWorkload")
    GroupConfig = later("scenarios.schema.fleet:GroupConfig")
    HostConfig = later("scenarios.schema.host:HostConfig")
    KVTransferConfig = later("scenarios.schema.host:KVTransferConfig")
    SamplingConfig = later("scenarios.schema.host:SamplingConfig")
    SloConfig = later("scenarios.schema.slo:SloConfig")
    TraceWorkload = later("scenarios.schema.trace:TraceWorkload")


def _workload_tag(value: object) -> str:
    if isinstance(value, Mapping):
        return "<trace>" if value.get("trace") is not None else "<generated>"
    return "<trace>" if hasattr(value, "trace") else "<generated>"


def _engine_tag(value: object) -> str:
    policy = value.get("policy") if isinstance(value, Mapping) else getattr(value, "policy", None)
    return "<user>" if isinstance(policy, str) and ".py" in policy else "<built-in>"


class Scenario(Strict):
    """All that a run needs to know."""

    # From `scenarios.schema.loader.load`, paths in it are absolute and `base_dir` is the folder of its file. Two
    # scenarios are equal if all their values are, wherever they came from.

    name: Annotated[
        str,
        Field(
            max_length=100, pattern=r"^[^\W_][\w .+-]*$", description="at most 100 letters, digits, spaces and _ . + -"
        ),
        doc("name of the scenario, of its run folder and in reports; default: that of the file"),
    ]
    seed: Annotated[int, Field(ge=0, le=2**63 - 1), doc("seed of all random streams")] = 0
    model: Annotated[
        NameOrMapping,
        refusing(model_of),
        Field(description="the name of a model (`batchlab list models`) or a mapping of its dimensions"),
        JsonSchema(model_schema),
        doc("model that is served: a name of `batchlab list models`, or a mapping of dimensions"),
    ] = "llama-3.1-8b"
    hardware: Annotated[Hardware, doc("GPUs and their memory")] = Hardware()
    cost: Annotated[Cost, doc("source of the step times; default for a server's policy: auto")] = RooflineCostConfig(
        kind="roofline"
    )
    host: Annotated[HostConfig | None, doc("time that the host adds to a step; null: that of the policy's engine")] = (
        None
    )
    sampling: Annotated[
        SamplingConfig | None, doc("how requests ask for the next token; null: as the model's generation config says")
    ] = None
    workload: Annotated[
        Annotated[TraceWorkload, Tag("<trace>")] | Annotated[GeneratedWorkload, Tag("<generated>")],
        Discriminator(_workload_tag),
        doc("requests: read from a trace, or generated by class"),
    ]
    engine: Annotated[
        Annotated[AnyNamedEngine, Tag("<built-in>")] | Annotated[Engine, Tag("<user>")],
        Discriminator(_engine_tag),
        JsonSchema(engine_schema),
        doc("batching policy and its parameters"),
    ] = NamedEngine()
    replicas: Annotated[
        int, Field(ge=1, le=100_000), doc("servers, each of `tensor_parallel` x `pipeline_parallel` GPUs")
    ] = 1
    fleet: Annotated[
        Annotated[list[GroupConfig], Field(min_length=1)] | None,
        doc("groups of different replicas, instead of `replicas`"),
    ] = None
    router: Annotated[Router, JsonSchema(router_schema), doc("rule that chooses a replica for each request")] = (
        "round_robin"
    )
    flow_control: Annotated[
        FlowControlConfig | None, doc("queues at the gateway while the replicas are saturated; null: none")
    ] = None
    kv_transfer: Annotated[
        KVTransferConfig | None, doc("link from groups that prefill to groups that decode; null: its defaults")
    ] = None
    front_end: Annotated[
        FrontEndConfig | None,
        doc("layer between clients and engine; null: none, requests reach the engine as they arrive"),
    ] = None
    slo: Annotated[SloConfig | None, doc("limits and targets of latency")] = None
    measure: Annotated[Measure, doc("window over which metrics are taken")] = Measure()
    energy: Annotated[EnergyConfig | None, doc("power of the GPUs, for joules a token; null: not reported")] = None
    _base_dir: Path = PrivateAttr(default=Path())
    _origin: Origin = PrivateAttr(default_factory=Origin)
    _defaults: Defaults | None = PrivateAttr(default=None)

    @property
    def defaults(self) -> Defaults | None:
        """The server's defaults, which hold for keys that are left out; None where the plain ones do."""
        return self._defaults

    @property
    def base_dir(self) -> Path:
        """The folder of the scenario's file; for a mapping, the working directory when it was loaded."""
        return self._base_dir

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, in the schema's order. Groups of a fleet have those that they were given."""
        found = {**self.model_dump(), "engine": self.engine.resolved(), **self.resolved_around()}
        found["cost"] = self.resolve_cost().model_dump()
        if self.fleet is not None:
            found["fleet"] = [
                {**group.model_dump(exclude_none=True), "replicas": group.initial_replicas} for group in self.fleet
            ]
            del found["replicas"]
        if isinstance(self.router, RouterConfig):
            found["router"] = self.router.resolved()
        if not self.measure.metrics:
            del found["measure"]["metrics"]
        for name in ("kv_offload", "mem_fraction_static"):
            if getattr(self.hardware, name) is None:
                del found["hardware"][name]
        found = {k: v for k, v in found.items() if v is not None or k not in ("sampling", "flow_control", "energy")}
        if self.kv_transfer is not None and self.kv_transfer.connector is None:
            found["kv_transfer"] = {key: found["kv_transfer"][key] for key in ("bandwidth_gb_s", "latency_s")}
        return found

    def resolved_around(self) -> dict[str, Any]:
        """`host` and `front_end` with nothing left to a default; null where nothing is added."""
        host = self.resolve_host() if self.host is not None or self.cost.takes_host(self) else None
        front_end = self.resolve_front_end() if self.front_end is not None else None
        return {
            "host": None if host is None else {"step_s": host.step_s, "per_seq_s": host.per_seq_s},
            "front_end": None if front_end is None else front_end.figures(),
        }

    @property
    def routing(self) -> RouterConfig:
        """The router with its parameters, however it is given."""
        return as_config(self.router)

    @property
    def num_replicas(self) -> int:
        """Replicas of all groups together."""
        return self.replicas if self.fleet is None else sum(group.initial_replicas for group in self.fleet)

    def error(self, key: str, message: str, hint: str | None = None) -> InputError:
        """An error about a key (dotted, as `engine.order`), placed where the scenario's source wrote it."""
        return self._origin.error([Finding(tuple(key.split(".")), message, hint)])

    def __repr__(self) -> str:
        model = self.model if isinstance(self.model, str) else "a model of its own"
        gpu = self.hardware.gpu if isinstance(self.hardware.gpu, str) else "a GPU of its own"
        return f"<Scenario {self.name}: {self.engine.policy}, {model} on {gpu}, seed {self.seed}>"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scenario) and self.resolved() == other.resolved()

    __hash__ = None  # type: ignore[assignment] # says that it cannot be hashed

    def resolve_model(self) -> Model:
        """The model's dimensions, by name or from the mapping."""
        return model_of(self.model)

    def resolve_gpu(self) -> Gpu:
        """The GPU's figures, by name or from the mapping."""
        return gpu_of(self.hardware.gpu)

    def resolve_cost(self) -> Cost:
        """The source of the step times, `auto` being what it stands for."""
        if self.cost.kind != "auto":
            return self.cost
        from scenarios.schema.cost import AutoCostConfig

        assert isinstance(self.cost, AutoCostConfig)
        return self.cost.chosen(self)

    def resolve_host(self) -> "Host":
        """The host's part of a step: as the scenario says, the rest as the policy's engine does by default.

        A kind of cost that has the host in its own times adds nothing by default.
        """
        from scenarios.schema.host import filtered
        from scenarios.servers import server_of
        from simulator.timing.host import Host

        usual = Host()
        if self.cost.takes_host(self):
            asked = self.engine.settled().get("async_scheduling")
            model, server = self.resolve_model(), server_of(self.engine.policy)
            usual = server.host(self.engine.release, asked, filtered(self.sampling, model), model)
        return usual if self.host is None else self.host.over(usual)

    def resolve_front_end(self) -> "FrontEnd":
        """The front end between clients and engine; nothing without the key."""
        from scenarios.servers import server_of
        from simulator.front_end import FrontEnd

        own = self.front_end
        if own is None:
            return FrontEnd()
        usual = server_of(self.engine.policy).front_end.of(self.resolve_model().vocab)
        given = {name: value for name, value in own.model_dump().items() if value is not None}
        return replace(usual, **({"per_prompt_token_s": 0.0} if given else {}) | given)

    def resolve_slo(self) -> "Slo | None":
        """Limits and targets as the metrics take them; None where the scenario has none."""
        return None if self.slo is None else self.slo.slo()

    @model_validator(mode="after")
    def _as_its_server(self, info: ValidationInfo) -> Self:
        """Take the server's defaults for keys that are left out; they do not become given."""
        if is_servers(self):
            self._defaults = defaults_of(self, info.context or Around())
            self.__dict__ |= self._defaults.filled(self)
        return self

    @model_validator(mode="after")
    def _hangs_together(self) -> Self:
        if self.slo is not None and (classes := getattr(self.workload, "all_classes", None)) is not None:
            names = [each.name for each in classes()]
            for name in self.slo.classes:
                if name not in names:
                    raise refusal(f"no class is called {name!r}", did_you_mean(name, names), ("slo", "classes", name))
        if self.kv_transfer is not None and "prefill" not in {group.role for group in self.fleet or ()}:
            raise refusal(
                "nothing is transferred", "groups of `fleet` with `role: prefill` and `decode`", "kv_transfer"
            )
        if self.fleet is not None:
            if "replicas" in self.model_fields_set:
                raise refusal("contradicts fleet", "each group of the fleet has its own `replicas`", key="replicas")
            limited = self.slo is not None and self.slo.slo().limits
            for place, group in enumerate(self.fleet):
                if not limited and group.autoscaling is not None and group.autoscaling.targets.slo_attainment:
                    where = ("fleet", str(place), "autoscaling", "targets", "slo_attainment")
                    raise refusal("there is no limit that a request could meet", "give `slo`: {ttft_ms: ...}", where)
            from scenarios.schema.host import check_roles

            check_roles({group.role for group in self.fleet})
            names = [group.name for group in self.fleet]
            for place, name in enumerate(names):
                if name in names[:place]:
                    raise refusal(f"a second group is called {name!r}", None, ("fleet", str(place), "name"))
        mode = self.engine.given().get("preemption_mode")
        if needs_host(mode) and self.hardware.swap_space_gib == 0:
            raise refusal(
                f"`{mode}` has no host memory to swap to: hardware.swap_space_gib is 0",
                "give hardware.swap_space_gib, or preemption_mode: recompute",
                key="engine.preemption_mode",
            )
        try:
            self.resolve_model().local_kv_heads(self.hardware.tensor_parallel)
        except InputError as error:
            raise refusal(error.message, error.hint, key="hardware.tensor_parallel") from None
        stages, partition = self.hardware.pipeline_parallel, self.hardware.pp_layer_partition
        try:
            layers_of_stages(self.resolve_model().layers, stages, partition)
        except InputError as error:
            key = "pipeline_parallel" if partition is None else "pp_layer_partition"
            raise refusal(error.message, error.hint, key=f"hardware.{key}") from None
        return self
