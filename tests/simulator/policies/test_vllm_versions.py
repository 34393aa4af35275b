"""What vLLM did before 0.33, by hand: the same requests under two versions that differ."""

from functools import partial
from typing import Any

import pytest

import scenarios
from scenarios.assembly.engines import build_policy
from simulator.errors import InputError
from simulator.memory.prefix_cache import PrefixCache
from simulator.policies import load_policy
from simulator.policies.chunked_prefill import ChunkedPrefill
from simulator.policies.chunked_prefill.versions import VERSIONS
from simulator.request import PromptContent
from simulator.simulate import simulate
from simulator.timing.formula_cost import Linear
from tests.columns import workload_of
from tests.hand import serve
from tests.laws.scenarios import Memory
from tests.scenarios.schema.test_scenario import scenario


def older(version: str) -> list[str]:
    return [name for name in VERSIONS if VERSIONS.index(name) < VERSIONS.index(version)]


def since(version: str) -> list[str]:
    return [name for name in VERSIONS if VERSIONS.index(name) >= VERSIONS.index(version)]


def test_a_prompt_had_to_fit_but_for_its_first_chunk() -> None:
    """5 blocks, 2 of them taken: 16 tokens do not fit, their first chunk of 2 does."""
    for version in VERSIONS:
        told = serve(ChunkedPrefill(8, 8, version=version), [(6, 3), (16, 2)], memory=Memory(6, 4))
        assert told.column("scheduled_s") == ([0.0, 0.0] if version in older("0.19") else [0.0, 3.0])


def test_who_is_alone_was_cut_too() -> None:
    for version in VERSIONS:
        told = serve(ChunkedPrefill(8, 8, long_prefill_token_threshold=6, version=version), [(16, 1)])
        parts = [6, 6, 4] if version in older("0.31") else [8, 8]
        assert [step["0"] for step in told.scheduled] == parts


def test_who_gave_way_itself_ended_the_step() -> None:
    """4 blocks. In the third step the first of those who run wants a third block, and is the least important."""
    for version in VERSIONS:
        policy = ChunkedPrefill(8, 64, order="priority", version=version)
        told = serve(policy, [(7, 6), (7, 6)], [0.0, 0.5], priority=[1, 0], memory=Memory(5, 4))
        between: list[dict[str, int]] = [{}] if version in older("0.33") else []
        assert told.scheduled[:8] == [{"0": 7}, {"0": 1, "1": 7}, *between, *[{"1": 1}] * 5, {"0": 9}][:8]
        assert told.steps("preempted")[2] == ["0"]


def test_a_prompt_beyond_the_budget_let_others_pass() -> None:
    """10 tokens a step, no chunks: beside the 6 of the first there is room for the third, but not for the second."""
    for version in VERSIONS:
        policy = ChunkedPrefill(8, 10, enable_chunked_prefill=False, version=version)
        told = serve(policy, [(6, 2), (5, 2), (3, 2), (5, 1), (5, 1)], memory=Memory(99, 4))
        assert told.scheduled[0] == ({"0": 6, "2": 3} if version == "0.11" else {"0": 6})
        # Those passed over return to the front of the queue, the last of them first.
        assert told.steps("waiting")[0] == (["4", "3", "1"] if version == "0.11" else ["1", "2", "3", "4"])


def cached_tokens(version: str) -> list[int]:
    """Four blocks; one after the other, and the last begins as the first."""
    shared = PromptContent(prefix_group="a", prefix_tokens=4)
    content = [shared, None, None, shared]
    workload = workload_of([0.0, 10.0, 20.0, 30.0], [4, 3, 12, 8], 1, priority=1, content=content)
    run = simulate(
        workload,
        make_policy=lambda: ChunkedPrefill(8, 64, version=version),
        kv=Memory(5, 4),
        cost=Linear(1.0),
        make_blocks=partial(PrefixCache, block_size=4),
    )
    found: list[int] = run.records.requests.cached_tokens.tolist()
    return found


