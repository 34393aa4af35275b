"""The profiles that come with batchlab: whole, small, tested, and good at predicting a real server."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import scenarios
from calibration.fit import check_profile
from scenarios.profiles import shipped_profiles
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.timing.profile import read_profile
from tests.shared_data import shared
from tools.tables.profiles import SHIPPED

MEASURED = "measured/ground_truth/llmservingsim_vllm/rtxpro6000_llama31_8b_tp1/vllm_requests.jsonl.gz"
TIMES = ("arrival_time", "first_token_ts", "last_token_ts")
LARGEST_BYTES = 150_000
NAMES = [entry.name for entry in SHIPPED]

# Held-out MAPE in percent.
AT_MOST = {"decode_attention": 5.0, "prefill_attention": 6.0, "gemm": 5.0, "joint_attention": 5.0}
FEW_AT_MOST = {"decode_attention": 7.0, "prefill_attention": 7.0, "gemm": 7.0, "joint_attention": 7.0}


def test_those_listed_are_those_shipped() -> None:
    assert sorted(shipped_profiles()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_whole_and_says_where_it_comes_from(name: str) -> None:
    path = shipped_profiles()[name]
    assert path.stat().st_size < LARGEST_BYTES
    profile = read_profile(path)
    assert profile.name == name
    assert profile.model in MODELS
    assert profile.gpu in GPUS
    assert profile.layers == MODELS[profile.model].layers
    (source,) = profile.document["sources"]
    assert {"source", "commit", "path", "licence"} <= set(source)
    assert (profile.all_reduce is None) == (profile.tensor_parallel == 1)
    assert not check_profile(path).complaints


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_predicted_where_they_were_held_out(name: str) -> None:
    errors = read_profile(shipped_profiles()[name]).document["errors"]
    assert {"decode_attention", "prefill_attention"} <= set(errors)
    for kind, regimes in errors.items():
        assert regimes["random"]["mape"] <= AT_MOST[kind]
        if "few" in regimes:  # a coarse table has no more than that
            assert regimes["few"]["mape"] <= FEW_AT_MOST[kind]
        if "off_grid" in regimes:
            assert regimes["off_grid"]["mape"] <= AT_MOST[kind]


def test_a_real_server_is_predicted_from_its_kernels() -> None:
    """LLMServingSim's vLLM 0.19 on RTX PRO 6000: nothing was fitted to this run."""
    with gzip.open(shared(MEASURED), "rt") as file:
        log = [json.loads(line) for line in file]
    told = {key: np.array([row[key] for row in log]) for key in (*TIMES, "queued_ts", "output_toks")}
    shift = float((told["queued_ts"] - told["arrival_time"]).min())  # the two are on different clocks
    real = _numbers(told["arrival_time"] + shift, told["first_token_ts"], told["last_token_ts"], told["output_toks"])
    requests = scenarios.run("measured-rtxpro6000-llama31-8b").records.requests
    ours = _numbers(requests.arrival_s, requests.first_token_s, requests.last_token_s, requests.output_tokens)
    errors = np.abs(ours / real - 1.0) * 100
    assert errors.mean() < 2.3
    assert errors.max() < 6.0


def _numbers(arrival: np.ndarray, first: np.ndarray, last: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Mean, p50, p90, p99 of TTFT, TPOT and end-to-end latency, and the makespan."""
    found = []
    for values in (first - arrival, (last - first) / np.maximum(tokens - 1, 1), last - arrival):
        found += [values.mean(), *np.percentile(values, (50, 90, 99))]
    return np.array([*found, last.max() - arrival.min()])


def test_paths_are_absolute_folders() -> None:
    assert all(isinstance(path, Path) and path.is_absolute() for path in shipped_profiles().values())
