"""What the host adds to a step, by engine, version and scheduling; and that every kind of cost takes it."""

from dataclasses import replace
from typing import Any

import pytest

import scenarios
from scenarios.assembly.engines import policy_traits, resolved_yaml
from scenarios.plan.answer import deploy
from scenarios.servers import server_of, sglang
from simulator.errors import InputError
from simulator.hardware.gpus import find_gpu
from simulator.hardware.models import MODELS
from simulator.policies import built_in_policies
from simulator.timing.cost import CostModel, StepShape
from simulator.timing.formula_cost import Linear
from simulator.timing.host import Host, WithHost
from tests.traffic import one_class

WORKLOAD = one_class(20, 20, 100, 20)
LINEAR = "cost={kind: linear, base_s: 0.01, per_token_s: 0, per_context_token_s: 0}"
STEP = StepShape(8, 800)


def scenario(*overrides: str, **engine: Any) -> scenarios.Scenario:
    data = {"name": "t", "workload": WORKLOAD, "engine": {"policy": "vllm", **engine}}
    return scenarios.load(data, list(overrides))


def built(chosen: scenarios.Scenario) -> CostModel:
    return chosen.cost.build(chosen)


@pytest.mark.parametrize(
    ("engine", "step_ms", "per_seq_us"),
    [
        ({}, 0.3, 0),
        ({"version": "0.33"}, 0.3, 0),
        ({"version": "0.15"}, 0.3, 14.677734375),
        ({"version": "0.15", "async_scheduling": True}, 0.3, 14.677734375),
        ({"version": "0.20"}, 0.3, 3.9140625),
        ({"version": "0.21"}, 0.3, 0),
        ({"version": "0.15", "async_scheduling": False}, 1.3, 72),
        ({"version": "0.11"}, 1.3, 72),
        ({"version": "0.11", "async_scheduling": True}, 0.3, 14.677734375),
        ({"policy": "vllm_v0"}, 1.3, 72),
        ({"policy": "sglang"}, 0.31, 0),
        ({"policy": "sglang", "async_scheduling": False}, 1.3, 72),
        ({"policy": "tensorrt_llm"}, 0, 0),
        ({"policy": "tensorrt_llm", "version": "1.1"}, 0, 0),
        ({"policy": "tensorrt_llm", "version": "1.0"}, 1.4, 7),
        ({"policy": "tensorrt_llm", "async_scheduling": False}, 1.3, 72),
        ({"policy": "tgi"}, 1.3, 72),
        ({"policy": "static"}, 0.3, 0),
    ],
)
def test_the_default_is_the_engines(engine: dict[str, Any], step_ms: float, per_seq_us: float) -> None:
    host = scenario(**engine).resolve_host()
    assert (host.step_s * 1e3, host.per_seq_s * 1e6) == pytest.approx((step_ms, per_seq_us))


def test_every_minor_version_has_a_host() -> None:
    vllm = server_of("vllm")
    for minor in range(1, 60):
        assert vllm.host(f"0.{minor}").step_s > 0
    assert vllm.host("0.13").step_s > vllm.host("0.14").step_s


def test_all_engines_say_where_their_figures_come_from() -> None:
    for name in (*built_in_policies(), "somebody's.py:Own"):
        known = server_of(name)
        assert known.synchronous or known.asynchronous
        for asks in (None, False, True):
            assert known.host(async_scheduling=asks).source
        assert known.front_end_source
        assert known.front_end


@pytest.mark.parametrize("policy", ["sglang", "tensorrt_llm"])
@pytest.mark.parametrize("overlaps", [None, False, True])
def test_the_host_is_that_of_the_schedule_which_a_plan_starts(policy: str, overlaps: bool | None) -> None:
    """What the command line says of the overlap scheduler is what was simulated, and what its host was taken of."""
    chosen = scenario(policy=policy, **({} if overlaps is None else {"async_scheduling": overlaps}))
    command = deploy(chosen)
    started = "disable-overlap-schedule" not in command and "disable_overlap_scheduler: true" not in command
    assert started == chosen.engine.parameter("async_scheduling")
    known = server_of(policy)
    by_default = known.overlaps_since is not None
    assert by_default == scenario(policy=policy).engine.parameter("async_scheduling")
    assert chosen.resolve_host() == (known.asynchronous if started else known.synchronous)


