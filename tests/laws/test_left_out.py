"""Keys that a server's policy leaves out are as if they had been written, byte for byte; plain policies have their own.

vLLM's sizes are those of `get_batch_defaults` (vllm/engine/arg_utils.py: 0.11.2, line 1892; 0.20.2, 2208; 0.33.0,
2973), its share of memory is that of `CacheConfig` (0.19.0: 0.9; 0.20.2: 0.92). SGLang's are those of
`_handle_gpu_memory_settings` (python/sglang/srt/server_args.py, 0.5.9).
"""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

import scenarios
from scenarios.assembly.engines import groups_of, resolved_yaml, with_policy
from scenarios.runs.result import PROVENANCE
from scenarios.runs.storage.run_folder import write_run
from scenarios.runs.variants import as_variant, choose
from scenarios.schema.cost import ProfileCostConfig

WORKLOAD = {"preset": "chat", "rate": 20.0, "requests": 20}
LINEAR = {"kind": "linear", "base_s": 0.01, "per_token_s": 1e-5, "per_context_token_s": 0}
SERVERS = [("vllm", "0.12"), ("vllm", "0.20"), ("vllm", "0.33"), ("sglang", None), ("tensorrt_llm", None)]


def scenario(policy: str, version: str | None = None, gpu: Any = "h100", **more: Any) -> scenarios.Scenario:
    engine = {"policy": policy, **({} if version is None else {"version": version}), **more.pop("engine", {})}
    hardware = {"gpu": gpu, **more.pop("hardware", {})}
    return scenarios.load({"name": "s", "hardware": hardware, "engine": engine, "workload": WORKLOAD, **more})


def written_out(chosen: scenarios.Scenario) -> scenarios.Scenario:
    """The scenario with its server's defaults as given keys."""
    data = chosen.model_dump(exclude_unset=True)
    assert chosen.defaults is not None
    for path, value in chosen.defaults.taken.items():
        room, _, key = path.partition(".")
        data.setdefault(room, {})[key] = value
    return scenarios.load({**data, "cost": chosen.resolve_cost().model_dump()})


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(("server", "gpu"), [*product(SERVERS, ["h100", "b200", "a100-80gb", "rtx-4090"])], ids=str)
def test_keys_left_out_are_as_if_written(server: tuple[str, str | None], gpu: str, tmp_path: Path) -> None:
    chosen = scenario(*server, gpu)
    whole = resolved_yaml(chosen)
    assert resolved_yaml(written_out(chosen)) == whole
    assert resolved_yaml(scenarios.load(yaml.safe_load(whole))) == whole
    if gpu == "h100":
        for name, each in (("a", chosen), ("b", written_out(chosen)), ("c", scenarios.load(yaml.safe_load(whole)))):
            (tmp_path / name).mkdir()
            run = scenarios.run(each)
            where, text = tmp_path / name, run.scenario_yaml
            write_run(where, scenario_yaml=text, summary=run.summary, records=run.records, notes=run.notes)
        assert files(tmp_path / "a") == files(tmp_path / "b") == files(tmp_path / "c")


@pytest.mark.parametrize(
    ("server", "gpu", "async_scheduling", "caching", "seqs", "tokens", "share"),
    [
        (("vllm", "0.12"), "h100", False, True, 1024, 8192, 0.9),
        (("vllm", "0.19"), "h100", True, True, 1024, 8192, 0.9),
        (("vllm", "0.20"), "h200", True, True, 1024, 8192, 0.92),
        (("vllm", "0.27"), "b200", True, True, 1024, 8192, 0.92),
        (("vllm", "0.28"), "b200", True, True, 1024, 16384, 0.92),
        (("vllm", "0.33"), "a100-80gb", True, True, 256, 2048, 0.92),
        (("vllm", "0.33"), "rtx-4090", True, True, 256, 2048, 0.92),
        (
            ("sglang", None),
            "h100",
            True,
            True,
            2048,
            16384,
            0.834,
        ),  # of 79.2 GiB all but (512 + 8192 x 1.5 + 512 + 128) MiB
        (("sglang", None), "b200", True, True, 2048, 16384, 0.856),
        (("tensorrt_llm", None), "h100", True, False, 2048, 8192, 0.9),
    ],
    ids=str,
)
def test_defaults_are_those_of_the_servers_source(
    server: tuple[str, str | None],
    gpu: str,
    async_scheduling: bool,
    caching: bool,
    seqs: int,
    tokens: int,
    share: float,
) -> None:
    chosen = scenario(*server, gpu)
    engine, hardware = chosen.engine, chosen.hardware
    assert engine.parameter("async_scheduling") is async_scheduling
    assert engine.enable_prefix_caching is caching
    assert (engine.parameter("max_num_seqs"), engine.parameter("max_num_batched_tokens")) == (seqs, tokens)
    taken = hardware.gpu_memory_utilization if hardware.mem_fraction_static is None else hardware.mem_fraction_static
    assert taken == share
    assert engine.given() == ({} if server[1] is None else {"version": server[1]})


