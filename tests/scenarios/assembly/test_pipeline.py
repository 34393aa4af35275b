"""`hardware.pipeline_parallel`: what is built of it, what it is not put beside, and what is left out without it."""

from pathlib import Path
from typing import Any

import pytest

from scenarios.assembly.fleet_parts import build_fleet
from scenarios.assembly.replica_parts import build
from scenarios.from_server import make
from scenarios.plan.answer import deploy, deployed
from scenarios.plan.bottleneck import shares
from scenarios.plan.candidate import Candidate, make_candidate, space
from scenarios.plan.goal import parse_goal
from scenarios.runs.runner import run
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.servers.manifests import Deployed, files_of
from scenarios.servers.sources import read_source
from simulator.errors import InputError
from simulator.hardware.stages import stages_of
from simulator.timing.added import Loras
from simulator.timing.cost import StepShape
from tests.scenarios.plan.cases import laboratory


def scenario(**hardware: Any) -> Scenario:
    engine = hardware.pop("engine", {"policy": "chunked_prefill"})
    more: dict[str, Any] = {key: hardware.pop(key) for key in ("fleet", "model", "cost") if key in hardware}
    return load({
        "name": "p", "model": "llama-3.1-70b", "hardware": {"gpu": "h100", "tensor_parallel": 2, **hardware},
        "engine": engine, "workload": {"preset": "chat", "rate": 4.0, "requests": 40}, **more,
    })  # fmt: skip


def test_a_replica_has_stages_their_memory_and_their_link() -> None:
    made = scenario(pipeline_parallel=4, pipeline_link={"bandwidth_gb_s": 25, "latency_s": 1e-4})
    parts = build(made)
    assert parts.pipeline is not None
    assert parts.cost is parts.pipeline
    assert len(parts.pipeline.stages) == 4
    # two rows of 8,192 in 16 bits a token, half of them from each of two GPUs
    assert parts.pipeline.transfer_s(StepShape(10, 10)) == pytest.approx(1e-4 + 10 * 2 * 8192 * 2 / 2 / 25e9)
    assert parts.kv.num_gpu_blocks == 86_500
    assert made.hardware.gpus == 8
    by_default = build(scenario(pipeline_parallel=4)).pipeline
    assert by_default is not None
    own_link = 0.6 * made.resolve_gpu().link_gb_s * 1e9
    assert by_default.hop_s_per_token == pytest.approx(2 * 8192 * 2 / 2 / own_link)


@pytest.mark.parametrize(
    ("key", "words", "given"),
    [
        ("hardware.pipeline_parallel", "81 stages cannot share 80 layers", {"pipeline_parallel": 81}),
        ("hardware.pipeline_parallel", "sglang does not plan for the stages", {"engine": {"policy": "sglang"}}),
        ("hardware.pipeline_parallel", "layers that keep different things cannot be combined with a pipeline",
         {"model": "qwen3-next-80b-a3b", "tensor_parallel": 1}),
        ("hardware.swap_space_gib", "swap space cannot be combined with a pipeline", {"swap_space_gib": 1}),
        ("hardware.pipeline_link", "one stage sends nothing", {"pipeline_parallel": 1, "pipeline_link": {}}),
        ("hardware.enable_expert_parallel", "shared experts cannot be combined with a pipeline",
         {"enable_expert_parallel": True, "model": "mixtral-8x7b"}),
        ("hardware.kv_offload", "KV offload cannot be combined with a pipeline", {"kv_offload": {"host_gib": 8}}),
        ("engine.prefill_schedule_interval", "a cadence of prompts",
         {"engine": {"policy": "vllm", "prefill_schedule_interval": 4}}),
        ("engine.speculative_config", "drafts cannot be combined with a pipeline",
         {"engine": {"policy": "vllm", "speculative_config": {"method": "ngram", "num_speculative_tokens": 2,
                                                              "acceptance": {"mean_length": 1.5}}}}),
    ],
)  # fmt: skip
def test_what_a_pipeline_is_not_put_beside_is_refused(key: str, words: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=words) as error:
        build(scenario(**{"pipeline_parallel": 2, **given}))
    assert error.value.message.startswith(key)
    assert error.value.hint


def test_each_stage_has_its_part_of_the_adapters() -> None:
    plain, served = (
        build(scenario(pipeline_parallel=4, engine={"policy": "vllm", **more})) for more in ({}, {"max_loras": 16})
    )
    assert plain.pipeline is not None
    assert served.pipeline is not None
    assert served.kv.num_gpu_blocks < plain.kv.num_gpu_blocks
    shape = StepShape(8, 800, loras=2, lora_tokens=8)
    more_s = served.pipeline.step_s(shape) - plain.pipeline.step_s(shape)
    made = scenario()
    assert more_s == pytest.approx(Loras(made.resolve_model(), made.resolve_gpu(), 2, 16).s(shape))


