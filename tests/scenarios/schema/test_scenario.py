"""The scenario's keys: defaults, ranges, and what they become for the simulator."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from scenarios.assembly.engines import build_policy
from scenarios.schema.declared import DECLARED
from scenarios.schema.engine import ENGINE_KEYS, engine_schema
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceConfig, TraceWorkload
from scenarios.traces.options import TraceOptions
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.metrics.latency import Slo
from simulator.policies import named_policies

CLASS = {
    "name": "chat",
    "arrival": {"process": "poisson", "rate": 6},
    "input": {"dist": "fixed", "value": 100},
    "output": {"dist": "fixed", "value": 10},
}
WORKLOAD = {"requests": 10, "classes": [CLASS]}


def scenario(**keys: Any) -> Scenario:
    return load({"workload": WORKLOAD, **keys}, check_files=False)


def test_defaults_are_those_of_the_contract() -> None:
    found = scenario()
    assert found.name == "scenario"
    assert found.seed == 0
    assert found.model == "llama-3.1-8b"
    assert found.hardware.model_dump() == {
        "gpu": "h200",
        "tensor_parallel": 1,
        "gpu_memory_utilization": 0.9,
        "mem_fraction_static": None,
        "num_gpu_blocks": None,
        "swap_space_gib": 0.0,
        "kv_offload": None,
        "enable_expert_parallel": False,
    }
    assert found.cost.model_dump() == {"kind": "roofline"}
    assert found.engine.resolved() == {
        "policy": "chunked_prefill",
        "block_size": 16,
        "enable_prefix_caching": False,
        "swap_overlap": False,
        "max_queued_requests": None,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "long_prefill_token_threshold": 0,
        "enable_chunked_prefill": True,
        "watermark": 0.0,
        "reserve_full_isl": True,
        "order": "fcfs",
        "max_num_active_seqs": None,
        "long_prefill_token_threshold_adaptive": False,
        "async_scheduling": None,
        "version": "0.33",
    }
    assert (found.replicas, found.router, found.slo) == (1, "round_robin", None)
    assert found.measure.model_dump() == {"warmup_s": 0.0, "cooldown_s": 0.0, "metrics": []}


def test_the_contracts_example_is_valid(tmp_path: Path) -> None:
    text = """\
name: chat-rush-hour
seed: 0
model: llama-3.1-8b
hardware:
  gpu: h200
  tensor_parallel: 1
  gpu_memory_utilization: 0.9
  num_gpu_blocks: null
  swap_space_gib: 0
cost: {kind: linear, base_s: 0.005, per_token_s: 2.0e-5, per_context_token_s: 5.0e-7}
workload:
  trace: {path: trace.csv.gz, format: auto, rate_scale: 1.0, start_s: 0, duration_s: null, limit: null, jitter_s: 0}
engine:
  policy: chunked_prefill
  max_num_seqs: 256
  max_num_batched_tokens: 2048
  block_size: 16
  enable_prefix_caching: false
  long_prefill_token_threshold: 0
  order: fcfs
  preemption_mode: recompute
replicas: 1
router: round_robin
slo: {ttft_ms: 1000, tpot_ms: 50}
"""
    (tmp_path / "trace.csv.gz").touch()
    path = tmp_path / "example.yaml"
    path.write_text(text, encoding="utf-8")
    found = load(path)
    assert isinstance(found.workload, TraceWorkload)
    assert found.workload.path == tmp_path / "trace.csv.gz"
    assert found.cost.model_dump() == {
        "kind": "linear",
        "base_s": 0.005,
        "per_token_s": 2e-5,
        "per_context_token_s": 5e-7,
    }
    assert found.resolve_slo() == Slo(ttft_ms=1000.0, tpot_ms=50.0, e2el_ms=None)


def test_given_are_the_parameters_that_were_written() -> None:
    engine = scenario(engine={"order": "fcfs", "policy": "static", "max_num_seqs": 8, "block_size": 4}).engine
    assert engine.given() == {"max_num_seqs": 8, "order": "fcfs"}
    assert scenario().engine.given() == {}


def test_a_parameter_not_given_has_the_policys_default() -> None:
    for policy, budget in (("sglang", 16384), ("fastgen", 768), ("static", 2048)):
        engine = scenario(engine={"policy": policy, "max_num_seqs": 8}).engine
        assert (engine.parameter("max_num_seqs"), engine.parameter("max_num_batched_tokens")) == (8, budget)
        assert engine.parameter("victim", "none") == "none"
    assert scenario(engine={"order": "fair"}).engine.parameter("max_wait_s") == 60.0


def test_a_users_policy_keeps_its_own_parameters() -> None:
    keys = {"policy": "./mine.py:Mine", "max_num_seqs": 4, "zeal": 0.5, "path": [1, {"a": 2}], "order": "shortest"}
    engine = scenario(engine=keys).engine
    assert engine.policy_file == Path.cwd() / "mine.py"
    own = {"max_num_seqs": 4, "zeal": 0.5, "path": [1, {"a": 2}], "order": "shortest"}
    assert engine.given() == own
    assert engine.resolved() == {
        "policy": f"{Path.cwd()}/mine.py:Mine",
        "block_size": 16,
        "enable_prefix_caching": False,
        "swap_overlap": False,
        "max_queued_requests": None,
        **own,
    }


MINE = """
from dataclasses import dataclass
from typing import Annotated
from annotated_types import Ge
from simulator.plan import StepPlan
@dataclass(frozen=True)
class Mine:
    max_num_seqs: int = 4
    zeal: Annotated[float, Ge(0)] = 0.5
    whatever: "Unknown" = None
    def plan(self, view): return StepPlan()