def test_what_is_given_decides_over_the_rest() -> None:
    assert scenario("vllm", engine={"max_num_batched_tokens": 512}).engine.parameter("max_num_seqs") == 512
    whole = scenario("vllm", engine={"enable_chunked_prefill": False})
    assert whole.engine.parameter("max_num_batched_tokens") == 131_072  # the model's longest
    lookup = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "model_runner": "v1"}}
    assert scenario("vllm", engine=lookup).engine.parameter("async_scheduling") is False
    for version, caches in (("0.24", False), ("0.26", True)):
        assert scenario("vllm", version, model="qwen3-next-80b-a3b").engine.enable_prefix_caching is caches
    free = scenario("tensorrt_llm", engine={"capacity_policy": "max_utilization"})
    assert free.engine.parameter("async_scheduling") is False
    assert scenario("sglang", hardware={"gpu_memory_utilization": 0.8}).hardware.mem_fraction_static is None
    bound = scenario("sglang", engine={"max_num_batched_tokens": 999})
    assert bound.engine.parameter("chunked_prefill_size") is None
    own = scenario("vllm", gpu={"base": "h100", "memory_gib": 40})
    assert own.engine.parameter("max_num_seqs") == 256


def test_one_who_studies_an_algorithm_has_the_plain_defaults() -> None:
    plain = scenario("chunked_prefill")
    assert plain.defaults is None
    assert plain.cost.kind == "roofline"
    for policy in ("vllm", "sglang", "tensorrt_llm"):
        chosen = scenario(policy, cost=LINEAR)
        assert chosen.defaults is None
        assert chosen.engine.parameter("max_num_seqs") == 256
        assert not chosen.engine.enable_prefix_caching
    same, _ = with_policy(scenario("vllm"), "chunked_prefill")
    assert same.resolved() == {**plain.resolved(), "name": "s"}
    back, _ = with_policy(plain, "vllm")
    assert back.resolved() == scenario("vllm").resolved()


@pytest.mark.parametrize(
    ("server", "gpu", "model", "kind", "name"),
    [
        (("vllm", "0.19"), "h100", "llama-3.1-8b", "profile", "h100-llama-3.1-8b"),
        (("vllm", "0.20"), "h100", "mistral-7b", "profile", "h100-vllm-0.19"),
        (("vllm", "0.33"), "h100", "mistral-7b", "profile", "h100-vllm-0.24"),
        (("sglang", None), "h100", "mistral-7b", "profile", "h100-sglang-0.5"),
        (("sglang", None), "a100-80gb", "mistral-7b", "profile", "a100-80gb-vllm-0.14"),
        (("vllm", "0.33"), "mi300x", "mistral-7b", "roofline", None),
        (("vllm", "0.33"), {"base": "h100", "bandwidth_gb_s": 9000}, "mistral-7b", "roofline", None),
    ],
    ids=str,
)
def test_auto_takes_the_best_prices_there_are(
    server: tuple[str, str | None], gpu: Any, model: str, kind: str, name: str | None
) -> None:
    chosen = scenario(*server, gpu, model=model)
    assert chosen.cost.kind == "auto"
    taken = chosen.resolve_cost()
    assert taken.kind == kind
    assert not isinstance(taken, ProfileCostConfig) or taken.name == name
    summary = scenarios.run(chosen).summary
    told = summary[PROVENANCE]
    assert told["cost"]["kind"] == kind
    assert told["cost"].get("profile") == name
    assert (name or "no measured kernel") in summary["prediction"]["why"]
    plain = scenario("chunked_prefill", gpu=gpu, model=model, cost={"kind": "auto"})
    assert plain.resolve_cost().kind == kind


def test_a_model_that_no_table_has_on_its_gpu_is_priced_by_figures() -> None:
    chosen = scenario("vllm", gpu="mi300x", model="gpt-oss-20b")
    assert chosen.resolve_cost().kind == "roofline"
    assert "no measured kernel" in scenarios.run(chosen).summary["prediction"]["why"]


def test_provenance_says_what_is_the_servers() -> None:
    chosen = scenario("vllm", "0.20", engine={"max_num_seqs": 64})
    told = scenarios.run(chosen).summary[PROVENANCE]["defaults"]
    assert told["of"] == "vllm serve 0.20 on h100"
    assert told["taken"]["engine.async_scheduling"] is True
    assert told["otherwise"] == {"engine.max_num_seqs": 1024}
    assert "defaults" not in scenarios.run(scenario("vllm", cost=LINEAR)).summary[PROVENANCE]


def test_a_default_that_cannot_be_simulated_gives_way_and_says_so() -> None:
    roles = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]
    chosen = scenario("vllm", fleet=roles)
    for group in groups_of(chosen):
        assert group.scenario.defaults is not None
        assert bool(group.scenario.defaults.gave_way) is (group.name == "d")
        assert group.scenario.engine.parameter("async_scheduling") is True
        assert group.scenario.engine.enable_prefix_caching is (group.name == "p")
    told = scenarios.run(chosen).summary[PROVENANCE]["fleet"]
    assert "gave_way" in told[1]["defaults"]
    assert resolved_yaml(scenarios.load(yaml.safe_load(resolved_yaml(chosen)))) == resolved_yaml(chosen)


def test_a_comparison_says_what_a_servers_policy_has_by_default() -> None:
    found = choose(scenario("chunked_prefill"), [as_variant(name) for name in ("vllm", "chunked_prefill")])
    assert list(found) == ["vllm", "chunked_prefill"]
    (note,) = found["vllm"].notes
    for words in ("async_scheduling True", "max_num_seqs 1024", "cost profile, not roofline", "--set"):
        assert words in note
    assert not found["chunked_prefill"].notes
