from typing import Any

from reports.tables.details import provenance_words

BASE: dict[str, Any] = {
    "scenario": "chat", "policy": "static", "model": "llama-3.1-8b", "gpu": "h200", "tensor_parallel": 1,
    "replicas": 1, "cost": {"kind": "roofline", "error": "not validated"}, "seed": 0, "version": "1.0.0",
}  # fmt: skip


def summaries(**of_label: list[dict[str, Any]]) -> Any:
    return {label: [{"provenance": {**BASE, **each}} for each in runs] for label, runs in of_label.items()}


def test_one_run_in_a_line() -> None:
    assert provenance_words(summaries(a=[{}])) == (
        "llama-3.1-8b on h200, 1 replica; step costs: roofline (not validated); seed 0; batchlab 1.0.0"
    )


def test_seeds_and_replicas() -> None:
    words = provenance_words(summaries(a=[{"seed": seed, "replicas": 2, "tensor_parallel": 4} for seed in (3, 4, 5)]))
    assert "on 4 x h200, 2 replicas" in words
    assert "seed 3 to 5" in words


def test_what_differs_is_named() -> None:
    linear = {"kind": "linear", "error": "given"}
    words = provenance_words(summaries(a=[{}], b=[{"gpu": "h100", "cost": linear}]))
    assert "llama-3.1-8b on h200, 1 replica / llama-3.1-8b on h100, 1 replica" in words
    assert "step costs: roofline (not validated) / linear (given)" in words


def test_a_profile_says_its_held_out_error() -> None:
    cost = {"kind": "profile", "profile": "h200-x", "error": {"gemm_mape_percent": 3.83, "step_mape_percent": 1.0}}
    assert "profile h200-x (mean error on held-out kernels: gemm 3.8 %, step 1.0 %)" in provenance_words(
        summaries(a=[{"cost": cost}])
    )


def test_summaries_of_before_have_none() -> None:
    assert provenance_words({"a": [{"completed": 3}]}) == ""