"""


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"max_num_seqs": 0}, r"engine\.max_num_seqs: .*max_num_seqs must be at least 1, not 0"),
        ({"max_num_seqs": "4"}, None),
        ({"tensor_parallel_size": 2}, r"does not use this key\n  vLLM's tensor_parallel_size is `hardware"),
        ({"zael": 1}, r"engine\.zael: .*\n.*did you mean zeal\? it takes: max_num_seqs, zeal"),
    ],
)
def test_a_users_policy_is_checked_when_it_is_made(tmp_path: Path, keys: dict[str, Any], says: str | None) -> None:
    """An annotation that cannot be resolved leaves all of them unchecked, but for what every policy needs."""
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(InputError, match=says):
        build_policy(scenario(engine={"policy": f"{tmp_path}/mine.py:Mine", **keys}))


def test_limits_that_a_users_policy_declares(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE.replace('"Unknown"', "object"))
    policy = f"{tmp_path}/mine.py:Mine"
    with pytest.raises(InputError, match=r"engine\.zeal: .*zeal must be a number of at least 0, not -1"):
        build_policy(scenario(engine={"policy": policy, "zeal": -1}))
    assert build_policy(scenario(engine={"policy": policy, "zeal": 2, "whatever": [1]})).max_num_seqs == 4


def test_every_option_of_a_trace_can_be_written() -> None:
    options = {field.name for field in dataclasses.fields(TraceOptions)}
    assert set(TraceConfig.model_fields) == options - {"seed", "max_tokens"} | {"path", "arrival", "sessions"}
    defaults = TraceWorkload(trace=TraceConfig(path="t.csv")).options(seed=7)
    assert defaults == TraceOptions(seed=7)


def test_trace_options_reach_the_reader() -> None:
    trace = {"path": "t.csv", "rate_scale": 3, "limit": 5, "jitter_s": 0.5, "strict": True, "time_unit": "ms"}
    found = scenario(workload={"trace": trace, "max_tokens": 512})
    assert isinstance(found.workload, TraceWorkload)
    assert found.workload.options(found.seed) == TraceOptions(
        rate_scale=3.0, limit=5, jitter_s=0.5, strict=True, time_unit="ms", max_tokens=512
    )


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_its_name(name: str) -> None:
    assert scenario(model=name).resolve_model() is MODELS[name]


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_its_name(name: str) -> None:
    assert scenario(hardware={"gpu": name}).resolve_gpu() is GPUS[name]


def test_custom_model_and_gpu() -> None:
    found = scenario(
        model={"base": "llama-3.1-8b", "layers": 16},
        hardware={"gpu": {"memory_gib": 64, "bandwidth_gb_s": 2000, "bf16_tflops": 500}, "tensor_parallel": 2},
    )
    assert found.resolve_model().layers == 16
    assert found.resolve_model().hidden == 4096
    assert found.resolve_gpu().memory_gib == 64.0


def test_tensor_parallel_must_divide_the_heads_of_the_model_used() -> None:
    with pytest.raises(InputError, match=r"hardware\.tensor_parallel: tensor_parallel 8 does not divide .*gpt2"):
        scenario(model="gpt2", hardware={"tensor_parallel": 8})
    assert scenario(model="gpt2", hardware={"tensor_parallel": 6}).hardware.tensor_parallel == 6


def test_swap_needs_host_memory() -> None:
    engine = {"policy": "preemptive", "preemption_mode": "swap"}
    with pytest.raises(InputError, match=r"engine\.preemption_mode: `swap` has no host memory"):
        scenario(engine=engine)
    assert scenario(engine=engine, hardware={"swap_space_gib": 4}).engine.given()["preemption_mode"] == "swap"


def test_an_unknown_policy_is_told_those_there_are() -> None:
    with pytest.raises(InputError, match=f"allowed: {', '.join(named_policies())}$"):
        scenario(engine={"policy": "no_such_policy"})


def test_a_scenario_does_not_change_and_travels_between_processes() -> None:
    found = scenario(slo={"ttft_ms": 5})
    with pytest.raises(ValueError, match="frozen"):
        found.seed = 3
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert copy.base_dir == found.base_dir
    assert found != scenario(slo={"ttft_ms": 6})
    assert found != "a scenario"


def test_the_json_schema_of_the_engine_describes_every_parameter() -> None:
    keys = engine_schema()["properties"]
    described = {key: known for key, known in keys.items() if key not in ENGINE_KEYS}
    assert set(described) == set(DECLARED)
    assert all(known["description"] for known in described.values())
    assert described["preemption_mode"]["anyOf"][0]["enum"] == ["recompute", "swap", "auto", "pause"]
    assert (described["max_num_seqs"]["default"], described["max_num_seqs"]["minimum"]) == (256, 1)
    assert "default" not in described["max_num_batched_tokens"]
