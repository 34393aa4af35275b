"""All-reduces that hold the norms of small steps: up to which size, at whose times, and who has them by default."""

from pathlib import Path
from typing import Any

import pytest

import scenarios
from simulator.errors import InputError
from simulator.timing.profile import Profile, ProfileCost
from simulator.timing.profile.surface import Curve
from simulator.timing.tables.all_reduces import most_fused, up_to
from tests.traffic import one_class

WORKLOAD = one_class(4, 2, (10, 300), (1, 60), name="chat")


def profile_of(
    gpu: str = "b200", ranks: int = 8, model: str = "llama-3.1-70b", policy: str = "vllm", **keys: Any
) -> Profile:
    """The profile of a scenario; `version` is the engine's, other keys are those of the cost."""
    engine = {"policy": policy, **({"version": keys.pop("version")} if "version" in keys else {})}
    data = {"name": "t", "model": model, "hardware": {"gpu": gpu, "tensor_parallel": ranks}, "engine": engine}
    scenario = scenarios.load({**data, "cost": {"kind": "profile", **keys}, "workload": WORKLOAD})
    cost = scenario.cost.build(scenario)
    assert isinstance(cost, ProfileCost)
    return cost.profile


def reduce_us(profile: Profile, tokens: int) -> float:
    """Microseconds of a step's all-reduces and norms."""
    assert profile.all_reduce is not None
    return profile.all_reduce.at(tokens) + profile.layers * profile.layer_curves["norm"].at(tokens)


def test_the_bytes_of_a_step_decide_how_many_tokens_are_fused() -> None:
    assert most_fused("b200", 8, 2 * 8192) == 64
    assert most_fused("h200", 8, 2 * 7168) == 36
    assert most_fused("h200", 4, 2 * 8192) == 128
    assert most_fused("l40s", 4, 2 * 8192) == most_fused("b200", 16, 2 * 8192) == 0


def test_a_curve_up_to_a_count_and_another_beyond() -> None:
    few, many = Curve((1.0, 8.0, 100.0), (1.0, 8.0, 100.0), 1.0), Curve((1.0, 64.0), (50.0, 113.0), 2.0)
    found = up_to(10, few, many)
    for count in (1, 5, 8, 9, 10):
        assert found.at(count) == pytest.approx(few.at(count))
    for count in (11, 12, 40, 64, 200):
        assert found.at(count) == pytest.approx(many.at(count))


def test_small_steps_are_quicker_fused_and_large_ones_cost_the_same() -> None:
    fused, apart = (profile_of(fuse_allreduce_rms=word) for word in (True, False))
    for tokens in (1, 8, 16, 32, 64):
        assert reduce_us(fused, tokens) < reduce_us(apart, tokens)
    for tokens in (65, 512, 8192):
        assert reduce_us(fused, tokens) == pytest.approx(reduce_us(apart, tokens))
    assert reduce_us(apart, 16) - reduce_us(fused, 16) > 2000.0  # 160 all-reduces of 256 KiB: 26 and 8 us each


def test_among_more_gpus_than_were_measured_both_are_extrapolated() -> None:
    """Four of GB200 were measured under both engines; the rest of the profile stays vLLM's."""
    found = profile_of(gpu="gb200", ranks=8)
    assert found.document["software"].startswith("vLLM")
    ways = {name: how for name, how, _ in found.document["parts"] if "all-reduce" in name}
    assert ways == {"all-reduce among 8": "extrapolated", "fused all-reduce among 8": "extrapolated"}


@pytest.mark.parametrize(
    ("keys", "is_fused"),
    [
        ({}, True),
        ({"version": "0.17"}, True),
        ({"version": "0.16"}, False),
        ({"version": "0.16", "fuse_allreduce_rms": True}, True),
        ({"fuse_allreduce_rms": False}, False),
        ({"model": "qwen3-30b-a3b", "ranks": 4}, False),
        ({"model": "qwen3-30b-a3b", "ranks": 4, "fuse_allreduce_rms": True}, True),
        ({"policy": "sglang"}, False),
        ({"policy": "chunked_prefill"}, True),
        ({"ranks": 1, "model": "llama-3.1-8b"}, False),
        ({"gpu": "h200", "ranks": 4}, True),
        ({"gpu": "l40s", "ranks": 4}, False),
    ],
)
def test_who_fuses_by_default(keys: dict[str, Any], is_fused: bool) -> None:
    names = [name for name, _, _ in profile_of(**keys).document["parts"]]
    assert any(name.startswith("fused all-reduce") for name in names) is is_fused


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"policy": "sglang"}, "it is vLLM's, and the policy is sglang"),
        ({"ranks": 1, "model": "llama-3.1-8b"}, "one GPU reduces nothing"),
        ({"gpu": "h100", "ranks": 4}, "it says nothing of other all-reduces"),  # a fitted profile
        ({"gpu": "l40s", "ranks": 4}, "no all-reduce that holds the norm was measured on l40s"),
        ({"gpu": "gb300", "ranks": 16}, "vLLM fuses no all-reduces among 16 GPUs of gb300"),
        ({"gpu": "b200", "ranks": 4, "name": "b200-trtllm-1.3"}, "b200-trtllm-1.3 hold norms in other parts"),
    ],
)
def test_the_key_is_refused_where_it_changes_nothing(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        profile_of(fuse_allreduce_rms=True, **keys)


def test_the_refusal_names_file_line_key_and_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "model: llama-3.1-70b\nhardware: {gpu: l40s, tensor_parallel: 4}\nengine: {policy: vllm}\n"
        "cost:\n  kind: profile\n  fuse_allreduce_rms: true\n"
        "workload: {requests: 4, arrival: {process: poisson, rate: 2},"
        " classes: [{name: a, input: {dist: fixed, value: 10}, output: {dist: fixed, value: 10}}]}\n"
    )
    with pytest.raises(InputError) as caught:
        scenarios.run(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:6:3: cost.fuse_allreduce_rms: no all-reduce that holds the norm was measured on")
    assert said.endswith("measured on h100, h200, b200, b300, gb200, gb300; or leave the key out")