def test_halves_of_requests_on_pipelines_are_refused() -> None:
    groups = [{"name": role, "role": role} for role in ("prefill", "decode")]
    with pytest.raises(InputError, match="a group that only prefills cannot be combined with a pipeline"):
        build_fleet(scenario(pipeline_parallel=2, fleet=groups))


def test_without_a_pipeline_nothing_is_said_of_one() -> None:
    assert not [key for key in scenario().resolved()["hardware"] if key.startswith("pipeline")]
    assert scenario(pipeline_parallel=2).resolved()["hardware"]["pipeline_parallel"] == 2


def test_a_run_counts_the_gpus_of_all_stages() -> None:
    pipe, plain = (
        run(scenario(**given)) for given in ({"pipeline_parallel": 4, "tensor_parallel": 1}, {"tensor_parallel": 4})
    )
    assert pipe.summary["completed"] == plain.summary["completed"] == 40
    assert 0 < pipe.summary["busy_fraction"] <= 1
    assert pipe.summary["mean_tpot_ms"] > plain.summary["mean_tpot_ms"]  # each token passes all stages, one by one


def test_the_command_of_a_server_says_its_stages() -> None:
    assert "--pipeline-parallel-size 4" in deploy(scenario(pipeline_parallel=4))
    assert "pipeline" not in deploy(scenario())


def test_a_plan_splits_the_gpus_into_stages_where_the_scenario_has_some() -> None:
    found = space(scenario(pipeline_parallel=4), by_default=True, policies="vllm")
    splits = {
        (each.scenario.hardware.tensor_parallel, each.scenario.hardware.pipeline_parallel, each.scenario.replicas)
        for each in found.candidates
    }
    assert {(8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1), (4, 1, 2)} <= splits
    assert all(tensor * stages * replicas == 8 for tensor, stages, replicas in splits)
    other = make_candidate(scenario(), {"hardware.pipeline_parallel": 4})
    assert other.label == "PP 4"
    assert other.gpus(2) == 16


def test_layers_given_by_hand_are_taken_written_and_read_back(tmp_path: Path) -> None:
    uneven = [18, 22, 22, 18]
    made = scenario(pipeline_parallel=4, pp_layer_partition=uneven)
    assert [stage.model.layers for stage in stages_of(made.resolve_model(), 4, uneven)] == uneven
    parts, even = build(made).pipeline, build(scenario(pipeline_parallel=4)).pipeline
    assert parts is not None
    assert even is not None
    shape = StepShape(64, 64_000)
    assert max(parts.stages_s(shape)) > max(even.stages_s(shape))  # 22 layers are more than 20
    assert build(made).kv.num_gpu_blocks < build(scenario(pipeline_parallel=4)).kv.num_gpu_blocks
    command, server = deploy(made), deployed(made)
    assert command.startswith("VLLM_PP_LAYER_PARTITION=18,22,22,18 vllm serve")
    assert isinstance(server, Deployed)
    sources = [command]
    for name, text in files_of(server).items():
        (tmp_path / name).write_text(text)
        sources.append(str(tmp_path / name))
    for source in sources:
        read = make(read_source(source), gpu="h100").scenario.hardware
        assert (read.tensor_parallel, read.pipeline_parallel, read.pp_layer_partition) == (2, 4, uneven), source


@pytest.mark.parametrize("given", [[40, 40], [20, 20, 20, 19], [0, 40, 20, 20]])
def test_layers_that_do_not_come_out_even_are_refused(given: list[int]) -> None:
    with pytest.raises(InputError, match=r"hardware\.pp_layer_partition"):
        scenario(pipeline_parallel=4, pp_layer_partition=given)


def test_what_binds_a_pipeline_is_counted_on_all_its_stages() -> None:
    """A host for each stage, and transfers as far as a step lasts longer than its slowest stage."""
    made = scenario(
        pipeline_parallel=4, pipeline_link={"bandwidth_gb_s": 1, "latency_s": 0.02}, cost={"kind": "roofline"}
    )
    lab = laboratory(made, "p99_tpot_ms<=1")
    candidate = Candidate({}, made)
    trial = lab.run(candidate, 0.2, early_stop=False)
    assert trial.records is not None
    found = shares(trial.records, candidate, parse_goal("p99_tpot_ms<=1", made))
    assert found.bottleneck == "link", found.text
    near = scenario(pipeline_parallel=4, cost={"kind": "roofline"})
    beside = shares(trial.records, Candidate({}, near), parse_goal("p99_tpot_ms<=1", near))
    one = shares(trial.records, Candidate({}, scenario(cost={"kind": "roofline"})), parse_goal("p99_tpot_ms<=1", near))
    assert beside.of["host"] > 1.2 * one.of["host"]
