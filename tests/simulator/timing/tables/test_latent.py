"""Multi-head latent attention composed of tables: what was measured comes out, the rest by its rule, nothing twice."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.profiles import shipped_tables
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import Model
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Roofline
from simulator.timing.profile import Options, ProfileCost, refusal
from simulator.timing.profile.prices import joint_us
from simulator.timing.tables import Tables, compose, parts_of, read_tables
from simulator.timing.tables.latent import (
    LatentTables,
    decode_least_us,
    find_latent,
    load_latent,
    projections,
    prompt_least_us,
)
from simulator.timing.tables.products import product_curve

H200 = find_gpu("h200")
LATENT = Model(
    "latent", 4, 7168, 18432, 128, 128, 128, 129280, 163840, q_lora_rank=1536, kv_lora_rank=512, rope_head_dim=64
)
"""DeepSeek-V3's attention, and a feed-forward without experts."""

DECODES = "latent attention with its projections, decodes"


@pytest.fixture(scope="module")
def tables() -> Tables:
    return read_tables(shipped_tables()["h200-vllm-0.24"])


@pytest.fixture(scope="module")
def latent(tables: Tables) -> LatentTables:
    found = find_latent(tables)
    assert found is not None
    return found


def composed(tables: Tables, model: Model = LATENT, ranks: int = 8) -> ProfileCost:
    return ProfileCost(compose(tables, model, H200, ranks), Options(host_s=0.0))


