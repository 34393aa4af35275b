"""Images in a scenario: what is drawn, what a trace says, what they cost, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

import scenarios
from scenarios.assembly.workloads import build_workload
from scenarios.traces import read_trace
from scenarios.traces.convert import write_native
from scenarios.traces.options import TraceOptions
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import custom_model
from simulator.timing.added import EncoderTime
from simulator.timing.cost import StepShape

MODEL = {"base": "llama-3.1-8b", "encoder_parameters": 6e8}
CLASS = {
    "name": "eyes",
    "input": {"dist": "fixed", "value": 40},
    "output": {"dist": "fixed", "value": 4},
    "prefix": {"tokens": 16},
    "images": {"count": 2, "tokens": {"dist": "uniform", "min": 100, "max": 300}, "share": 0.5},
}


def scenario(engine: dict[str, Any], model: object = MODEL, **more: Any) -> scenarios.Scenario:
    workload = {"requests": 200, "arrival": {"process": "poisson", "rate": 20}, "classes": [{**CLASS, **more}]}
    return scenarios.load({"name": "images", "model": model, "engine": engine, "workload": workload})


def test_images_lie_behind_the_prefix_and_before_the_text() -> None:
    workload = build_workload(scenario({"max_image_embeddings": 300}))
    assert workload.images is not None
    seen = [each for each in workload.images if each]
    assert 60 < len(seen) < 140
    for images, tokens in zip(workload.images, workload.input_tokens.tolist(), strict=True):
        assert tokens == 16 + 40 + sum(image.tokens for image in images)
        assert [image.offset for image in images] == ([16, images[0].end] if images else [])
    names = [image.identifier for images in seen for image in images]
    assert len(set(names)) == len(names)


def test_few_different_images_come_again() -> None:
    images = {**CLASS["images"], "different": 3}  # type: ignore[dict-item] # a mapping
    workload = build_workload(scenario({"max_image_embeddings": 300}, images=images))
    sizes = {(image.identifier, image.tokens) for each in workload.images or () for image in each}
    assert len(sizes) == 3


def test_a_written_trace_reads_back_equal(tmp_path: Path) -> None:
    workload = build_workload(scenario({"max_image_embeddings": 300}))
    write_native(workload, tmp_path / "trace.csv")
    assert read_trace(tmp_path / "trace.csv", TraceOptions()).images == list(workload.images or ())


def test_images_that_are_only_counted_take_the_given_size(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = "2024-10-15 12:00:00.1,{},3000,9\n2024-10-15 12:00:01.2,0,20,9\n2024-10-15 12:00:02.2,4,2001,9\n"
    path.write_text("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n" + rows.format(2), encoding="utf-8")
    assert read_trace(path, TraceOptions()).images is None
    found = read_trace(path, TraceOptions(image_tokens=576)).images
    assert found is not None
    assert [[(image.offset, image.tokens) for image in images] for images in found] == [
        [(0, 576), (576, 576)], [], [(0, 500), (500, 500), (1000, 500), (1500, 500)],
    ]  # fmt: skip


def test_the_encoder_takes_its_operations() -> None:
    model = custom_model({**MODEL, "encoder_patches": 4})
    shape = StepShape(0, 0, 1, 600, 600, embeddings=500)
    assert EncoderTime(model, find_gpu("h100"), 2).s(shape) == pytest.approx(
        2 * 6e8 * 4 * 500 / (989.5e12 * 0.8 * 2), rel=1e-3
    )
    assert EncoderTime(model, find_gpu("h100")).s(shape._replace(embeddings=0)) == 0.0
    plain = custom_model({"base": "llama-3.1-8b", "name": "custom"})
    assert model.weight_bytes(2) - plain.weight_bytes(2) == 6e8


def test_images_cost_time() -> None:
    slow = scenarios.run(scenario({"max_image_embeddings": 300}, {**MODEL, "encoder_parameters": 3e10}))
    fast = scenarios.run(scenario({"max_image_embeddings": 300}))
    assert slow.summary["mean_ttft_ms"] > 1.3 * fast.summary["mean_ttft_ms"]


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ({}, "workload.classes.0.images: the engine takes no images"),
        ({"policy": "sglang"}, "workload.classes.0.images: the policy sglang takes no images"),
        ({"max_image_embeddings": 20}, "larger than engine.max_image_embeddings = 20"),
        ({"max_image_embeddings": 3000, "disable_chunked_mm_input": True}, "3000 is more than max_num_batched_tokens"),
        ({"max_image_embeddings": 300, "version": "0.30"}, "max_image_embeddings is known as vLLM 0.33 has it"),
        (
            {"max_image_embeddings": 300, "prefill_schedule_interval": 2},
            "max_image_embeddings cannot be combined with prefill",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(engine: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        scenarios.run(scenario(engine))
    assert text in str(error.value)


def test_whole_images_without_images_are_refused() -> None:
    with pytest.raises(InputError, match="disable_chunked_mm_input is about images"):
        scenarios.run(scenario({"disable_chunked_mm_input": True}, images=None))


def test_a_model_without_an_encoder_is_refused() -> None:
    with pytest.raises(InputError, match="has no encoder of images"):
        scenarios.run(scenario({"max_image_embeddings": 300}, "llama-3.1-8b"))


def test_images_of_sessions_are_refused() -> None:
    with pytest.raises(InputError, match="give one of images and session"):
        scenario({"max_image_embeddings": 300}, session={"turns": 2})


@pytest.mark.parametrize("field", ["0", "a:b", "5@9 4@3", "30"])
def test_bad_images_of_a_trace_are_set_aside(field: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"arrival_time_s,input_tokens,output_tokens,images\n0,30,2,{field}\n1,9,2,\n", encoding="utf-8")
    assert len(read_trace(path, TraceOptions())) == 1
