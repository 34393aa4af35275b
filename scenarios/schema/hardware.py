"""The `hardware:` of a scenario, and its `energy:`."""

from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Unit, doc
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from scenarios.schema.allowed import gpu_schema
from scenarios.schema.base import JsonSchema, NameOrMapping, Strict, later, refusing
from simulator.hardware.gpus import gpu_of

if TYPE_CHECKING:
    from scenarios.schema.host import KVOffload, PipelineLink
else:
    KVOffload = later("scenarios.schema.host:KVOffload")
    PipelineLink = later("scenarios.schema.host:PipelineLink")


def _offload_schema() -> dict[str, Any]:
    from scenarios.schema.host import offload_schema

    return offload_schema()


class Hardware(Strict):
    """The GPUs of the server, and the share of their memory for the KV cache."""

    gpu: Annotated[
        NameOrMapping,
        refusing(gpu_of),
        Field(description="the name of a GPU (`batchlab list gpus`) or a mapping of its figures"),
        JsonSchema(gpu_schema),
        doc("GPU of the server: a name of `batchlab list gpus`, or a mapping of figures"),
    ] = "h200"
    tensor_parallel: Annotated[
        int, Field(ge=1, le=1024), doc("GPUs of a replica, or of each stage of its pipeline")
    ] = 1
    pipeline_parallel: Annotated[
        int, Field(ge=1, le=1024), doc("stages of a replica, each with a part of the layers; 1: no pipeline")
    ] = 1
    pp_layer_partition: Annotated[
        Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)] | None,
        doc("layers of each stage, as vLLM's VLLM_PP_LAYER_PARTITION; null: as many for each"),
    ] = None
    pipeline_link: Annotated[PipelineLink | None, doc("link between the stages of a pipeline; null: its defaults")] = (
        None
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), doc("share of each GPU's memory for the server")] = 0.9
    mem_fraction_static: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        doc("SGLang's share of each GPU's memory for weights and KV alone; null: `gpu_memory_utilization` says it"),
    ] = None
    num_gpu_blocks: Annotated[
        Annotated[int, Field(ge=2, le=10**9)] | None,
        doc("KV blocks that vLLM prints at start-up, its null block included; null: computed"),
    ] = None
    swap_space_gib: Annotated[float, Field(ge=0, le=1e6), doc("host memory for swapped KV blocks, for each GPU")] = 0.0
    kv_offload: Annotated[
        KVOffload | None,
        JsonSchema(_offload_schema),
        doc("host memory that KV is stored in, and loaded from; null: none"),
    ] = None
    enable_expert_parallel: Annotated[
        bool, doc("replicas are data-parallel ranks that share the experts and step together")
    ] = False

    @property
    def gpus(self) -> int:
        """GPUs of a replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @model_serializer(mode="wrap")
    def _as_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the pipeline out where there is none."""
        found: dict[str, Any] = dump(self)
        if self.pp_layer_partition is None:
            found.pop("pp_layer_partition", None)
        if self.pipeline_parallel == 1 and self.pipeline_link is None:
            return {key: value for key, value in found.items() if key not in ("pipeline_parallel", "pipeline_link")}
        return found


# The `energy:` of a scenario: what its GPUs draw, roughly.

Watts = Annotated[float, Field(gt=0, le=1e5)]


class EnergyConfig(Strict):
    """Energy of the GPUs, from their power limit; rough, with an interval. Off unless it is there: `energy: {}`.

    Hosts, links and cooling are not counted.
    """

    tdp_w: Annotated[Watts | None, doc("power limit of a GPU; null: the datasheet's"), Unit("W")] = None
    grams_co2_per_kwh: Annotated[
        Annotated[float, Field(ge=0, le=1e4)] | None, doc("CO2 of the grid; null: not reported"), Unit("g/kWh")
    ] = None