@pytest.mark.parametrize("policy", ["vllm", "chunked_prefill"])
@pytest.mark.parametrize("version", ["0.12", "0.33"])
def test_scheduling_is_simulated_labelled_and_deployed_as_one_thing(policy: str, version: str) -> None:
    """Left out, it is the version's default: of the server's policy as if given, of the plain one by its host alone."""
    for asked, flag in ((None, None), (True, "--async-scheduling"), (False, "--no-async-scheduling")):
        given = {} if asked is None else {"async_scheduling": asked}
        chosen = scenario("sampling={temperature: 0}", policy=policy, version=version, **given)
        if asked is None and policy == "vllm":
            asked = version == "0.33"
            flag = "--async-scheduling" if asked else "--no-async-scheduling"
        assert _yaml(resolved_yaml(chosen))["engine"]["async_scheduling"] is asked
        assert scenarios.load(_yaml(resolved_yaml(chosen))).resolved_around() == chosen.resolved_around()
        flags = [word for word in deploy(chosen).split() if word.endswith("async-scheduling")]
        assert flags == ([] if flag is None else [flag])
        overlaps = version == "0.33" if asked is None else asked
        assert chosen.resolve_host() == server_of(policy).host(version, overlaps)
        assert policy_traits(chosen).async_scheduling == bool(asked)


@pytest.mark.parametrize("cost", [LINEAR, "cost={kind: roofline}", "cost={kind: profile, name: h100-llama-3.1-8b}"])
def test_every_kind_of_cost_takes_it(cost: str) -> None:
    hardware = "hardware.gpu=h100"
    bare = built(scenario(cost, hardware, "host={step_s: 0, per_seq_s: 0}"))
    slow = built(scenario(cost, hardware, "host={step_s: 0.002, per_seq_s: 1e-5}"))
    assert slow.step_s(STEP) - bare.step_s(STEP) == pytest.approx(0.002 + 8e-5)
    mixed = StepShape(8, 800, 1, 100, 100, 5050, 0, 0, 100)
    assert slow.step_s(mixed) - bare.step_s(mixed) == pytest.approx(0.002 + 9e-5)
    run = slow.decode_run_s(STEP, 3)
    assert run == [slow.step_s(STEP.later(i)) for i in range(3)]
    assert slow.step_s(StepShape(0, 0)) == 0.0


def test_linear_means_exactly_what_it_says_unless_a_host_is_given() -> None:
    assert built(scenario(LINEAR)) == Linear(0.01)
    assert built(scenario(LINEAR, "host={step_s: 0.001}")) == WithHost(Linear(0.01), Host(0.001, 0.0, "the scenario"))


def test_a_run_is_as_its_resolved_scenario_says() -> None:
    """Written out, a scheduling that was left to the version is no longer left: the host is written out too."""
    for engine in ({"version": "0.15"}, {"version": "0.15", "async_scheduling": False}, {"policy": "sglang"}):
        chosen = scenario(**engine)
        again = scenarios.load({**_yaml(resolved_yaml(chosen))})
        assert again.resolve_host().step_s == chosen.resolve_host().step_s
        assert again.resolve_host().per_seq_s == chosen.resolve_host().per_seq_s
    assert scenario(version="0.15") != scenario(version="0.15", async_scheduling=False)


def _yaml(text: str) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(text))


