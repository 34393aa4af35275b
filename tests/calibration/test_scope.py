"""Rows are fitted for models whose every part they hold, at the precision at which they were measured."""

from dataclasses import replace

import pytest

from calibration.fit import fit_profile
from calibration.rows import model_of
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS, Model
from simulator.timing.profile import load_profile, refusal
from tests import calibration_maker as maker

GPU = find_gpu("h200")
LLAMA = MODELS["llama-3.1-8b"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (MODELS["mixtral-8x7b"], "no rows of experts, and mixtral-8x7b has 8 in each of 32 of its 32 layers"),
        (MODELS["qwen3-30b-a3b"], "no rows of experts"),
        (replace(LLAMA, dtype_bytes=1), "rows have bf16 weights, and llama-3.1-8b has fp8"),
        (replace(LLAMA, dtype_bytes=0.53), "has 0.53-byte weights multiplied in bf16"),
        (replace(LLAMA, kv_lora_rank=512, rope_head_dim=64), "multi-head latent attention"),
    ],
)
def test_what_the_rows_lack_is_refused(model: Model, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fit_profile(maker.rows(), model, GPU, "p")


def test_a_model_outside_the_list_is_fitted_and_found_by_its_shapes() -> None:
    own = model_of("{name: mine, layers: 20, hidden: 4096, intermediate: 14336, heads: 32, kv_heads: 8, vocab: 50000,"
                   " max_model_len: 4096}")  # fmt: skip
    document = fit_profile(replace(maker.rows(), model="mine"), own, GPU, "p")
    assert document["layers"] == 20
    profile = load_profile(document)
    assert refusal(profile, own, GPU, 1) is None
    assert refusal(profile, replace(own, name="theirs"), GPU, 1) is None
    assert "layers 21 instead of 20" in (refusal(profile, replace(own, layers=21), GPU, 1) or "")
    assert "vocab" in (refusal(profile, replace(own, vocab=50001), GPU, 1) or "")


def test_a_model_is_named_in_three_ways() -> None:
    assert model_of("llama-3.1-8b") is LLAMA
    assert model_of("meta-llama/Llama-3.1-8B-Instruct") is LLAMA
    assert model_of("{base: llama-3.1-8b, layers: 8}").layers == 8
    with pytest.raises(InputError, match="unknown model 'llama-9'") as found:
        model_of("llama-9")
    assert "config.json" in str(found.value.hint)
    with pytest.raises(InputError, match="not a mapping of dimensions"):
        model_of("{layers: ")
