from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibration.fit import check_profile, decode_surface, fit_profile, fit_skew, joint_surface, write_document
from calibration.heldout import held_out, summary
from calibration.rows import KernelRows, make_table, merge, read_rows, reject_impossible, select, write_rows
from calibration.surface_fit import DECODE, Shape, fit_physics, joint
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import find_model
from simulator.timing.cost import COUNTS, StepShape
from simulator.timing.profile import ProfileCost, load_profile, read_profile
from simulator.timing.tables.table_schema import fill
from tests import calibration_maker as maker

MODEL, GPU = find_model("llama-3.1-8b"), find_gpu("h200")


def test_physics_finds_the_coefficients_again() -> None:
    random = np.random.default_rng(0)
    a, b, c = random.uniform(1, 1e4, (3, 300))
    us = 12.0 + 0.3 * a + ((0.02 * b) ** 4 + (0.5 * c) ** 4) ** 0.25
    us[:10] *= 3.0  # outliers, which a robust loss lives with
    found = fit_physics(Shape(("a",), (("b",), ("c",))), {"a": a, "b": b, "c": c}, us)
    assert found.p == 4.0
    assert found.terms[0][1] == pytest.approx(0.3, rel=0.02)
    assert found.roofs[1][0][1] == pytest.approx(0.5, rel=0.02)


def test_coefficients_are_never_negative_and_unseen_features_cost_nothing() -> None:
    a = np.linspace(1, 100, 50)
    found = fit_physics(Shape(("a", "b", "c"), ()), {"a": a, "b": -a + 101, "c": np.zeros(50)}, 5.0 + 2.0 * a)
    coefficients = dict(found.terms)
    assert min(coefficients.values()) >= 0
    assert coefficients["c"] == 0.0


def test_a_dense_table_is_kept_as_it_is() -> None:
    table = maker.attention()
    alone = select(table, table["chunk"] == 0)
    surface = decode_surface(alone)
    found = surface.us_many([alone["seqs"], alone["context"]], DECODE.features(alone["seqs"], alone["context"]))
    assert found == pytest.approx(alone["us"], rel=1e-9)


def test_a_joint_table_is_predicted_between_its_cells() -> None:
    table = maker.attention()
    surface, knee = joint_surface(select(table, table["chunk"] > 0))
    places = [np.array([float(value)]) for value in (200, 100, 10, 500)]
    found = surface.us_many(places, joint(knee).features(*places))
    assert float(found[0]) == pytest.approx(maker.joint_us(200, 100, 10, 500), rel=0.1)


def test_scattered_rows_give_a_coarse_surface() -> None:
    table = maker.attention()
    alone = np.flatnonzero((table["chunk"] == 0) & (table["seqs"] > 0))
    some = select(table, alone[np.array([0, 4, 7, 9, 10, 13, 15, 19])])
    surface = decode_surface(some)
    rest = select(table, alone)
    found = surface.us_many([rest["seqs"], rest["context"]], DECODE.features(rest["seqs"], rest["context"]))
    assert np.abs(found / rest["us"] - 1).mean() < 0.1


def test_holes_take_the_mean_of_their_neighbours() -> None:
    nan = np.nan
    assert fill(np.array([[1.0, nan], [nan, 3.0]])).tolist() == [[1.0, 2.0], [2.0, 3.0]]
    assert fill(np.array([2.0, nan, nan])).tolist() == [2.0, 2.0, 2.0]
    assert fill(np.array([nan, nan])).tolist() == [0.0, 0.0]


def test_skew_is_per_key_beyond_the_mean() -> None:
    skew = fit_skew(maker.skew())
    assert skew is not None
    contexts = [512] * 15 + [2048]
    shape = StepShape(16, sum(contexts), decode_longest=2048, decode_squares=sum(c * c for c in contexts))
    assert skew.us(shape) == pytest.approx(0.01 * (2048 - 608), rel=0.02)
    assert skew.us(shape._replace(prefill_tokens=64)) == pytest.approx(0.02 * (2048 - 608), rel=0.02)


def test_a_profile_predicts_the_steps_it_was_made_of(tmp_path: Path) -> None:
    made = maker.rows()
    document = fit_profile(made, MODEL, GPU, "made")
    path = tmp_path / "made.json"
    write_document(document, path)
    cost = ProfileCost(read_profile(path))
    tokens = 64  # a captured size
    layer = 45 * (20.0 + 0.1 * tokens) - 8 * (20 + 0.1 * tokens) - 9 * (20 + 0.1 * tokens)
    once = 17 * (20.0 + 0.1 * tokens) + 325.0 + 2 * 0.2 * tokens
    us = 32 * (layer + maker.decode_us(64, 1024)) + once
    assert cost.step_s(StepShape(64, 64 * 1024)) == pytest.approx(us * 1e-6 + document["host"]["step_s"], rel=2e-3)
    assert not check_profile(path).complaints