def test_blocks_of_no_use_were_not_taken_first() -> None:
    """The first leaves block 1 in the cache, at the end of the queue: 2 3 4 1. The second takes 2, fills it in part,
    and puts it back: in front, 2 3 4 1, or at the end, 3 4 1 2. The third takes three, and so block 1 or not.
    """
    for version in VERSIONS:
        assert cached_tokens(version) == [0, 0, 0, 0 if version in older("0.24") else 4]


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"watermark": 0.1}, "0.24"),
        ({"long_prefill_token_threshold": 4, "long_prefill_token_threshold_adaptive": True}, "0.31"),
        ({"max_num_active_seqs": 3}, "0.31"),
    ],
)
@pytest.mark.parametrize("policy", ["vllm", "chunked_prefill"])
def test_settings_that_came_later(settings: dict[str, Any], first: str, policy: str) -> None:
    name = list(settings)[-1]
    for version in since(first):
        assert getattr(load_policy(policy, {**settings, "version": version}), name) == settings[name]
    for version in older(first):
        with pytest.raises(InputError, match=f"{name} is in vLLM since {first}, and version is {version}"):
            load_policy(policy, {**settings, "version": version})
        engine = {"policy": policy, **settings, "version": version}
        with pytest.raises(InputError, match=f"engine.{name}: .*{name} is in vLLM since {first}"):
            build_policy(scenario(engine=engine))


def test_a_version_of_a_scenario() -> None:
    """YAML takes 0.20 without quotes for a number."""
    for given, version in ((0.2, "0.20"), ("0.20", "0.20"), (0.33, "0.33"), (0.11, "0.11")):
        policy = build_policy(scenario(engine={"policy": "chunked_prefill", "version": given}))
        assert policy == load_policy("chunked_prefill", {"version": version})
    with pytest.raises(InputError, match=r"unknown version 2\.34"):
        scenario(engine={"policy": "vllm", "version": 2.34})
    with pytest.raises(ValueError, match=r"version must be one of 0\.11, .*, not .0\.9."):
        ChunkedPrefill(version="0.9")


@pytest.mark.parametrize("policy", ["static", "orca", "sarathi", "tgi"])
def test_other_policies_refuse_what_is_vllms(policy: str) -> None:
    cases = (
        ("async_scheduling", True, "as vLLM does", "chunked_prefill, in_time, sglang, tensorrt_llm, vllm"),
        ("version", "0.26", "the release of vLLM", "chunked_prefill, in_time, sglang, tensorrt_llm, vllm"),
    )
    for key, value, why, policies in cases:
        taken = rf"these take it: {policies} \(.*{why}.*\); it takes: max_num_seqs, "
        with pytest.raises(InputError, match=rf"engine\.{key}: .*does not use this key\n.*{taken}"):
            build_policy(scenario(engine={"policy": policy, key: value}))
    build_policy(scenario(engine={"policy": policy, "async_scheduling": False}))


def test_a_cadence_is_known_of_the_newest_version_alone() -> None:
    with pytest.raises(InputError, match="prefill_schedule_interval is known as vLLM"):
        load_policy("vllm", {"prefill_schedule_interval": 2, "version": "0.32"}, None)
    assert load_policy("vllm", {"prefill_schedule_interval": 1, "version": "0.32"}, None)


def threshold(given: scenarios.Scenario) -> int:
    policy = build_policy(given)
    assert isinstance(policy, ChunkedPrefill)
    return policy.long_prefill_token_threshold


def test_partial_prefills_only_ever_set_a_threshold() -> None:
    asked = ["engine.version=0.26", "engine.max_num_partial_prefills=4"]
    chosen = scenarios.load("quickstart", asked)
    assert chosen.resolve_model().max_model_len == 131072
    assert threshold(chosen) == 5242  # 4 %
    given = scenarios.load("quickstart", [*asked, "engine.long_prefill_token_threshold=99"])
    assert threshold(given) == 99
    with pytest.raises(InputError, match=r"max_num_partial_prefills is in vLLM until 0\.26"):
        build_policy(scenarios.load("quickstart", ["engine.version=0.27", "engine.max_num_partial_prefills=4"]))
