"""The cost of a pipeline: its stages add up to the model, and each has the host's time."""

import pytest

from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS
from simulator.hardware.stages import stages_of
from simulator.timing.cost import CostModel, StepShape
from simulator.timing.formula_cost import Linear, Roofline
from simulator.timing.pipeline_cost import PipelineCost, cost_of_stage

DECODES = StepShape(64, 64_000)
PROMPT = StepShape(8, 4_000, 1, 2_048, 2_048, 2_048 * 2_049 // 2, prefill_longest=2_048)


def of_profile(ranks: int) -> CostModel:
    given = {
        "name": "p",
        "hardware": {"gpu": "h100", "tensor_parallel": ranks},
        "cost": {"kind": "profile", "cuda_graphs": False},
        "workload": {"preset": "chat", "rate": 1.0, "requests": 1},
    }
    scenario: Scenario = load(given)
    return scenario.cost.build(scenario)


@pytest.mark.parametrize("shape", [DECODES, PROMPT])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", ["roofline", "profile"])
def test_stages_add_up_to_the_model_and_a_host_each(shape: StepShape, ranks: int, kind: str) -> None:
    model = MODELS["llama-3.1-8b"]
    whole = Roofline(model, find_gpu("h100"), ranks) if kind == "roofline" else of_profile(ranks)
    host_s = whole.step_s(shape) - sum_of(whole, shape, 1)
    assert host_s == 0.0
    parts = [cost_of_stage(whole, stage) for stage in stages_of(model, 4)]
    seconds = [part.step_s(shape) for part in parts]
    assert sum(seconds) == pytest.approx(whole.step_s(shape) + 3 * 300e-6, rel=2e-3)
    assert seconds[0] == pytest.approx(seconds[1], rel=0.02)
    assert seconds[3] > seconds[1]  # the head


def sum_of(whole: CostModel, shape: StepShape, stages: int) -> float:
    return sum(cost_of_stage(whole, stage).step_s(shape) for stage in stages_of(MODELS["llama-3.1-8b"], stages))


def test_a_cost_without_layers_is_shared_by_layers() -> None:
    whole = Linear(0.03, 1e-5, 1e-8)
    parts = [cost_of_stage(whole, stage).step_s(DECODES) for stage in stages_of(MODELS["llama-3.1-8b"], 3)]
    assert parts == pytest.approx([whole.step_s(DECODES) * layers / 32 for layers in (11, 11, 10)])


def test_a_step_alone_takes_its_stages_and_the_transfers_between_them() -> None:
    pipe = PipelineCost((Linear(0.01, 0, 0), Linear(0.02, 0, 0)), hop_s=0.001, hop_s_per_token=1e-6)
    assert pipe.step_s(DECODES) == pytest.approx(0.03 + 0.001 + 64e-6)
    assert pipe.step_s(StepShape(0, 0)) == 0.0
    assert pipe.decode_run_s(DECODES, 3) == [pipe.step_s(DECODES.later(later)) for later in range(3)]
    assert pipe.scaled(2.0).step_s(DECODES) == pytest.approx(2 * pipe.step_s(DECODES))
