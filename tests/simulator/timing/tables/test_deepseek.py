"""DeepSeek-V3 and Kimi-K2 composed whole: attention, experts, feed-forwards, all-reduces; alone and sharing experts."""

from dataclasses import replace

import numpy as np
import pytest

from scenarios.profiles import shipped_tables
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS, Model
from simulator.timing.cost import StepShape
from simulator.timing.expert_parallel import ExpertParallelCost
from simulator.timing.formula_cost import Roofline
from simulator.timing.profile import Options, ProfileCost
from simulator.timing.profile.surface import Surface
from simulator.timing.tables import compose, parts_of, read_tables
from simulator.timing.tables.latent import MEASURED_FOR, decode_least_us
from simulator.timing.tables.products import product_curve

H200 = find_gpu("h200")
V3, KIMI = MODELS["deepseek-v3"], MODELS["kimi-k2"]
PER_BYTE = 1e-9 / H200.bandwidth_gb_s


def composed(model: Model, ranks: int) -> ProfileCost:
    return ProfileCost(
        compose(read_tables(shipped_tables()["h200-vllm-0.24"]), model, H200, ranks), Options(host_s=0.0)
    )


def touched(model: Model, tokens: int) -> float:
    """Experts of a layer that so many tokens ask for when they choose evenly."""
    return model.experts * (1.0 - (1.0 - model.active_experts / model.experts) ** tokens)


@pytest.mark.parametrize(("model", "ranks"), [(V3, 8), (V3, 1), (KIMI, 8), (MODELS["deepseek-v2-lite"], 1)])
def test_no_step_is_faster_than_its_bytes(model: Model, ranks: int) -> None:
    """Attention's weights and latents, shared and dense feed-forwards, the experts that are asked for: read once."""
    cost, dtype = composed(model, ranks), "fp8_block" if model.dtype_bytes == 1 else "bf16"
    of = {name: getattr(model, name) for name in MEASURED_FOR}
    fed = model.moe_layers * model.shared_experts * model.intermediate + model.dense_layers * model.dense_intermediate
    rest = 3 * model.hidden * fed / ranks * model.dtype_bytes + 2 * model.vocab * model.hidden / ranks
    for seqs in (1, 8, 64, 300):
        for context in (10, 2000, 20000):
            heads = np.array(model.heads / ranks)
            module = decode_least_us(of, H200, dtype, "bf16", heads, np.array(float(seqs)), np.array(float(context)))
            routed = model.moe_layers * touched(model, seqs) * model.expert_parameters / ranks * model.dtype_bytes
            least = model.layers * float(module) * 1e-6 + (rest + routed) * PER_BYTE
            assert cost.step_s(StepShape(seqs, seqs * context)) >= 0.97 * least, (seqs, context)
    for tokens in (512, 8192):
        shape = StepShape(0, 0, 1, tokens, tokens, tokens * (tokens + 1) // 2, 0, 0, tokens)
        flops = 2 * tokens * (model.active_parameters - 2 * model.vocab * model.hidden) / ranks
        assert cost.step_s(shape) >= flops / (H200.tflops(dtype) * 1e12)


def test_tables_and_roofline_agree_on_large_batches_and_differ_by_launches_on_small_ones() -> None:
    cost, roof = composed(V3, 8), Roofline(V3, H200, 8, host_s=0.0)
    ratios = [cost.step_s(shape) / roof.step_s(shape) for shape in (StepShape(n, n * 2000) for n in (1, 16, 64, 256))]
    assert ratios == sorted(ratios, reverse=True)
    assert 1.0 < ratios[-1] < 1.5
    assert ratios[0] < 4.0


def test_every_part_is_there_and_says_how_it_was_come_by() -> None:
    found = {part.name: f"{part.how}, {part.words}" for part in parts_of(composed(V3, 8).profile)}
    assert "fp8_block, bf16 KV, 16 heads" in found["latent attention with its projections, decodes"]
    assert found["shared_gate_up"].startswith("estimated, fp8_block, 512 x 7,168")
    assert "as much slower than fp8 as in h100-vllm-0.19" in found["dense_down"]
    assert {"experts", "router", "lm_head", "all-reduce among 8", "norm, activation", "sampler"} <= set(found)
    assert not {"qkv", "output_projection"} & set(found)
    profile = composed(V3, 8).profile
    assert {"latent_decode", "latent_prompt"} <= set(profile.document["errors"])
    assert sum("/mla/" in source["path"] for source in profile.document["sources"]) == 1


def test_products_by_block_are_as_much_slower_than_plain_ones_as_where_both_were_measured() -> None:
    known = read_tables(shipped_tables()["h100-vllm-0.19"]).products
    own = read_tables(shipped_tables()["h200-vllm-0.24"]).products["fp8"]
    sizes = np.array([8.0, 512.0])

    def curve(surface: Surface) -> list[float]:
        found = product_curve(surface, 2 * 18432, 7168, sizes, 1)
        return [found.at(size) for size in sizes]

    blocks = composed(V3, 1).profile.layer_curves["dense_gate_up"]
    share = 3 / 61  # of the layers
    for size, mine, plain, slow in zip(sizes, curve(own), curve(known["fp8"]), curve(known["fp8_block"]), strict=True):
        assert blocks.at(size) / share == pytest.approx(mine * slow / plain, rel=0.02)
        assert slow > 1.1 * plain


def test_ranks_that_share_experts_have_all_heads_each() -> None:
    """Eight data-parallel ranks: the same steps as one GPU with all heads, but for an eighth of the experts."""
    cost = composed(V3, 1)
    group = ExpertParallelCost.of(cost, V3.hidden, H200, 8)
    decode = StepShape(32, 32 * 2000)
    together, alone = group.group_step_s([decode] * 8), cost.step_s(decode)
    attention = 61e-6 * cost.profile.attention.decode.us(32, 2000.0)
    assert attention < together < alone
    routed = 58 * touched(V3, 256) / 8 * V3.expert_parameters * PER_BYTE
    assert together > attention + routed
    mixed = StepShape(32, 64000, 1, 2048, 2048, 2048 * 2049 // 2, 0, 0, 2048)
    assert group.group_step_s([mixed] + [decode] * 7) > together  # all wait for the one with a prompt


def test_experts_of_another_precision_than_attention() -> None:
    b200 = find_gpu("b200")
    tables = read_tables(shipped_tables()["b200-vllm-0.24"])
    model = replace(V3, dtype_bytes=2, matmul_dtype="bf16", expert_dtype="nvfp4")
    found = {part.name: part.words for part in parts_of(compose(tables, model, b200, 4))}
    assert found["latent attention with its projections, decodes"] == "bf16, bf16 KV, 32 heads, FLASHINFER_MLA"
    assert found["experts"].startswith("nvfp4")
    with pytest.raises(InputError, match="no matrix products of fp8_block"):
        compose(tables, V3, b200, 8)
