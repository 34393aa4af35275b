"""Runs of one setting beside each other, and rows whose TTFT has a cause of its own."""

from dataclasses import replace

import pytest

from docs.writers.accuracy.floor import (
    COLD,
    NO_GRAPHS,
    cause_of,
    floor,
    floor_lines,
    repeats,
)
from docs.writers.accuracy.served_row import Row
from docs.writers.accuracy.served_score import Scored

ROW = Row("a", "sglang", "0.5.9", "Qwen/Qwen3.5-397B-A17B", "h200_sxm", "fp8", 1024, 1024, 4, 8, 1, 8, 1, 100.0, 10.0)
DEEPSEEK = {"model": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm"}


def test_runs_of_one_setting_are_compared_once_each() -> None:
    again = replace(ROW, ttft_ms=120.0, measured="2026-03-01")
    listed_twice = replace(again, ttft_ms=120.001)
    next_version = replace(ROW, version="0.5.10", tpot_ms=8.0, ttft_ms=120.0, measured="2026-04-01")
    other = replace(ROW, concurrency=8, ttft_ms=300.0)
    assert repeats([next_version, ROW, again, listed_twice, other]) == {
        "same version": {"pairs": 1, "ttft": 0.2, "tpot": 0.0},
        "another version": {"pairs": 1, "ttft": 0.0, "tpot": 0.25},
    }
    assert repeats([ROW, other]) == {}


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({}, ""),
        ({**DEEPSEEK}, ""),
        ({**DEEPSEEK, "system": "b300_sxm"}, COLD),
        ({**DEEPSEEK, "precision": "fp4", "version": ""}, COLD),
        ({**DEEPSEEK, "precision": "fp4"}, ""),
        ({"engine": "vllm"}, ""),
        ({"engine": "trtllm", "model": "Qwen/Qwen3-32B", "system": "h100_sxm"}, ""),
        ({"engine": "trtllm", "isl": 4000, "osl": 1000}, NO_GRAPHS),
    ],
)
def test_a_row_has_the_cause_of_its_server(fields: dict[str, object], cause: str) -> None:
    assert cause_of(replace(ROW, **fields)) == cause  # type: ignore[arg-type] # any of its fields


def test_ttft_is_shown_with_and_without_rows_that_have_a_cause() -> None:
    fine, cold = ROW, replace(ROW, **{**DEEPSEEK, "system": "b300_sxm"})  # type: ignore[arg-type] # two of its fields
    found = floor([Scored(cold, 0.0, -0.5), Scored(fine, 0.0, 0.1), Scored(fine, refused="no")])
    assert found["engines"]["sglang"]["ttft_median"] == 0.3
    assert found["engines"]["sglang"]["explained_ttft_median"] == 0.1
    assert found["causes"] == {COLD: {"rows": 1, "ttft_median": 0.5}}
    assert "| sglang | 2 | 30.0 | 1 | 10.0 |" in list(floor_lines(found))
