"""Experts composed of tables: what was measured, even loads from balanced ones, other sizes, and what is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from itertools import product
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import EXPERT_BYTES, MODELS, Model
from simulator.timing.cost import StepShape
from simulator.timing.expert_parallel import Exchange, ExpertParallelCost, MeasuredLink
from simulator.timing.profile import Options, ProfileCost, refusal
from simulator.timing.profile.kernels import RoutedExperts
from simulator.timing.profile.profile_schema import read_physics
from simulator.timing.profile.surface import make_curve
from simulator.timing.tables import Tables, compose, parts_of, read_tables
from simulator.timing.tables.assumed import elementwise
from simulator.timing.tables.experts import (
    SCHEMA,
    SUFFIX,
    VERSION,
    Cell,
    even_curve,
    expert_counts,
    find_experts,
    fullest_curve,
    load_expert_tables,
    read_expert_tables,
)
from tests import tables_maker as maker

H100 = find_gpu("h100")
TOKENS = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)
PHYSICS = {
    "constant_us": 20.0, "terms": {"experts": 0.2, "pairs": 0.001, "tokens": 0.001, "all": 0.01, "shared": 8.0},
    "roofs": [{"flops": 0.002}, {"bytes": 0.0005}], "p": 2.0,
}  # fmt: skip
MIXTRAL = replace(MODELS["mixtral-8x7b"], layers=4)
FACTOR = 1.3
"""Measured over physics, of every cell."""


def cell_us(cell: Cell, precision: str) -> Any:
    counts = expert_counts(np.asarray(TOKENS, dtype=float), cell, EXPERT_BYTES[precision])
    return FACTOR * np.asarray(read_physics(PHYSICS, "test").us(counts))


def shape(model: Model, precision: str, parallel: tuple[str, ...], loads: tuple[str, ...]) -> dict[str, Any]:
    cells = {}
    for each in parallel:
        tensor, expert = map(int, each.split("/"))
        cell = Cell(
            model.hidden, model.intermediate // tensor, model.experts // expert, model.experts, model.active_experts
        )
        us = [round(1e3 * float(np.log(value))) for value in cell_us(cell, precision)]
        cells[each] = {"kernel": 0, **{load: list(us) for load in loads}}
    return {
        "hidden": model.hidden, "intermediate": model.intermediate, "top_k": model.active_experts,
        "experts": model.experts, "parallel": cells,
    }  # fmt: skip


def document(**changed: Any) -> dict[str, Any]:
    loads = ("balanced", "power_law_1.01", "power_law_1.2")
    qwen, oss = MODELS["qwen3-30b-a3b"], MODELS["gpt-oss-120b"]
    of_bf16 = [shape(MIXTRAL, "bf16", ("1/1", "2/1", "1/2"), loads), shape(qwen, "bf16", ("1/1", "1/2", "1/4"), loads)]
    precisions = {
        "bf16": {"physics": {"triton": PHYSICS}, "kernels": ["vllm_x_triton_tritonexperts"], "shapes": of_bf16},
        "mxfp4": {"physics": {"triton": PHYSICS}, "kernels": ["vllm_x_triton_monolithic"],
                  "shapes": [shape(oss, "mxfp4", ("1/1",), loads)]},
        "int4": {"physics": {"marlin": PHYSICS}, "kernels": ["vllm_y_marlin_marlinexperts"],
                 "shapes": [shape(qwen, "int4", ("1/1",), ("power_law_1.01",))]},
    }  # fmt: skip
    return {
        "schema": SCHEMA, "version": VERSION, "name": "h100-test-experts", "gpu": "h100", "software": "test 1.1",
        "sources": [{"source": "made up"}], "errors": {"experts_bf16": {"parallel": {"mape": 3.0, "median": 2.0}}},
        "tokens": list(TOKENS), "precisions": precisions, **changed,
    }  # fmt: skip


TABLES = load_expert_tables(document())


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Tables of products and attention with those of experts beside them."""
    heads = maker.document()
    (tmp_path / f"h100-test-1.1{SUFFIX}").write_bytes(gzip.compress(json.dumps(document()).encode()))
    (tmp_path / "h100-test-1.0.json.gz").write_bytes(gzip.compress(json.dumps(heads).encode()))
    return read_tables(tmp_path / "h100-test-1.0.json.gz")


# --------------------------------------------------------------------------------------------------------------- cells


