"""Models composed of tables: what was measured comes out as it went in, what lies between and beyond by its rule."""

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from scenarios.profiles import shipped_tables
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS, Model
from simulator.timing.arithmetic import windowed_pairs
from simulator.timing.cost import StepShape
from simulator.timing.profile import Options, ProfileCost, refusal
from simulator.timing.profile.prices import joint_us
from simulator.timing.tables import Tables, compose, load_tables, parts_of, read_tables
from simulator.timing.tables.all_reduces import wider
from simulator.timing.tables.attention import decode_us, find_table, prompt_us, visible_pairs, within_window
from tests import tables_maker as maker

H100 = find_gpu("h100")
LLAMA = replace(MODELS["llama-3.1-8b"], layers=4)
TABLES = load_tables(maker.document())


def composed(model: Model = LLAMA, ranks: int = 1, tables: Tables = TABLES) -> ProfileCost:
    return ProfileCost(compose(tables, model, H100, ranks), Options(host_s=0.0))


def how(cost: ProfileCost) -> dict[str, str]:
    return {part.name: part.how for part in parts_of(cost.profile)}


def test_measured_heads_come_out_as_they_went_in() -> None:
    cost = composed()
    table = TABLES.decode[0].log_us[32, 8]
    for row, seqs in enumerate(maker.SEQS[:-1]):
        for column, context in enumerate(maker.CONTEXT):
            found = cost.profile.attention.decode.us(int(seqs), context)
            assert found == pytest.approx(np.exp(table[row, column]), rel=1e-9)
    prompts = TABLES.prompt[0].log_us[32, 8]
    for column, each in enumerate(maker.EACH):
        n = int(each)
        found = joint_us(cost.profile.attention, StepShape(0, 0, 1, n, n, n * (n + 1) // 2, 0, 0, n))
        assert found == pytest.approx(np.exp(prompts[0, column]), rel=1e-9)


def test_query_heads_between_two_take_the_mean_of_their_logarithms() -> None:
    found = decode_us(TABLES.decode[0], (16, 8))
    low, high = (decode_us(TABLES.decode[0], (heads, 8)).log_us for heads in (8, 32))
    assert found.how == "interpolated"
    assert found.log_us == pytest.approx(0.5 * (low + high))
    assert np.exp(found.log_us - low) == pytest.approx(sqrt(maker.factor(32)), rel=2e-3)


def test_more_kv_heads_are_as_many_more_sequences() -> None:
    """32 / 32 heads: the work of four times the batch with 8 / 8."""
    found = decode_us(TABLES.decode[0], (32, 32))
    like = decode_us(TABLES.decode[0], (8, 8))
    assert found.how == "extrapolated"
    for row, seqs in ((0, 4.0), (1, 32.0)):
        counts = {"items": seqs * 8, "keys": seqs * 8 * np.array(maker.CONTEXT), "chain": np.array(maker.CONTEXT)}
        expected = TABLES.decode[0].physics.us(counts)  # the factor of 8 query heads is 1
        assert np.exp(found.log_us[row]) == pytest.approx(expected, rel=2e-3)
        assert (found.log_us[row] > like.log_us[row]).all()


def test_the_correction_of_more_kv_heads_is_that_of_the_larger_batch() -> None:
    table = TABLES.decode[0]
    rising = {heads: us + 0.1 * np.log(np.array(maker.SEQS))[:, None] for heads, us in table.log_us.items()}
    rising_table = replace(table, log_us=rising)
    more = decode_us(rising_table, (32, 32)).log_us - decode_us(table, (32, 32)).log_us
    assert more[:3, 0] == pytest.approx(0.1 * np.log(4 * np.array(maker.SEQS[:3])), abs=1e-6)


def test_a_step_has_two_all_reduces_a_layer_by_their_bytes() -> None:
    reduce = composed(ranks=2).profile.all_reduce
    assert reduce is not None
    assert reduce.at(1048576 / (4096 * 2)) == pytest.approx(2 * 4 * 12.0)


def test_decodes_beside_prompts_are_slower_where_heads_are_not_packed() -> None:
    a100 = load_tables({**maker.document(), "gpu": "a100-80gb"})
    attention = compose(a100, LLAMA, find_gpu("a100-80gb"), 1).attention
    assert attention.beside == pytest.approx(4**0.48)
    assert composed().profile.attention.beside == 1.0


def test_prompts_take_the_nearest_kv_heads() -> None:
    assert prompt_us(TABLES.prompt[0], (32, 4)).how == "extrapolated"
    near = prompt_us(TABLES.prompt[0], (32, 16)).log_us
    assert near == pytest.approx(prompt_us(TABLES.prompt[0], (32, 8)).log_us)


def test_products_are_of_the_layers_precision_and_the_head_of_bf16() -> None:
    half, whole = composed(replace(LLAMA, dtype_bytes=1)), composed()
    for name, curve in half.profile.layer_curves.items():
        if name in ("qkv", "gate_up", "down", "output_projection"):
            assert curve.at(8) < 0.6 * whole.profile.layer_curves[name].at(8) + 1.5, name
    assert half.profile.row_curves["lm_head"] == whole.profile.row_curves["lm_head"]
    words = {part.name: part.words for part in parts_of(half.profile)}
    assert words["qkv"] == "fp8, 6,144 x 4,096, with the quantisation of its input"
    assert words["lm_head"] == "bf16, 128,256 x 4,096"


def test_every_part_says_how_it_was_come_by() -> None:
    found = how(composed(replace(LLAMA, heads=16, kv_heads=8, head_dim=128, dtype_bytes=1), ranks=1))
    assert found["qkv"] == "measured"  # 4,096 x 4,096
    assert found["down"] == "interpolated"
    assert found["lm_head"] == "extrapolated"
    assert found["decode attention"] == "interpolated"
    assert found["sampler"] == found["norm, rope, cache_write, activation"] == "assumed"
    assert found["prompts beside decodes"] == "estimated"
    assert how(composed(ranks=2))["all-reduce among 2"] == "measured"


def test_a_profile_that_was_composed_is_of_its_model_and_nothing_else() -> None:
    profile = compose(TABLES, LLAMA, H100, 1)
    assert refusal(profile, LLAMA, H100, 1) is None
    assert refusal(profile, replace(LLAMA, dtype_bytes=1), H100, 1) is not None
    assert refusal(profile, replace(LLAMA, hidden=2048), H100, 1) is not None
    assert refusal(profile, LLAMA, H100, 2) is not None
    assert refusal(profile, LLAMA, find_gpu("h200"), 1) is not None
    assert compose(TABLES, LLAMA, H100, 1) is profile  # kept


# ------------------------------------------------------------------------------------------------------------- windows


@pytest.mark.parametrize(
    ("chunk", "cached", "window"), [(100, 0, 512), (1000, 0, 512), (700, 300, 512), (64, 900, 512)]
)
def test_pairs_within_a_window_are_counted(chunk: int, cached: int, window: int) -> None:
    exact = sum(min(cached + i + 1, window) for i in range(chunk))
    whole = chunk * cached + chunk * (chunk + 1) // 2
    assert windowed_pairs(1, chunk, whole, window) == pytest.approx(exact, rel=0.01)
    if not cached:
        assert visible_pairs(np.array([float(chunk)]), window)[0] == exact


def test_a_mixture_of_windows_lies_between_its_two_kinds_by_their_number() -> None:
    each = {
        share: composed(replace(LLAMA, sliding_window=512, full_attention_layers=share)).profile for share in (0, 1, 4)
    }
    plain = composed().profile
    for seqs, context in ((1, 16.0), (8, 1024.0), (64, 8192.0)):
        windowed, mixed, whole = (each[share].attention.decode.us(seqs, context) for share in (0, 1, 4))
        assert mixed == pytest.approx(0.75 * windowed + 0.25 * whole, rel=1e-6)
        assert whole == pytest.approx(plain.attention.decode.us(seqs, context))
    n = 8192
    prompt = StepShape(0, 0, 1, n, n, n * (n + 1) // 2, 0, 0, n)
    windowed, mixed, whole = (joint_us(each[share].attention, prompt) for share in (0, 1, 4))
    assert mixed == pytest.approx(0.75 * windowed + 0.25 * whole, rel=1e-6)
    assert windowed < 0.5 * whole
    behind = StepShape(0, 0, 1, 512, 8192, 512 * 7680 + 512 * 513 // 2, 0, 0, 8192)
    assert joint_us(each[0].attention, behind) < 0.5 * joint_us(plain.attention, behind)  # a chunk far behind
    assert {part.name for part in parts_of(each[1])} >= {"decode attention", "decode attention, window 512"}


@pytest.mark.parametrize(("width", "window", "decode", "prompt"), [(128, 8192, 0.07, 0.05), (256, 1024, 0.05, 0.21)])
def test_a_window_that_was_measured_is_estimated_from_attention_without_one(
    width: int, window: int, decode: float, prompt: float
) -> None:
    """What the estimate of any other window is worth: medians beyond the window, on H200."""
    tables = read_tables(shipped_tables()["h200-vllm-0.24"])
    for kind, most in ((tables.decode, decode), (tables.prompt, prompt)):
        (whole,) = [table for table in kind if (table.head_dim, table.kv_dtype, table.window) == (width, "bf16", 0)]
        known = find_table(kind, width, "bf16", window, "")
        beyond = np.asarray(known.axes[1].values) > window
        estimate = within_window(whole, window)
        errors = [
            (estimate.log_us[heads] - us)[:, beyond] for heads, us in known.log_us.items() if heads in whole.log_us
        ]
        assert 0 < np.nanmedian(np.abs(np.expm1(np.concatenate(errors)))) < most


def test_a_window_between_those_measured_lies_between_them() -> None:
    tables = read_tables(shipped_tables()["h200-vllm-0.24"])
    each = {
        window: compose(tables, replace(LLAMA, sliding_window=window), find_gpu("h200"), 1)
        for window in (0, 128, 4096, 8192)
    }
    decodes = [each[window].attention.decode.us(32, 30000.0) for window in (128, 4096, 8192, 0)]
    assert decodes == sorted(decodes)
    assert each[4096].attention.decode.us(32, 1000.0) == pytest.approx(
        each[0].attention.decode.us(32, 1000.0), rel=0.03
    )
    n = 32768
    long = StepShape(0, 0, 1, n, n, n * (n + 1) // 2, 0, 0, n)
    prompts = [joint_us(each[window].attention, long) for window in (128, 4096, 8192, 0)]
    assert prompts == sorted(prompts)
    found = {part.name: f"{part.how} {part.words}" for part in parts_of(each[4096])}
    assert found["decode attention, window 4,096"] == "interpolated as without a window, within it"


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "ranks", "says", "hint"),
    [
        ({"dtype_bytes": 0.5, "matmul_dtype": "fp4"}, 1, "no matrix products of 0.5-byte weights multiplied in nvfp4",
         "weights in nvfp4 have 0.5625 bytes"),
        ({"dtype_bytes": 0.5625, "matmul_dtype": "nvfp4"}, 1, "no matrix products of nvfp4", "measured: bf16, fp8"),
        ({"dtype_bytes": 0.53}, 1, "int4 or int8", "measured: bf16, fp8"),
        ({"dtype_bytes": 1, "matmul_dtype": "fp8_block"}, 1, "fp8_block: nobody measured them", "measured: bf16, fp8"),
        ({"head_dim": 96}, 1, "no decode attention for heads of 96", "measured: heads of 128"),
        ({"kv_dtype_bytes": 4}, 1, "heads of 128 with float32 KV", "measured: bf16, fp8 KV"),
        ({"sliding_window": 64}, 1, "a window of 64 tokens", "measured windows: none, 512"),
        ({}, 4, "no all-reduce among 4 GPUs", "measured: among 2"),
        ({"experts": 8, "active_experts": 2}, 1, "8 experts in a layer", "roofline"),
        ({"kv_lora_rank": 512, "rope_head_dim": 64}, 1, "multi-head latent attention", "roofline"),
    ],
)  # fmt: skip
def test_what_is_missing_is_refused_by_name(change: dict[str, Any], ranks: int, says: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        compose(TABLES, replace(LLAMA, **change), H100, ranks)
    assert says in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "something"}, 'not tables: "schema"'),
        ({"version": 2}, "tables of version 2"),
        ({"products": {"bf16": {**maker.product("bf16"), "correction": [1]}}}, "damaged"),
        ({"decode": [{**maker.attention("decode"), "heads": {"8": []}}]}, "damaged"),
    ],
)
def test_damaged_tables_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_tables({**maker.document(), **change}, "a file")
    missing = maker.document()
    del missing["prompt"]
    with pytest.raises(InputError, match="no 'prompt'"):
        load_tables(missing)


