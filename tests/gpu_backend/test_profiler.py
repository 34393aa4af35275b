"""Measuring: what is measured, how it is told whether the device was steady, and what is written."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from calibration.own_steps import fit_steps
from calibration.rows import COLUMNS, read_rows, write_rows
from gpu_backend.backend import Backend
from gpu_backend.device import Cpu
from gpu_backend.probes import GRIDS, Grid, Probe, Probes
from gpu_backend.session import (
    MEASURED,
    ROWS,
    Measurements,
    Reading,
    SwapRow,
    _rows,
    measure_into,
    profile,
    write_profile,
)
from simulator.errors import InputError
from simulator.hardware.models import custom_model
from simulator.lockstep.lockstep_run import Canary
from simulator.timing.cost import StepShape
from tests.command import batchlab
from tests.gpu_backend.counted import count_work
from tests.gpu_maker import TINY
from tools.campaign.serving import TRAFFIC

SMALL = Grid(4, 64, 32)
HEADER = {"device": "cuda", "gpu": "h200", "model": "tiny", "dtype": "float32"}


@pytest.fixture(scope="module")
def measured() -> Measurements:
    return profile(Backend(TINY, Cpu(1), 64, 4, 16), SMALL)


def test_a_profile_has_every_kind_of_row(measured: Measurements) -> None:
    kinds = Counter(row["kind"] for row in measured.rows)
    assert set(kinds) == {"dense", "sampled", "attention", "skew", "step"}
    assert all(row["equal_us"] > 0 for row in measured.rows if row["kind"] == "skew")
    assert all(len(each) == 3 for each in measured.readings)
    assert all(row["us"] > 0 for row in measured.rows)
    ops = {row["op"] for row in measured.rows if row["kind"] == "dense"}
    assert ops == {
        "qkv", "output_projection", "gate_up", "down", "norm", "rope", "activation", "embedding", "final_norm",
    }  # fmt: skip
    steps = [row for row in measured.rows if row["kind"] == "step"]
    assert any(row["prefill_tokens"] and row["decode_seqs"] for row in steps)
    assert any(row["decode_squares"] * row["decode_seqs"] > row["decode_context"] ** 2 for row in steps), "skewed ones"


def test_swapping_is_measured_both_ways(measured: Measurements) -> None:
    assert {(row.direction, row.blocks) for row in measured.swap} == {(d, n) for d in ("out", "in") for n in (1, 4, 16)}
    assert measured.swap_s_per_block() == pytest.approx(
        np.mean([row.us / row.blocks for row in measured.swap if row.blocks > 1]) * 1e-6
    )


def test_the_usual_grids_have_150_to_250_shapes() -> None:
    large = custom_model({**{name: getattr(TINY, name) for name in TINY.__slots__}, "max_model_len": 40000})
    for grid in GRIDS.values():
        probes = Probes(Backend(large, Cpu(1), 4096, 16), replace(grid, max_context=min(grid.max_context, 2048)))
        shapes = {(p.kind, *(value for name, value in p.columns.items() if name != "op")) for p in probes.all()}
        assert 150 <= len(shapes) <= 250


def test_an_experts_model_has_rows_of_its_experts() -> None:
    mixture = custom_model(
        {**{name: getattr(TINY, name) for name in TINY.__slots__}, "experts": 8, "active_experts": 2}
    )
    probes = Probes(Backend(mixture, Cpu(1), 64, 4), SMALL)
    rows = [probe for probe in probes.dense() if probe.kind == "experts"]
    assert [probe.columns["tokens"] for probe in rows] == [1, 2, 4, 8, 16, 32]
    assert rows[0].columns["activated"] == 2
    assert rows[-1].columns["activated"] == 8


def test_work_made_up_lies_in_pages_of_its_own() -> None:
    probes = Probes(Backend(TINY, Cpu(1), 64, 4), SMALL)
    work = probes.work([9, 4], [(5, 6)])
    pages = [page for part in work.parts for page in part.table]
    assert len(set(pages)) == len(pages) == 3 + 1 + 3
    assert min(pages) >= 1
    assert work.shape == StepShape(2, 13, 1, 6, 11, 6 * 5 + 21, 9, 97, 11)


def test_rows_are_what_calibration_reads(measured: Measurements, tmp_path: Path) -> None:
    write_profile(tmp_path, steady(measured), HEADER)
    rows = read_rows(tmp_path / ROWS)
    assert (rows.gpu, rows.model, rows.dtype) == ("h200", "tiny", "float32")
    assert rows.count() == len(measured.rows)
    assert set(rows.tables["step"]) == set(COLUMNS["step"])
    seen = json.loads((tmp_path / MEASURED).read_text())
    assert {"fingerprint", "health", "canary", "floor", "host", "swap", "swap_s_per_block"} <= set(seen)
    assert "cpu" in seen["fingerprint"]["torch"] or seen["fingerprint"]["torch"]


def steady(measured: Measurements) -> Measurements:
    return replace(measured, readings=[[Reading(1.0, 1.0)]])


LISTED = [Probe("step", {"decode_seqs": seqs}, lambda: lambda: None) for seqs in (1, 2, 3)]
PAIR = [Probe(kind, {"seqs": 4}, lambda: lambda: None) for kind in ("skew", "attention")]


def test_what_was_measured_beside_a_drifting_canary_does_not_count() -> None:
    """The median is of the steady passes; a row without any is kept, and flagged."""
    wild, calm = Reading(900.0, 1.04), Reading(100.0, 1.01)
    readings = [[calm, wild, wild], [wild, Reading(800.0, 0.95), wild], []]
    rows = _rows(LISTED, readings, 0.03)
    assert [(row["decode_seqs"], row["us"], row.get("flagged", False)) for row in rows] == [
        (1, 100.0, False), (2, 900.0, True),
    ]  # fmt: skip


def test_a_skewed_row_is_as_steady_as_the_even_one_beside_it() -> None:
    rows = _rows(PAIR, [[Reading(9.0, 1.0)], [Reading(7.0, 1.5)]], 0.03)
    assert [(row["us"], row.get("equal_us"), row.get("flagged", False)) for row in rows] == [
        (9.0, 7.0, True), (7.0, None, True),
    ]  # fmt: skip
    assert [row["kind"] for row in _rows(PAIR, [[Reading(9.0, 1.0)], []], 0.03)] == [], "its even one is missing"


def test_flagged_rows_are_kept_and_only_the_fit_refuses(measured: Measurements, tmp_path: Path) -> None:
    some = [{**row, "flagged": True} if index % 10 == 0 else row for index, row in enumerate(measured.rows)]
    write_profile(tmp_path, replace(steady(measured), rows=some), HEADER)
    rows = read_rows(tmp_path / ROWS)
    flagged = sum(len(table["us"]) for table in rows.flagged.values())
    assert flagged == sum(bool(row.get("flagged")) for row in some) > 0
    assert rows.count() == len(some) - flagged
    assert rows.refuse_flagged() == flagged
    write_rows(rows, tmp_path / "again.jsonl")
    assert read_rows(tmp_path / "again.jsonl").refuse_flagged() == flagged, "also when rows are written anew"
    write_profile(tmp_path, replace(steady(measured), rows=[{**row, "flagged": True} for row in measured.rows]), HEADER)
    with pytest.raises(InputError, match="the device changed while it was measured"):
        fit_steps(read_rows(tmp_path / ROWS), "x")


def test_the_floor_is_how_far_passes_are_apart() -> None:
    readings = [[Reading(us, 1.0) for us in each] for each in ((1.0, 1.0, 1.3), (4.0, 5.0, 6.0))]
    found = Measurements([], readings, Canary("x", 1.0), {}, [SwapRow("out", 8, 80.0)], {})
    assert found.floor == pytest.approx((0.3 + 0.2 + 0.2) / 6)
    assert found.swap_s_per_block() == pytest.approx(1e-5)


class Remembers:
    """A memory that is over after so many entries."""

    def __init__(self, kept: dict[str, Mapping[str, Any]], most: int) -> None:
        self.kept, self._most = kept, most

    def recall(self, key: str) -> Mapping[str, Any] | None:
        return self.kept.get(key)

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        self.kept[key] = found

    def is_over(self) -> bool:
        return len(self.kept) >= self._most


def test_measuring_goes_on_where_it_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    count_work(monkeypatch)
    kept: dict[str, Mapping[str, Any]] = {}

    def once(most: int) -> Measurements:
        return profile(Backend(TINY, Cpu(1), 64, 4, 16), SMALL, kernels=False, memory=Remembers(kept, most))

    short = once(4)
    assert 0 < len(short.rows) < 99
    known = {key: dict(value) for key, value in kept.items()}
    whole = once(10_000)
    assert len(whole.rows) > len(short.rows)
    assert {key: kept[key] for key in known} == known, "nothing is measured twice"
    assert whole.rows == once(10_000).rows, "all of it is remembered"


def test_measuring_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count_work(monkeypatch)
    said: list[str] = []
    measure_into(tmp_path, TINY, "cpu", layers=1, limits=(2, 32, 16), block_size=4, steps_only=True, say=said.append)
    rows = read_rows(tmp_path / ROWS)
    assert set(rows.tables) == {"step"}
    assert rows.tables["step"]["decode_seqs"].max() == 2
    assert json.loads((tmp_path / MEASURED).read_text())["layers"] == 1
    assert said[-1] == "pass 3 of 3 done"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cpu"], "no model is given"),
        (["--device", "gpu", "--model", "gpt2"], "cuda"),
        (["--device", "cpu", "--model", "gpt3"], "gpt2"),
        (["--device", "cpu", "--model", "llama-3.1-405b"], "--layers N"),
        (["--device", "cpu", "--model", "gpt2", "--set", "engine.block_size=8"], "--scenario S"),
        (["--device", "cpu", "--scenario", "lockstep-cpu", "--set", "engine.blok_size=8"], "`block_size`"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = batchlab("calibrate", "measure", *arguments, "--out", "out", cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err


@pytest.mark.parametrize("name", TRAFFIC)
def test_traffic_has_the_quantiles_of_its_trace(name: str) -> None:
    traffic = TRAFFIC[name]
    drawn = traffic.requests(20_000, 1)
    for table, tokens in ((traffic.input_tokens, drawn.input_tokens), (traffic.output_tokens, drawn.output_tokens)):
        assert np.percentile(tokens, [10, 50, 90]) == pytest.approx([table[2], table[4], table[6]], rel=0.1)
    gaps = np.diff(drawn.arrival_s)
    assert 1 / gaps.mean() == pytest.approx(traffic.rate, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(traffic.variation, rel=0.1)
    short = traffic.requests(1000, 1, longest=500)
    assert (short.input_tokens + short.output_tokens).max() <= 500