def prompt(tokens: int, cached: int = 0, chunks: int = 1, decodes: int = 0, context: int = 0) -> StepShape:
    pairs = chunks * (tokens * cached + tokens * (tokens + 1) // 2)
    longest = tokens + cached
    return StepShape(decodes, decodes * context, chunks, chunks * tokens, chunks * longest, pairs, 0, 0, longest)


def words(cost: ProfileCost) -> dict[str, str]:
    return {part.name: f"{part.how}: {part.words}" for part in parts_of(cost.profile)}


@pytest.mark.parametrize("ranks", [1, 8])
def test_measured_modules_come_out_as_they_went_in(tables: Tables, latent: LatentTables, ranks: int) -> None:
    attention = composed(tables, ranks=ranks).profile.attention
    decode, fresh = latent.decode[0], latent.prompt[0]
    assert (decode.dtype, decode.kv_dtype) == (fresh.dtype, fresh.kv_dtype) == ("bf16", "bf16")
    for row, seqs in enumerate(decode.axes[0].values):
        for column, context in enumerate(decode.axes[1].values):
            us = np.exp(decode.by_heads[128 // ranks].log_us[row, column])
            assert attention.decode.us(int(seqs), context) == pytest.approx(us, rel=1e-9)
    for row, chunks in enumerate(fresh.axes[0].values):
        for column, each in enumerate(fresh.axes[1].values):
            us = np.exp(fresh.by_heads[128 // ranks].log_us[row, column])
            assert joint_us(attention, prompt(int(each), chunks=int(chunks))) == pytest.approx(us, rel=1e-9)


def test_tables_of_another_version_say_so() -> None:
    older = read_tables(shipped_tables()["h200-vllm-0.18"])
    assert words(composed(older))[DECODES].endswith("as under vLLM 0.24.0")
    assert words(composed(read_tables(shipped_tables()["h200-vllm-0.24"])))[DECODES] == (
        "estimated: bf16, bf16 KV, 16 heads, FLASH_ATTN_MLA, less uncompiled norms and rope"
    )


def test_projections_rope_and_cache_write_are_not_counted_besides(tables: Tables) -> None:
    cost = composed(tables)
    assert set(cost.profile.layer_curves) == {"gate_up", "down", "norm", "activation"}
    assert refusal(cost.profile, LATENT, H200, 8) is None
    assert refusal(cost.profile, replace(LATENT, kv_lora_rank=0, rope_head_dim=0, q_lora_rank=0), H200, 8) is not None


def test_heads_between_lie_on_a_straight_line(tables: Tables) -> None:
    few, between, many = (
        composed(tables, replace(LATENT, heads=heads, kv_heads=heads), 1).profile.attention for heads in (32, 48, 64)
    )
    for seqs, context in ((1, 16.0), (64, 4096.0), (1024, 1024.0)):
        ends = few.decode.us(seqs, context) + many.decode.us(seqs, context)
        assert between.decode.us(seqs, context) == pytest.approx(0.5 * ends, rel=1e-6)
    ends = joint_us(few, prompt(1024)) + joint_us(many, prompt(1024))
    assert joint_us(between, prompt(1024)) == pytest.approx(0.5 * ends, rel=1e-6)


def test_other_projections_take_the_place_of_those_measured(tables: Tables) -> None:
    """DeepSeek-V2-Lite's are of 2,048 columns and have no bottleneck; its attention is the same."""
    lite = replace(LATENT, hidden=2048, q_lora_rank=0, heads=16, kv_heads=16)
    wide = replace(LATENT, heads=16, kv_heads=16)
    ours, theirs = (composed(tables, model, 1) for model in (lite, wide))
    surface = tables.products["bf16"]

    def products_us(model: Model, tokens: int) -> float:
        of = {
            name: getattr(model, name)
            for name in ("hidden", "q_lora_rank", "kv_lora_rank", "rope_head_dim", "head_dim")
        }
        sizes = np.asarray(surface.axes[0].values)
        return sum(product_curve(surface, n, k, sizes).at(tokens) for n, k in projections(of, 16).values())

    for seqs, context in ((1, 1024.0), (64, 8192.0)):
        less = theirs.profile.attention.decode.us(seqs, context) - ours.profile.attention.decode.us(seqs, context)
        assert less == pytest.approx(products_us(wide, seqs) - products_us(lite, seqs), rel=1e-6)
        assert less > 0
    assert "extrapolated" in words(ours)[DECODES]


def test_a_mixed_step_counts_launches_and_weights_once(tables: Tables) -> None:
    cost = composed(tables)
    attention = cost.profile.attention
    alone, decodes = joint_us(attention, prompt(2048)), attention.decode.us(64, 2000.0)
    mixed = joint_us(attention, prompt(2048, decodes=64, context=2000))
    assert mixed == pytest.approx(alone + decodes - attention.launch_us)
    assert 0 < attention.launch_us <= attention.decode.us(1, 2.0) * (1 + 1e-9)
    assert words(cost)["prompts beside decodes"].startswith("estimated")


def test_a_chunk_projects_the_cached_keys_up_again(tables: Tables) -> None:
    """Behind 8,192 tokens a chunk costs its pairs, and the keys and values of these tokens."""
    cost = composed(tables)
    table = cost.profile.attention.prompt
    behind, without = prompt(2048, 8192), prompt(2048, 8192)._replace(prefill_context=2048)
    more = joint_us(cost.profile.attention, behind) / joint_us(cost.profile.attention, without)
    assert 1.05 < more < 1.6
    assert 150 < table.cached_pairs < 1500  # type: ignore[union-attr] # of composed tables: prompts apart
    times = [joint_us(cost.profile.attention, prompt(2048, cached)) for cached in (0, 1024, 4096, 16384, 65536)]
    assert times == sorted(times)


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("kv_bytes", [1, 2])
def test_no_step_is_faster_than_the_gpu(tables: Tables, ranks: int, kv_bytes: int) -> None:
    model = replace(LATENT, kv_dtype_bytes=kv_bytes)
    cost = composed(tables, model, ranks)
    of = {name: getattr(model, name) for name in ("hidden", "q_lora_rank", "kv_lora_rank", "rope_head_dim", "head_dim")}
    heads, kv = np.array(128.0 / ranks), "fp8" if kv_bytes == 1 else "bf16"
    feed_forward = 3 * 7168 * 18432 / ranks
    head_us = 2 * 129280 * 7168 / ranks / (H200.bandwidth_gb_s * 1e3)

    def rest_us(tokens: int) -> float:
        flops = 2 * feed_forward * tokens / (H200.bf16_tflops * 1e6)
        return max(flops, 2 * feed_forward / (H200.bandwidth_gb_s * 1e3))

    for seqs in (1, 7, 33, 128, 300, 1024):
        for context in (1, 100, 3000, 30000, 163840):
            least = decode_least_us(of, H200, "bf16", kv, heads, np.array(float(seqs)), np.array(float(context)))
            us = cost.step_s(StepShape(seqs, seqs * context)) * 1e6
            assert us >= 0.97 * (4 * (float(least) + rest_us(seqs)) + head_us), (seqs, context)
    for chunks, each in ((1, 1), (1, 50), (1, 700), (4, 700), (1, 5000), (1, 131072), (64, 2048)):
        least = prompt_least_us(of, H200, "bf16", kv, heads, np.array(float(chunks)), np.array(float(each)))
        us = cost.step_s(prompt(each, chunks=chunks)) * 1e6
        assert us >= 0.97 * (4 * (float(least) + rest_us(chunks * each)) + head_us), (chunks, each)


def test_kernels_and_roofline_do_not_lie_far_apart(tables: Tables) -> None:
    """Nothing was fitted to the other: launches make small steps slower than the roofline, never half as long."""
    for ranks in (1, 8):
        cost, roof = composed(tables, ranks=ranks), Roofline(LATENT, H200, ranks, host_s=0.0)
        for shape in (
            StepShape(1, 1000), StepShape(64, 64 * 4000), StepShape(256, 256 * 1000), prompt(512), prompt(2048),
            prompt(8192), prompt(2048, 8192), prompt(2048, decodes=64, context=2000),
        ):  # fmt: skip
            assert 0.75 < cost.step_s(shape) / roof.step_s(shape) < 2.0, (ranks, shape)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "says", "hint"),
    [
        ({"dtype_bytes": 1}, "projections of fp8, which latent needs", "measured: bf16, fp8_block"),
        ({"kv_dtype_bytes": 4}, "no multi-head latent attention with float32 KV", "measured: bf16, fp8 KV"),
        (
            {"kv_lora_rank": 256},
            "no multi-head latent attention with kv_lora_rank 256",
            "kv_lora_rank 512, rope_head_dim 64",
        ),
        ({"head_dim": 64}, "no multi-head latent attention with head_dim 64", "head_dim 128"),
        ({"heads": 256, "kv_heads": 256}, "for 256 heads of a GPU", "measured: 1, 2, 4, 8, 16, 32, 64, 128 heads"),
    ],
)
def test_what_was_not_measured_is_refused_by_name(tables: Tables, change: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        compose(tables, replace(LATENT, **change), H200, 1)
    assert says in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_gpu_without_latent_tables_is_refused(tables: Tables) -> None:
    a100 = read_tables(shipped_tables()["a100-80gb-vllm-0.14"])
    with pytest.raises(InputError, match=r"a100-80gb-vllm-0\.14 has no kernel times of multi-head latent") as caught:
        compose(a100, LATENT, find_gpu("a100-80gb"), 8)
    assert "h200-vllm-0.24" in (caught.value.hint or "")
    alone = replace(tables, folder=None)  # read from no file: nothing lies beside it
    with pytest.raises(InputError, match="multi-head latent attention"):
        compose(alone, LATENT, H200, 8)


def test_damaged_latent_tables_are_refused(latent: LatentTables, tmp_path: Path) -> None:
    document = dict(latent.document)
    with pytest.raises(InputError, match='"schema"'):
        load_latent({**document, "schema": "something"})
    with pytest.raises(InputError, match="latent tables of version 7"):
        load_latent({**document, "version": 7})
    with pytest.raises(InputError, match="no 'prompt'"):
        load_latent({name: part for name, part in document.items() if name != "prompt"})
    part = {**document["decode"][0], "heads": {"1": {**document["decode"][0]["heads"]["1"], "us": [1]}}}
    path = tmp_path / "h200-vllm-9-latent.json.gz"
    path.write_bytes(gzip.compress(json.dumps({**document, "decode": [part]}).encode()))
    from simulator.timing.tables.latent import read_latent

    with pytest.raises(InputError, match="damaged"):
        read_latent(path)
    path.write_bytes(b"nothing")
    read_latent.cache_clear()
    with pytest.raises(InputError, match="not latent tables: Expecting value"):
        read_latent(path)
