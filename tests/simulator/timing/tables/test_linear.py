"""Linear attention of composed profiles: what was measured comes out, and what was not is refused by name."""

from dataclasses import replace

import numpy as np
import pytest

from scenarios.profiles import shipped_tables
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import Model, custom_model, find_model
from simulator.timing.arithmetic import prompt_counts
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Roofline
from simulator.timing.profile import Options, ProfileCost, refusal
from simulator.timing.profile.kernels import PrefillTable
from simulator.timing.tables import Tables, compose, parts_of, read_tables
from simulator.timing.tables.attention import find_table, prompt_us
from simulator.timing.tables.latent import find_latent
from simulator.timing.tables.linear import find_linear, linear_attention

B200 = find_gpu("b200")
HYBRID = custom_model({
    "layers": 60, "hidden": 4096, "intermediate": 1024, "heads": 32, "kv_heads": 2, "head_dim": 256, "vocab": 248320,
    "max_model_len": 262144, "experts": 512, "active_experts": 10, "shared_experts": 1, "qk_norm": True,
    "attention_gate": True, "linear_layers": 45, "linear_key_heads": 16, "linear_value_heads": 64,
})  # fmt: skip
"""Qwen3.5-397B-A17B, in bf16."""
NEMOTRON = find_model("nemotron-nano-9b-v2")


@pytest.fixture(scope="module")
def tables() -> Tables:
    return read_tables(shipped_tables()["b200-sglang-0.5"])


def step_s(tables: Tables, model: Model, shape: StepShape, ranks: int = 8) -> float:
    return ProfileCost(compose(tables, model, B200, ranks), Options(host_s=0.0)).step_s(shape)


def test_parameters_and_cache_of_a_hybrid_model() -> None:
    assert HYBRID.num_parameters == pytest.approx(397e9, rel=0.01)
    assert HYBRID.active_parameters == pytest.approx(17e9, rel=0.07)
    assert HYBRID.kv_bytes_per_token() == 15 * 2 * 2 * 256 * 2  # the state of the others does not grow


def test_measured_times_come_out(tables: Tables) -> None:
    found = find_linear(tables)
    assert found is not None
    seqs, chunks, each = np.array([1.0, 64.0, 2048.0]), np.array([1.0, 4.0]), np.array([1024.0, 512.0])
    decode, prompt, (part,) = linear_attention(tables, HYBRID, 8, seqs, chunks, each)
    assert decode[1] == pytest.approx(15.9, rel=0.01)  # gdn_perf: 13.4 us of the recurrence and 2.5 of the convolution
    assert prompt[0] == pytest.approx(74.4, rel=0.01)  # 69.6 and 4.8
    assert decode[2] == pytest.approx(2.0 * np.exp(found.decode[2, 8][-1]))  # twice as many as were measured
    assert part.how == "measured"


def test_a_step_holds_it(tables: Tables) -> None:
    profile = compose(tables, HYBRID, B200, 8)
    assert "linear attention" in {part.name for part in parts_of(profile)}
    assert refusal(profile, HYBRID, B200, 8) is None
    assert "linear_key_heads 8" in str(refusal(profile, replace(HYBRID, linear_key_heads=8), B200, 8))
    plain = replace(HYBRID, linear_layers=0, linear_key_heads=0, linear_value_heads=0)
    short, long = StepShape(64, 64 * 128), StepShape(64, 64 * 65536)
    grows = [step_s(tables, model, long) - step_s(tables, model, short) for model in (HYBRID, plain)]
    assert grows[0] == pytest.approx(grows[1] / 4, rel=0.05)  # a quarter of the layers reads the context