def test_a_measured_cell_comes_out_as_it_went_in() -> None:
    found = find_experts(TABLES, MIXTRAL, 2, 1, "balanced")
    assert found.how == "measured"
    assert np.asarray(found.curve.us) == pytest.approx(cell_us(Cell(4096, 7168, 8, 8, 2), "bf16"), rel=1e-3)


@pytest.mark.parametrize(
    ("model", "tensor", "expert"),
    [("mixtral-8x7b", 4, 1), ("mixtral-8x22b", 1, 1), ("qwen3-235b-a22b", 1, 8), ("qwen3-30b-a3b", 2, 1)],
)
def test_other_sizes_have_the_physics_and_the_correction_of_their_neighbours(
    model: str, tensor: int, expert: int
) -> None:
    of = MODELS[model]
    found = find_experts(TABLES, of, tensor, expert, "balanced")
    assert found.how == "extrapolated"
    cell = Cell(of.hidden, of.intermediate // tensor, of.experts // expert, of.experts, of.active_experts)
    assert np.asarray(found.curve.us) == pytest.approx(cell_us(cell, "bf16"), rel=2e-3)


def test_a_hole_is_as_far_from_the_physics_as_its_neighbours() -> None:
    holed = document()
    values = holed["precisions"]["bf16"]["shapes"][0]["parallel"]["1/1"]["balanced"]
    values[0] = values[4] = None
    found = find_experts(load_expert_tables(holed), MIXTRAL, 1, 1, "balanced")
    assert np.asarray(found.curve.us) == pytest.approx(cell_us(Cell(4096, 14336, 8, 8, 2), "bf16"), rel=2e-3)


# --------------------------------------------------------------------------------------------------------------- loads


def test_even_loads_are_the_mean_over_all_ways_to_choose() -> None:
    """A kernel whose time is a sum over its experts, 3 + 2 for each that is read + its tokens' work, of 4 for 1."""

    def each_us(load: int) -> float:
        return 0.0 if load == 0 else 2.0 + 0.5 * load**1.5

    def balanced_us(tokens: int) -> float:  # the source gives every expert as many, or one to as many as there are
        return 3.0 + (tokens * each_us(1) if tokens < 4 else 4 * each_us(tokens // 4))

    sizes = [1, 2, 3, *range(4, 33, 4)]
    curve = make_curve(np.asarray(sizes, dtype=float), np.array([balanced_us(size) for size in sizes]))
    even = even_curve(curve, 4, 1)
    for tokens in (1, 2, 3, 6):
        ways = list(product(range(4), repeat=tokens))
        exact = np.mean([3.0 + sum(each_us(way.count(expert)) for expert in range(4)) for way in ways])
        assert even.at(tokens) == pytest.approx(exact, rel=2e-3), tokens


def test_even_loads_touch_fewer_experts_and_end_where_balanced_ones_do() -> None:
    qwen = MODELS["qwen3-30b-a3b"]
    even, balanced = (find_experts(TABLES, qwen, 1, 1, load).curve for load in ("even", "balanced"))
    assert even.at(1) == pytest.approx(balanced.at(1), rel=1e-3)
    assert even.at(16) < 0.75 * balanced.at(16)  # 82 of 128 experts
    assert even.at(4096) == pytest.approx(balanced.at(4096), rel=0.05)
    missed = comb(16, 0) * (1 - 8 / 128) ** 16
    read = balanced.at(16 * (1 - missed))
    assert even.at(16) == pytest.approx(read, rel=0.05)


@pytest.mark.parametrize(("tokens", "gpus"), [(1, 8), (4, 8), (16, 4), (64, 8)])
def test_gpus_that_share_experts_wait_for_the_fullest(tokens: int, gpus: int) -> None:
    """A GPU that takes 1 us a choice takes what the fullest of drawn ones does."""
    top_k, experts = 8, 256
    counts = np.array([1.0, 2.0, 4.0, 16.0, 64.0, 256.0])
    rng = np.random.default_rng(0)
    drawn = [
        np.bincount(rng.random((tokens, experts)).argsort(1)[:, :top_k].ravel() * gpus // experts, minlength=gpus).max()
        for _ in range(2000)
    ]
    fullest = fullest_curve(make_curve(counts, counts * top_k / gpus), top_k, gpus)
    assert fullest.at(tokens) == pytest.approx(np.mean(drawn), rel=0.05)
    assert fullest.at(256) < 1.25 * 256 * top_k / gpus


def test_where_no_balanced_rows_are_the_gentler_power_law_stands_for_even_loads() -> None:
    int4 = replace(MODELS["qwen3-30b-a3b"], expert_dtype="int4")
    found = find_experts(TABLES, int4, 1, 1)
    assert "power_law_1.01 loads, for balanced ones were not measured" in found.words
    assert found.curve == find_experts(TABLES, int4, 1, 1, "power_law_1.01").curve


def test_marlin_is_one_kernel_for_all_weights_of_four_bits() -> None:
    """gpt-oss by Marlin, from int4 rows of another model: the bytes are those of mxfp4, padded as vLLM pads them."""
    found = find_experts(TABLES, MODELS["gpt-oss-120b"], 1, 1, "power_law_1.01", "marlin")
    assert (found.how, found.kernel) == ("extrapolated", "vllm_y_marlin_marlinexperts")
    assert np.asarray(found.curve.us) == pytest.approx(cell_us(Cell(3072, 2944, 128, 128, 4), "mxfp4"), rel=2e-3)


# ------------------------------------------------------------------------------------------------------------ composed


def test_a_layer_has_router_choice_shared_experts_and_its_share_of_dense_layers(tables: Tables) -> None:
    model = replace(MIXTRAL, shared_experts=1, dense_layers=1, dense_intermediate=8192)
    profile = compose(tables, model, H100, 1)
    curves = profile.layer_curves
    assert {"router", "top_k", "shared_experts", "dense_gate_up", "dense_down"} < set(curves)
    whole = compose(tables, replace(MIXTRAL, experts=0, active_experts=0), H100, 1).layer_curves
    each = whole["gate_up"].at(64) + whole["down"].at(64)
    assert curves["shared_experts"].at(64) == pytest.approx(0.75 * each, rel=1e-4)
    assert isinstance(profile.experts, RoutedExperts)
    assert profile.experts.us(64) == pytest.approx(0.75 * find_experts(TABLES, model, 1, 1).curve.at(64))
    how = {part.name: str(part) for part in parts_of(profile)}
    assert how["experts"] == (
        "experts: measured (bf16, even loads, vllm_x_triton_tritonexperts, as under test 1.1)"
    )  # fmt: skip
    assert how["router"].startswith("router: extrapolated")
    assert how["top_k"].startswith("top_k: assumed")
    assert profile.document["errors"]["experts_bf16"] == {"parallel": {"mape": 3.0, "median": 2.0}}
    assert {"source": "made up"} in profile.document["sources"]


def test_experts_apply_their_activation_themselves() -> None:
    assert "activation" not in elementwise(MIXTRAL, H100, 1)
    plain = elementwise(replace(MIXTRAL, experts=0, active_experts=0), H100, 1)["activation"]
    shared = elementwise(replace(MIXTRAL, shared_experts=1), H100, 1)["activation"]
    assert shared.at(100) == pytest.approx(plain.at(100))


def test_experts_in_mxfp4_beside_bf16(tables: Tables) -> None:
    model = replace(MODELS["gpt-oss-120b"], head_dim=128, heads=32, sliding_window=0, full_attention_layers=0)
    profile = compose(tables, model, H100, 1)
    words = {part.name: part.words for part in parts_of(profile)}
    assert words["qkv"].startswith("bf16, ")
    assert words["experts"].startswith("mxfp4, ")
    assert "top_k" not in profile.layer_curves  # what was measured takes the router's logits
    assert refusal(profile, model, H100, 1) is None
    assert "measured with mxfp4 experts" in str(refusal(profile, replace(model, expert_dtype="auto"), H100, 1))


def test_ranks_that_share_experts_take_the_times_of_a_share(tables: Tables) -> None:
    cost = ProfileCost(compose(tables, MIXTRAL, H100, 1), Options(host_s=0.0))
    group = ExpertParallelCost.of(cost, MIXTRAL.hidden, H100, 2)
    busy, idle = StepShape(64, 64 * 500), StepShape(0, 0)
    assert group.group_step_s([busy, busy]) == group.group_step_s([busy, idle])  # a dummy batch is padded to the other
    experts = find_experts(TABLES, MIXTRAL, 1, 2).curve
    more = group.group_step_s([StepShape(128, 64 * 500)] * 2) - group.group_step_s([busy, busy])
    assert more > 0.9e-6 * MIXTRAL.layers * (experts.at(256) - experts.at(128)) > 0
    routed = cost.profile.experts
    assert isinstance(routed, RoutedExperts)
    assert routed.shared_us(128, 2) == experts.at(128) < routed.us(128)
    assert routed.shared_us(192, 3) == routed.shared_us(128, 2)  # 3 do not divide 8 experts: as 2, with as many each
    nothing = replace(cost, profile=replace(cost.profile, experts=replace(routed, shared={})))
    with pytest.raises(InputError, match="no times of experts that 3 GPUs share"):
        ExpertParallelCost.of(nothing, MIXTRAL.hidden, H100, 3)


def test_tokens_sent_to_their_experts_alone_move_less_and_reach_fewer(tables: Tables) -> None:
    link = MeasuredLink(1.0, 0.0, "made up")  # a thousand bytes a microsecond
    assert Exchange(1000, link).us(32 * 10, 10) == 310.0
    assert Exchange(1000, link, copies=2).us(32 * 10, 10) == 20.0
    assert Exchange(1000, link, copies=2).us(2 * 10, 10) == 10.0  # there is one other rank
    cost = ProfileCost(compose(tables, MIXTRAL, H100, 1), Options(host_s=0.0))
    routed = cost.profile.experts
    assert isinstance(routed, RoutedExperts)
    unreached = 128 * (1 - 1 / 2) ** 2
    further_us = routed.shared[max(routed.shared)].us_beyond
    assert routed.reached_us(128, 2, 2) == pytest.approx(routed.shared_us(128, 2) - unreached * further_us)
    steep = replace(routed, shared={2: routed.shared[2], 8: replace(routed.shared[2], us_beyond=1e3)})
    assert steep.reached_us(128, 2, 2) == steep.shared_us(96, 2) > 0  # what reaches a GPU is computed
    busy = [StepShape(64, 64 * 500)] * 2
    every, own = (ExpertParallelCost.of(cost, MIXTRAL.hidden, H100, 2, copies) for copies in (None, 1))
    assert own.group_step_s(busy) < every.group_step_s(busy)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "tensor", "expert", "load", "backend", "says", "hint"),
    [
        ({"expert_dtype": "nvfp4"}, 1, 1, "even", "auto", "has no experts of nvfp4", "measured: bf16, mxfp4, int4"),
        ({"dtype_bytes": 1}, 1, 1, "even", "auto", "has no experts of fp8", "roofline"),
        ({}, 1, 1, "even", "marlin", "no bf16 experts by marlin", "measured: triton"),
        ({"expert_dtype": "int4", "intermediate": 768, "experts": 128}, 1, 1, "power_law_1.2", "auto",
         "under power_law_1.2 loads", "power_law_1.01"),
        ({"intermediate": 1000}, 3, 1, "even", "auto", "width of 1000 is not divided by 3", ""),
        ({}, 1, 3, "even", "auto", "8 experts are not divided by 3", ""),
        ({"gated_mlp": False}, 1, 1, "even", "auto", "those of mixtral-8x7b have two", ""),
        ({"hidden": 65536}, 1, 1, "even", "auto", "a hidden size of 65,536 are too far", "2,048 to 4,096"),
        ({"intermediate": 128}, 8, 1, "even", "auto", "experts 16 wide are too far", "768 to 14,336"),
    ],
)  # fmt: skip
def test_what_was_not_measured_is_refused(
    change: dict[str, Any], tensor: int, expert: int, load: str, backend: str, says: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        find_experts(TABLES, replace(MIXTRAL, **change), tensor, expert, load, backend)
    assert says in caught.value.message
    assert hint in (caught.value.hint or "")


def test_blocks_of_fp8_are_not_cut() -> None:
    blocks = document()
    blocks["precisions"]["fp8_block"] = blocks["precisions"]["bf16"]
    qwen = replace(MODELS["qwen3-30b-a3b"], dtype_bytes=1, matmul_dtype="fp8_block")
    assert find_experts(load_expert_tables(blocks), qwen, 2, 1).words.startswith("fp8_block")
    with pytest.raises(InputError, match="experts 192 wide are no whole blocks of 128"):
        find_experts(load_expert_tables(blocks), qwen, 4, 1)


def test_a_model_with_experts_needs_their_tables(tables: Tables) -> None:
    with pytest.raises(InputError, match=r"8 experts in a layer, of which no kernel times lie beside h100-test-1.0"):
        compose(replace(tables, folder=None), MIXTRAL, H100, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "something"}, '"schema" is not'),
        ({"version": 2}, "tables of experts of version 2"),
        ({"tokens": [1, 2]}, "damaged: 9 times for 2 sizes"),
        ({"precisions": {"bf16": {}}}, "no 'kernels'"),
        ({"precisions": 3}, "damaged"),
    ],
)
def test_damaged_tables_are_refused(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        load_expert_tables(document(**change), "a file")
    path = tmp_path / "x.json.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"cannot read|not tables of experts"):
        read_expert_tables(path)
