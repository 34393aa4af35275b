"""The pipeline of a scenario's replicas: the cost of each stage, and the link between them.

`hardware.pipeline_parallel` is vLLM's --pipeline-parallel-size.
"""

from dataclasses import replace

from scenarios.schema.pipeline import PipelineLink
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.hardware.kv import KVCache, MemorySettings
from simulator.hardware.stages import pipeline_kv, stage_memories, stages_of
from simulator.policies import built_in_policies, policy_class
from simulator.policy_traits import Traits
from simulator.timing.added import WithAddition
from simulator.timing.cost import CostModel
from simulator.timing.lora import Loras
from simulator.timing.pipeline_cost import PipelineCost, cost_of_stage
from simulator.timing.roofline_cost import ACTIVATION_BYTES, LINK_EFFICIENCY

_KEY = "hardware.pipeline_parallel"
_SENT = 2  # tensors: hidden states and the residual


def check_pipeline(scenario: Scenario) -> None:
    """Raise InputError, with the key, for a policy or a model that has no pipeline; nothing with one stage."""
    engine, hardware = scenario.engine, scenario.hardware
    if hardware.pipeline_parallel == 1:
        if hardware.pipeline_link is not None:
            raise scenario.error("hardware.pipeline_link", "one stage sends nothing", f"give {_KEY}: 2 or more")
        return
    if not Traits.of(policy_class(engine.policy)).fills_pipelines:
        able = ", ".join(name for name in built_in_policies() if Traits.of(policy_class(name)).fills_pipelines)
        what = f"the policy {engine.policy} does not plan for the stages of a pipeline"
        raise scenario.error(_KEY, what, f"these do: {able}; or pipeline_parallel: 1")
    try:
        stages_of(scenario.resolve_model(), hardware.pipeline_parallel, hardware.pp_layer_partition)
    except InputError as error:
        raise scenario.error(_KEY, error.message, error.hint) from None


def build_pipeline(scenario: Scenario, cost: CostModel, adapters: Loras | None) -> PipelineCost | None:
    """Build the pipeline of a scenario that was checked; None with one stage. Each has its layers' part of `adapters`.

    Each token sends two rows of the model's width in 16 bits; with tensor parallelism each GPU sends its part
    (vllm/distributed/parallel_state.py:1083).
    """
    hardware, model = scenario.hardware, scenario.resolve_model()
    if hardware.pipeline_parallel == 1:
        return None
    link = hardware.pipeline_link or PipelineLink()
    gb_s = link.bandwidth_gb_s or LINK_EFFICIENCY * scenario.resolve_gpu().link_gb_s
    sent = _SENT * ACTIVATION_BYTES * model.hidden / hardware.tensor_parallel
    stages: list[CostModel] = []
    for stage in stages_of(model, hardware.pipeline_parallel, hardware.pp_layer_partition):
        own = cost_of_stage(cost, stage)
        stages.append(own if adapters is None else WithAddition(own, replace(adapters, model=stage.model)))
    return PipelineCost(tuple(stages), link.latency_s, sent / (gb_s * 1e9))


def pipeline_cache(scenario: Scenario, settings: MemorySettings) -> KVCache:
    """Return the KV cache that fits on every stage. Raises InputError where one does not fit."""
    hardware = scenario.hardware
    memories = stage_memories(settings, hardware.pipeline_parallel, hardware.pp_layer_partition)
    return pipeline_kv(memories, hardware.num_gpu_blocks)