@pytest.mark.parametrize(("model", "ranks"), [(HYBRID, 8), (NEMOTRON, 1), (NEMOTRON, 8)])
def test_a_prompt_takes_what_its_kinds_of_layers_take(tables: Tables, model: Model, ranks: int) -> None:
    """A mean layer: attention in the layers that have it, and the states of the others."""
    profile = compose(tables, model, B200, ranks)
    table = find_table(tables.prompt, model.head_dim, "bf16", 0, "")
    attention = np.exp(prompt_us(table, (model.heads // ranks, model.local_kv_heads(ranks))).log_us)
    for place in (7, 11, 13):
        tokens = table.axes[1].values[place]
        one = np.array([1.0])
        states = linear_attention(tables, model, ranks, one, one, np.array([tokens]))[1][0]
        expected = (model.attention_layers * attention[0, place] + model.state_layers * states) / model.layers
        assert isinstance(profile.attention.prompt, PrefillTable)
        length = int(tokens)
        counts = prompt_counts(1, length, length * (length + 1) / 2, length)
        found = profile.attention.prompt.lookup.us_of_count(1, tokens, counts)
        assert found == pytest.approx(expected, rel=0.02)


def test_mamba_2_is_as_long_as_a_gated_delta_net_of_as_many_state_values(tables: Tables) -> None:
    one, many = np.array([1.0]), np.array([64.0, 1024.0])
    narrow = replace(HYBRID, linear_layers=0, layer_types="M*", linear_value_head_dim=64, state_dtype_bytes=4)
    plain = linear_attention(tables, replace(HYBRID, linear_value_heads=32), 1, many, one, one)[0]
    decode, _, (part,) = linear_attention(tables, narrow, 1, many, one, one)
    np.testing.assert_allclose(decode, plain)  # 64 heads of 64 x 128 are 32 of 128 x 128
    halved = linear_attention(tables, replace(narrow, state_dtype_bytes=2), 1, many, one, one)[0]
    assert halved[1] == pytest.approx(decode[1] / 2, rel=0.1)
    assert part.how == "estimated"


def test_nemotron_has_one_mixer_or_feed_forward_a_layer(tables: Tables) -> None:
    shape = StepShape(64, 64 * 2000)
    for ranks in (1, 8):
        tabled, formula = (
            step_s(tables, NEMOTRON, shape, ranks),
            Roofline(NEMOTRON, B200, ranks, host_s=0.0).step_s(shape),
        )
        assert tabled == pytest.approx(formula, rel=0.2)
    assert refusal(compose(tables, NEMOTRON, B200, 1), NEMOTRON, B200, 1) is None
    other = replace(NEMOTRON, linear_value_head_dim=64)
    assert "linear_value_head_dim 64" in str(refusal(compose(tables, NEMOTRON, B200, 1), other, B200, 1))


def test_a_roofline_counts_states_and_fewer_caches() -> None:
    shape = StepShape(64, 64 * 65536)
    plain = replace(HYBRID, linear_layers=0, linear_key_heads=0, linear_value_heads=0)
    assert Roofline(HYBRID, B200, 8).step_s(shape) < Roofline(plain, B200, 8).step_s(shape)
    wide = replace(HYBRID, linear_value_heads=128)
    assert Roofline(wide, B200, 8).step_s(shape) > Roofline(HYBRID, B200, 8).step_s(shape)


def test_what_was_not_measured_is_refused(tables: Tables) -> None:
    one = np.array([1.0])
    with pytest.raises(InputError, match="5 key and 20 value heads"):
        linear_attention(tables, replace(HYBRID, linear_key_heads=40, linear_value_heads=160), 8, one, one, one)
    with pytest.raises(InputError, match="heads of 64"):
        linear_attention(tables, replace(HYBRID, linear_head_dim=64), 8, one, one, one)
    with pytest.raises(InputError, match="come together"):
        custom_model({"base": "qwen3-8b", "linear_layers": 9})
    with pytest.raises(InputError, match="without a window"):
        custom_model({"base": "gpt-oss-20b", "linear_layers": 9, "linear_key_heads": 4, "linear_value_heads": 4})


def test_sparse_attention_has_tables_of_its_own(tables: Tables) -> None:
    sizes = {"q_lora_rank": 1536, "kv_lora_rank": 512, "rope_head_dim": 64}
    dense = custom_model({
        "layers": 4, "hidden": 7168, "intermediate": 18432, "heads": 128, "kv_heads": 128, "head_dim": 128,
        "vocab": 129280, "max_model_len": 163840, "dtype_bytes": 1, "matmul_dtype": "fp8_block", **sizes,
    })  # fmt: skip
    sparse = replace(dense, index_topk=2048)
    names = [found.dimensions["index_topk"] for model in (dense, sparse) if (found := find_latent(tables, model))]
    assert names == [0, 2048]
    near = StepShape(64, 64 * 2048)
    assert step_s(tables, sparse, near) > step_s(tables, dense, near)  # the indexer, where all keys are chosen


def test_a_norm_over_all_heads_is_one_all_reduce_more(tables: Tables) -> None:
    model = custom_model({"base": "qwen3-32b"})
    whole = replace(model, qk_norm_whole=True)
    one, other = (compose(tables, each, B200, 8).all_reduce for each in (model, whole))
    assert one is not None
    assert other is not None
    assert other.at(1) == pytest.approx(1.5 * one.at(1), rel=0.2)  # three a layer instead of two, the third small
    profile = compose(tables, whole, B200, 1)
    assert profile.all_reduce is None
    assert refusal(profile, whole, B200, 1) is None