def test_fast_forward_changes_nothing() -> None:
    chosen = scenario(LINEAR, "host={step_s: 0.001, per_seq_s: 3e-5}")
    fast, slow = scenarios.run(chosen), scenarios.run(chosen, fast_forward=False)
    assert fast.requests.equals(slow.requests)


@pytest.mark.parametrize("kind", ["{kind: roofline}", "{kind: profile}", LINEAR[5:]])
@pytest.mark.parametrize(("key", "meant"), [("host_s", "step_s"), ("host_per_seq_s", "per_seq_s")])
def test_the_hosts_keys_of_a_cost_say_where_they_are_now(kind: str, key: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"cost.{key}: unknown key") as found:
        scenario(f"cost={kind[:-1]}, {key}: 0.001}}")
    assert found.value.hint == f"it is `host: {{{meant}: ...}}`, at the top level"


def test_a_key_of_another_kind_is_called_so() -> None:
    with pytest.raises(InputError, match=r"cost\.skew: unknown key") as found:
        scenario("cost={kind: roofline, skew: true}")
    assert found.value.hint == "`skew` is a key of another kind of `cost`; allowed: kind"


def test_times_below_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"host\.step_s: must be a number of at least 0"):
        scenario("host={step_s: -1}")
    with pytest.raises(InputError, match="per_seq_s must be 0 or more"):
        Host(0.0, -1.0)


def test_ranks_that_share_experts_take_it_too() -> None:
    from scenarios.assembly.replica_parts import build_group_cost

    def step_s(host: str) -> float:
        data = {
            "name": "t",
            "model": "qwen3-30b-a3b",
            "hardware": {"gpu": "rtx-pro-6000", "enable_expert_parallel": True},
            "cost": {"kind": "profile"},
            "replicas": 2,
            "workload": WORKLOAD,
            "engine": {"policy": "vllm"},
        }
        chosen = scenarios.load(data, [host])
        group_cost = build_group_cost(chosen, built(chosen))
        assert group_cost is not None
        return group_cost.group_step_s([STEP, STEP])

    added_s = step_s("host={step_s: 0.002, per_seq_s: 1e-4}") - step_s("host={step_s: 0, per_seq_s: 0}")
    assert added_s == pytest.approx(0.002 + 8e-4)


def test_a_server_before_a_version_takes_longer_for_prompts() -> None:
    tensorrt_llm = server_of("tensorrt_llm")
    assert [tensorrt_llm.prompt_times(version) for version in ("1.0", "1.1", None)] == [1.2, 1.0, 1.0]
    assert server_of("vllm").prompt_times("0.1") == 1.0


@pytest.mark.parametrize(
    ("model", "step_ms"), [("qwen3-32b", 0.31), ("deepseek-v3", 0.31), ("qwen3-next-80b-a3b", 2.4)]
)
def test_sglangs_host_is_of_the_kind_of_the_model(model: str, step_ms: float) -> None:
    host = scenario(f"model={model}", policy="sglang").resolve_host()
    assert host.step_s * 1e3 == pytest.approx(step_ms)
    assert sglang.host_of(replace(MODELS["deepseek-v3"], index_topk=2048)).step_s == 5e-3


def test_block_scaled_latent_attention_on_blackwell_has_kernels_without_tables() -> None:
    """Under SGLang and TensorRT-LLM; a model without blocks, Hopper and vLLM have not."""
    blocks, gpu = replace(MODELS["deepseek-v3"], matmul_dtype="fp8_block"), find_gpu("b200")
    times = {}
    for name in ("sglang", "tensorrt_llm"):
        untabled = server_of(name).untabled
        assert untabled is not None
        found = untabled(blocks, gpu)
        assert found is not None
        times[name] = found.prompt_times
        assert untabled(blocks, find_gpu("h200")) is None
        assert untabled(replace(blocks, matmul_dtype="bf16"), gpu) is None
    assert times == {"sglang": 1.8, "tensorrt_llm": 1.4}
    assert server_of("vllm").untabled is None