def test_all_reduces_among_more_than_were_measured_are_extrapolated() -> None:
    """A ring of 8 moves 7/8 where 4 move 3/4; 16 are two servers of H100s, and one rack's part of GB200s."""
    sizes, us = TABLES.all_reduce[2]
    tables = replace(TABLES, all_reduce={4: (sizes, us)})
    found = {}
    for gpu, ranks in ((H100, 8), (H100, 16), (find_gpu("gb200"), 16)):
        found[gpu.name, ranks], (part,) = wider(tables, LLAMA, gpu, ranks)
        assert part.how == "extrapolated"
    tokens = float(sizes[-1]) / (LLAMA.hidden * 2)
    eight = found["h100", 8].at(tokens)
    assert eight == pytest.approx(LLAMA.sublayers * float(us[-1]) * (7 / 8) / (3 / 4), rel=1e-4)
    assert found["gb200", 16].at(tokens) == pytest.approx(eight * (15 / 16) / (7 / 8), rel=1e-4)
    network = 2 * 20.0 + 2 * 0.5 * float(sizes[-1]) / 8 / 50e3
    assert found["h100", 16].at(tokens) == pytest.approx(eight + LLAMA.sublayers * network, rel=1e-4)
    with pytest.raises(InputError, match="no all-reduce among 8"):
        wider(TABLES, LLAMA, H100, 8)
