"""The files that start a plan's server, read back: each gives the scenario that its command gives."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import scenarios
from scenarios.from_server import make
from scenarios.plan.answer import deploy, deployed
from scenarios.servers.manifests import files_of
from scenarios.servers.sources import read_source

WORKLOAD = {"preset": "chat", "rate": 1.0, "requests": 5}


def files(engine: dict[str, Any], hardware: dict[str, Any]) -> tuple[scenarios.Scenario, dict[str, str]]:
    chosen = scenarios.load({"engine": engine, "hardware": hardware, "workload": WORKLOAD})
    server = deployed(chosen, 3)
    assert not isinstance(server, str)
    return chosen, files_of(server)


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ({"policy": "vllm", "max_num_seqs": 99, "version": "0.20"}, {"llm-d-values.yaml", "dynamo.yaml"}),
        ({"policy": "sglang", "chunked_prefill_size": 4096}, {"dynamo.yaml"}),
        (
            {"policy": "tensorrt_llm", "max_num_seqs": 64, "enable_chunked_prefill": False},
            {"options.yaml", "dynamo.yaml"},
        ),
        ({"policy": "tgi", "max_batch_prefill_tokens": 1024}, set()),
    ],
    ids=lambda each: each.get("policy") if isinstance(each, dict) else "",
)
def test_each_file_is_read_back_as_the_command_is(
    engine: dict[str, Any], names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, found = files(engine, {"gpu": "h100", "tensor_parallel": 2})
    assert set(found) == {"command.sh", "compose.yaml", "kubernetes.yaml", *names}
    expected = make(read_source(deploy(chosen, 3)), gpu="h100").scenario
    monkeypatch.chdir(tmp_path)  # the script names the file of options as it lies beside it
    for name in found:
        (tmp_path / name).write_text(found[name])
    for name in set(found) - {"options.yaml"}:
        read = make(read_source(str(tmp_path / name)), overrides=[f"name={expected.name}"]).scenario
        if name == "dynamo.yaml":  # its image says no version of the server
            read = read.model_copy(update={"engine": expected.engine}) if engine["policy"] == "vllm" else read
        assert read.resolved() == expected.resolved(), name


def test_manifests_are_plain_yaml_with_the_gpus_of_a_replica() -> None:
    _, found = files({"policy": "vllm"}, {"gpu": "b200", "tensor_parallel": 4})
    deployment, service = yaml.safe_load_all(found["kubernetes.yaml"])
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert deployment["spec"]["replicas"] == 3
    assert service["spec"]["ports"] == [{"port": 80, "targetPort": 8000}]
    assert container["image"] == "vllm/vllm-openai:v0.33.0"
    assert found["command.sh"].splitlines()[:2] == ["#!/bin/sh", "# 3 x 4 x b200"]
    values = yaml.safe_load(found["llm-d-values.yaml"])
    assert values["decode"]["parallelism"] == {"tensor": 4}
    assert "--tensor-parallel-size" not in values["decode"]["containers"][0]["args"]
    assert "&id" not in "".join(found.values())
