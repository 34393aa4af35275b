"""`sampling:` what requests ask for, by the scenario, the model or flags; and the time that it takes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import scenarios
from scenarios.assembly.engines import resolved_yaml
from scenarios.from_server import make
from scenarios.plan.answer import deploy
from scenarios.servers.sources import choose, read_source
from simulator.errors import InputError

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip
DATA: dict[str, Any] = {
    "name": "t", "engine": {"policy": "vllm", "version": "0.15"},
    "workload": {"preset": "chat", "rate": 1.0, "requests": 5},
}  # fmt: skip


def scenario(*overrides: str, version: str = "0.15") -> scenarios.Scenario:
    return scenarios.load({**DATA, "engine": {"policy": "vllm", "version": version}}, list(overrides))


@pytest.mark.parametrize(
    ("model", "asked", "share"),
    [
        ("llama-3.1-8b", "{temperature: 0}", 0),  # greedy
        ("llama-3.1-8b", "{top_p: 1}", 0),
        ("llama-3.1-8b", "{top_p: 1, top_k: -1}", 0),
        ("llama-3.1-8b", "{temperature: 1.0}", 128256 / 2**17),  # the model's top_p
        ("llama-2-7b", "null", 32000 / 2**17),
        ("qwen3-8b", "{top_p: 1}", 151936 / 2**17),  # the model's top_k
        ("gpt2", "null", 0),  # its file says nothing
        ("gpt2", "{top_k: 50}", 50257 / 2**17),
        ("gpt2", "{min_p: 0.1}", 0),
    ],
)
def test_top_k_and_top_p_take_time_by_the_vocabulary(model: str, asked: str, share: float) -> None:
    for version, us in (("0.15", 15), ("0.17", 4), ("0.21", 0)):
        chosen = scenario(f"model={model}", f"sampling={asked}", version=version)
        assert chosen.resolve_host().per_seq_s * 1e6 == pytest.approx(us * share)
        again = scenarios.load(yaml.safe_load(resolved_yaml(chosen)))
        assert again.resolve_host() == chosen.resolve_host(), "with the same source"


def test_sampling_is_that_of_the_file_beside_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    given = {**DATA, "model": str(tmp_path / "config.json")}
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "top_p": 0.9, "temperature": 0.7}')
    for own, filters in (({}, True), ({"sampling": {"temperature": 0}}, False), ({"sampling": {"top_p": 1.0}}, False)):
        found = scenarios.load({**given, **own})
        assert found.sampling is not None
        assert found.sampling.temperature == own.get("sampling", {}).get("temperature", 0.7)
        assert (found.resolve_host().per_seq_s > 0) == filters
    (tmp_path / "generation_config.json").write_text("no JSON")
    with pytest.raises(InputError, match=r"generation_config\.json is not JSON"):
        scenarios.load(given)


def test_vllms_flags_say_it_and_are_written() -> None:
    def read(flags: str) -> object:
        line = f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}"
        found = make([choose(read_source(line), None)[0]], gpu="h100").scenario.sampling
        return None if found is None else found.model_dump(exclude_none=True)

    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert read("--generation-config vllm") == neutral
    assert read("--generation-config auto") is None
    override = '--override-generation-config \'{"top_p": 0.8, "max_new_tokens": 7}\''
    assert read(override) == {"top_p": 0.8}
    assert read(f"{override} --generation-config vllm") == {**neutral, "top_p": 0.8}
    assert "--override-generation-config '{\"top_p\": 0.8}'" in deploy(scenario("sampling={top_p: 0.8}"))
    assert "generation-config" not in deploy(scenario())
