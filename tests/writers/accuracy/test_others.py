"""Pages beside docs/served.md: disaggregated servers, and what each key of a scenario costs."""

import csv
import gzip
import math
from pathlib import Path
from typing import Any

import pytest

from docs.writers.accuracy.disaggregated import SIZES, Apart, read_apart, scenario_apart, score_apart, sizes_words
from docs.writers.accuracy.newcomer import FULL, NEWCOMER, size_of, variants, without
from docs.writers.accuracy.others import apart_figures
from docs.writers.accuracy.others_page import (
    disaggregated_files,
    disaggregated_page,
    newcomer_files,
    newcomer_page,
)
from docs.writers.accuracy.served_score import Scored
from scenarios.schema.loader import load

DOCS = Path(__file__).parents[3] / "docs"
PLAIN = {
    "id": "a", "backend_version": "0.19.0", "model_path": "Qwen/Qwen3-32B", "system": "h100_sxm", "precision": "",
    "isl": "1024", "osl": "1024", "silicon_ttft_ms": "300", "silicon_tpot_ms": "30", "concurrency": "4", "image": "i",
}  # fmt: skip
ONE, TWO = {"prefill": (1, 1, 1, 1, 1)}, {"decode": (2, 2, 1, 1, 1)}


def rows(tmp_path: Path, *changes: dict[str, object]) -> list[Apart]:
    """Rows of a file of disaggregated runs: the plain one, changed."""
    made = []
    for change in changes:
        workers: dict[str, Any] = {
            **ONE,
            **TWO,
            **{name: change[name] for name in ("prefill", "decode") if name in change},
        }
        row: dict[str, Any] = {**PLAIN, **{name: value for name, value in change.items() if name in PLAIN}}
        for role, values in workers.items():
            assert isinstance(values, tuple)
            row |= {f"{role}_{size}": str(value) for size, value in zip(SIZES, values, strict=True)}
        made.append(row)
    with gzip.open(tmp_path / "disagg_vllm.csv.gz", "wt", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    return read_apart(tmp_path, "vllm")


def test_rows_that_do_not_say_what_ran_are_left_out(tmp_path: Path) -> None:
    unknown, quick, slow, good = rows(
        tmp_path,
        {"decode": ("", 8, 1, 2, 4)},
        {"silicon_tpot_ms": "20", "isl": "8192"},
        {"silicon_tpot_ms": "30", "isl": "8192"},
        {},
    )
    assert unknown.contradiction.startswith("no number of workers")
    assert quick.contradiction.startswith("drafts")
    assert not slow.contradiction
    assert not good.contradiction
    assert sizes_words(good) == "1 x TP 1 + 2 x TP 2"
    found = apart_figures([(each, Scored(each.row, 0.1, -0.5, contradiction=each.contradiction)) for each in
                           (unknown, quick, slow, good)])  # fmt: skip
    assert (found["rows"], found["all"]["rows"], found["all"]["tpot_median"]) == (4, 2, 0.1)
    assert found["kinds"]["decode in tensor parallel"]["rows"] == 2
    assert sum(found["left_out"].values()) == 2


def test_workers_become_the_groups_of_a_fleet(tmp_path: Path) -> None:
    dense, whole, ranks = rows(
        tmp_path,
        {"prefill": (3, 2, 1, 1, 1)},
        {"model_path": "deepseek-ai/DeepSeek-R1", "precision": "fp4", "system": "b200_sxm", "decode": (2, 8, 1, 1, 8)},
        {
            "model_path": "deepseek-ai/DeepSeek-R1", "precision": "fp4", "system": "b200_sxm", "concurrency": "64",
            "prefill": (2, 1, 4, 1, 4), "decode": (2, 1, 8, 1, 8),
        },
    )  # fmt: skip
    groups = [(g["name"], g["replicas"], g["hardware"]["tensor_parallel"]) for g in _scenario(dense)["fleet"]]
    assert groups == [("prefill", 3, 2), ("decode", 2, 2)]
    fleet = _scenario(whole)["fleet"]
    assert [g["name"] for g in fleet] == ["prefill", "decode-0", "decode-1"]
    assert all(g["hardware"]["enable_expert_parallel"] for g in fleet[1:])
    scenario = _scenario(ranks)
    assert [(g["name"], g["replicas"], g["hardware"]["tensor_parallel"]) for g in scenario["fleet"]] == [
        ("prefill-0", 4, 1),
        ("prefill-1", 4, 1),
        ("decode-0", 8, 1),
        ("decode-1", 8, 1),
    ]
    assert all(g["hardware"]["enable_expert_parallel"] for g in scenario["fleet"])
    assert scenario["fleet"][3]["engine"]["max_num_seqs"] == 64 // 2 // 8
    for each in (dense, whole, ranks):
        load(_scenario(each))


def _scenario(apart: Apart) -> dict[str, Any]:
    found = scenario_apart(apart)
    assert found is not None
    return found


def test_a_row_is_simulated_and_compared(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, {"isl": "200", "osl": "20"})
    scored = score_apart(row)
    assert not scored.refused
    assert -0.9 < scored.tpot < 0.0  # 30 ms are longer than two GPUs need for a step of two requests
    assert -1.0 < scored.ttft < 0.0


def test_a_newcomer_says_model_hardware_version_and_traffic() -> None:
    full: dict[str, Any] = {
        "model": "m", "cost": {"kind": "profile"}, "hardware": {"gpu": "h100", "gpu_memory_utilization": 0.95},
        "engine": {"policy": "vllm", "version": "0.19", "async_scheduling": True, "max_num_seqs": 8}, "front_end": {},
    }  # fmt: skip
    found = variants(full)
    assert found[FULL] == full
    assert found[NEWCOMER] == {
        "model": "m", "hardware": {"gpu": "h100"}, "engine": {"policy": "vllm", "version": "0.19"},
    }  # fmt: skip
    assert list(found) == [
        FULL, "cost", "async_scheduling", "version", "max_num_seqs", "gpu_memory_utilization", "front_end", NEWCOMER,
    ]  # fmt: skip
    assert "version" not in found["version"]["engine"]
    assert without(full, ["engine.nothing"]) == full
    assert size_of([0.1, -0.3, math.nan, 0.2]) == pytest.approx(0.2)


def test_pages_follow_the_figures_that_are_kept() -> None:
    assert (DOCS / "newcomer.md").read_text(encoding="utf-8") == newcomer_page()
    assert (DOCS / "disaggregated.md").read_text(encoding="utf-8") == disaggregated_page()
    files = {**newcomer_files(), **disaggregated_files()}
    assert {name: (DOCS / name).read_text(encoding="utf-8") for name in files} == files
