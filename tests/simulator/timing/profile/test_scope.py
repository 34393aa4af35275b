"""What a profile may price: its own shapes, precision, experts, attention, GPU and parallelism, and nothing else."""

import re
from dataclasses import replace
from typing import Any

import pytest

from simulator.hardware.gpus import GPUS, Gpu, custom_gpu
from simulator.hardware.models import MODELS, Model, custom_model
from simulator.timing.profile import load_profile, refusal
from tests.profile_maker import document

LLAMA, MIXTRAL = MODELS["llama-3.1-8b"], MODELS["mixtral-8x7b"]
GPU = GPUS["rtx-4090"]
LATENT = custom_model(
    {
        "layers": 8, "hidden": 1024, "intermediate": 4096, "heads": 8, "kv_heads": 8, "head_dim": 128, "vocab": 32000,
        "max_model_len": 4096, "kv_lora_rank": 512, "rope_head_dim": 64, "name": "latent",
    }
)  # fmt: skip


def why(
    model: Model, changed: dict[str, Any], gpu: Gpu = GPU, ranks: int = 1, *, left_out: tuple[str, ...] = ()
) -> str:
    whole = {**document(), **changed}
    kept = {key: value for key, value in whole.items() if key not in left_out}
    return refusal(load_profile(kept), model, gpu, ranks) or ""


DENSE = ("experts",)


def test_what_it_was_fitted_for_is_priced() -> None:
    assert why(LLAMA, {}, left_out=DENSE) == ""
    assert why(LLAMA, {"dtype": "bf16"}, left_out=DENSE) == ""
    assert why(MIXTRAL, {"model": "mixtral-8x7b"}) == ""
    assert why(replace(LLAMA, name="llama-3.1-8b (changed)", max_model_len=8192), {}, left_out=DENSE) == ""


@pytest.mark.parametrize(
    ("model", "changed", "words"),
    [
        (replace(LLAMA, dtype_bytes=1), {"dtype": "bf16"}, "measured with bf16 weights; the scenario's .* has fp8"),
        (replace(LLAMA, dtype_bytes=1, matmul_dtype="bf16"), {"dtype": "fp8"}, "has 1-byte weights multiplied in bf16"),
        (replace(LLAMA, dtype_bytes=0.53), {"dtype": "bf16"}, "has 0.53-byte weights multiplied in bf16"),
        (replace(LLAMA, kv_dtype_bytes=1), {"dtype": "bf16"}, "measured with bf16 KV cache; the scenario's .* has fp8"),
        (LLAMA, {"dtype": "fp8", "kv_dtype": "fp8"}, "measured with fp8 weights"),
        (replace(LLAMA, kv_heads=4), {}, "kv_heads 4 instead of 8"),
        (replace(LLAMA, head_dim=64, heads=64), {}, "head_dim 64 instead of 128"),
        (MODELS["qwen3-8b"], {}, "is a profile for model llama-3.1-8b; the scenario has qwen3-8b"),
    ],
)  # fmt: skip
def test_other_shapes_and_precisions_are_refused(model: Model, changed: dict[str, Any], words: str) -> None:
    assert re.search(words, why(model, changed, left_out=DENSE))


def test_experts_that_were_not_measured_would_cost_nothing() -> None:
    mixtral = {"model": "mixtral-8x7b"}
    assert "kernels without experts, and mixtral-8x7b has 8" in why(MIXTRAL, mixtral, left_out=DENSE)
    assert "kernels with experts, and llama-3.1-8b has none" in why(LLAMA, {})


def test_latent_attention_has_kernels_of_its_own() -> None:
    shape = {"name": "latent", "layers": 8, "hidden": 1024, "intermediate": 4096, "heads": 8, "kv_heads": 8}
    shape |= {"head_dim": 128, "vocab": 32000, "kv_lora_rank": 512, "rope_head_dim": 64}
    found = why(LATENT, {"model": "latent", "dimensions": shape}, left_out=DENSE)
    assert "no kernels of multi-head latent attention" in found


def test_another_gpu_or_parallelism_is_refused() -> None:
    assert "is a profile for GPU rtx-4090; the scenario has h200" in why(LLAMA, {}, GPUS["h200"], left_out=DENSE)
    assert "tensor_parallel 1; the scenario has 2" in why(LLAMA, {}, ranks=2, left_out=DENSE)
    assert "no all-reduce" in why(LLAMA, {"tensor_parallel": 2}, ranks=2, left_out=(*DENSE, "all_reduce"))


def test_a_gpu_may_have_other_memory_but_no_other_speed() -> None:
    assert why(LLAMA, {}, custom_gpu({"base": "rtx-4090", "memory_gib": 47.0}), left_out=DENSE) == ""
    faster = custom_gpu({"base": "rtx-4090", "bandwidth_gb_s": 2000.0})
    assert "which measured kernels do not follow" in why(LLAMA, {}, faster, left_out=DENSE)


def test_a_log_of_steps_leaves_open_what_it_does_not_say() -> None:
    open_ = {"model": "", "gpu": "", "tables": {**document()["tables"], "layer": _steps()}}
    assert why(MIXTRAL, open_, GPUS["h200"], left_out=DENSE) == "", "whole steps have the experts in them"


def _steps() -> dict[str, Any]:
    return {"step": next(iter(document()["tables"]["layer"].values()))}