def test_the_hosts_part_is_fitted_from_whole_steps() -> None:
    """What steps take beyond their kernels, not an assumed figure; a step that stalled does not count."""
    rows = maker.rows()
    assumed = fit_profile(rows, MODEL, GPU, "x")
    assert assumed["host"]["from"] == "assumed"
    cost = ProfileCost(load_profile({**assumed, "host": {"step_s": 0.0, "seq_s": 0.0}}))
    shapes = [StepShape(seqs, seqs * context) for seqs in (1, 4, 16, 64) for context in (64, 256, 1024, 4096)]
    us = np.array([cost.step_s(shape) * 1e6 + 170.0 + 3.0 * shape.decode_seqs for shape in shapes])
    us[3] += 50_000.0
    columns = {name: [getattr(shape, name) for shape in shapes] for name in COUNTS}
    steps = make_table("step", {**columns, "us": us})
    fitted = fit_profile(replace(rows, tables={**rows.tables, "step": steps}), MODEL, GPU, "x")
    assert fitted["host"]["step_s"] == pytest.approx(170e-6, rel=0.02)
    assert fitted["host"]["seq_s"] == pytest.approx(3e-6, rel=0.02)
    assert fitted["host"]["from"] == "fitted from 15 of 16 whole steps"


def test_rows_that_are_missing_are_named() -> None:
    with pytest.raises(InputError, match="no rows of dense operators"):
        fit_profile(maker.without(maker.rows(), "dense"), MODEL, GPU, "x")
    with pytest.raises(InputError, match="no rows of decode attention"):
        fit_profile(maker.without(maker.rows(), "attention"), MODEL, GPU, "x")


def test_what_nobody_measured_is_assumed_and_said() -> None:
    gemm = [(m, n, k, 5.0 + 2e-6 * m * n * k / 800) for m in (1, 64, 1024) for n in (2048, 8192) for k in (2048, 8192)]
    table = make_table("gemm", dict(zip(("m", "n", "k", "us"), np.array(gemm).T, strict=True)))
    made = maker.rows()
    bare = replace(made, tensor_parallel=2, tables={"gemm": table, "attention": made.tables["attention"]})
    document = fit_profile(bare, MODEL, GPU, "x")
    assert {"norm", "activation", "sampler", "all_reduce"} <= set(document["assumed"])
    assert document["all_reduce"]["from"].startswith("nominal link of 450 GB/s")
    assert load_profile(document).all_reduce is not None


def test_impossible_rows_are_rejected_and_listed() -> None:
    fine, broken = (1.0, 4096.0, 4096.0, 20.0), (8192.0, 8192.0, 8192.0, 100.0)  # 11 PFLOP/s
    table = make_table("gemm", dict(zip(("m", "n", "k", "us"), np.array([fine, broken]).T, strict=True)))
    rows, rejected = reject_impossible(KernelRows("h200", tables={"gemm": table}), GPU, MODEL)
    assert rows.count() == 1
    (part,) = rejected
    assert (part.kind, part.count, part.of) == ("gemm", 1, 2)
    assert "m 8192" in part.listed[0]


def test_attention_faster_than_memory_is_rejected() -> None:
    columns = {"chunk": [0], "cached": [0], "seqs": [256], "context": [4096], "us": [100.0]}  # 43 TB/s
    rows = KernelRows("h200", tables={"attention": make_table("attention", columns)})
    assert reject_impossible(rows, GPU, MODEL)[0].count() == 0
    assert reject_impossible(rows, GPU, None)[0].count() == 1


def test_held_out_errors_are_of_rows_that_were_not_fitted() -> None:
    errors = held_out(maker.rows(), MODEL, GPU)
    assert set(errors) == {"decode_attention", "prefill_attention", "joint_attention"}
    assert errors["decode_attention"]["random"]["rows"] == len(maker.SEQS) * len(maker.CONTEXTS)
    assert errors["joint_attention"]["random"]["mape"] < 5.0
    assert errors["joint_attention"]["unmixed"]["mape"] > errors["joint_attention"]["random"]["mape"]


def test_a_summary_is_in_percent() -> None:
    found = summary(np.array([0.1, -0.2, 0.0, 0.0]))
    assert found == {"mape": 7.5, "median": 5.0, "p95": pytest.approx(18.5), "bias": -2.5, "rows": 4}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz"])
def test_rows_are_written_and_read_again(tmp_path: Path, name: str) -> None:
    made = maker.rows()
    write_rows(made, tmp_path / name)
    again = read_rows(tmp_path / name)
    assert (again.gpu, again.model, again.software, again.sources) == ("h200", "llama-3.1-8b", "made up", made.sources)
    for kind, table in made.tables.items():
        for column, values in table.items():
            assert again.table(kind)[column].tolist() == values.tolist()
    assert merge([made, again]).count() == 2 * made.count()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ('{"kind": "gem"}', "unknown kind 'gem'"),
        ('{"kind": "gemm", "m": 1, "n": 2, "us": 3}', "gemm with k = None"),
        ('{"kind": "experts", "tokens": 1, "activated": 2, "us": 0}', "us = 0"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"schema": "batchlab rows", "version": 1, "gpu": "h200"}\n' + line + "\n")
    with pytest.raises(InputError, match=words) as found:
        read_rows(path)
    assert found.value.line == 2


def test_rows_need_their_header(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"kind": "gemm"}\n')
    with pytest.raises(InputError, match="not the header"):
        read_rows(path)
