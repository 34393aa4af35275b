"""Prefix caching from a scenario file to its results: asked for by a key, refused where it cannot be."""

import gzip
import json
from pathlib import Path

import pytest
import yaml

import scenarios
from scenarios.assembly.engines import caches_prefixes, with_policy
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.policies import built_in_policies
from tests.command import SMALL, batchlab
from tests.scenarios.runs.test_runner import GREEDY, small, write_policy

CACHING = SMALL.replace("engine: {", "engine: {enable_prefix_caching: true, ")
WITHOUT = [name for name in built_in_policies() if not caches_prefixes(name)]


def chat(folder: Path, count: int = 40) -> Path:
    """A trace of prompts of 1,200 tokens, two blocks of 512 of which everybody shares; a second apart."""
    path = folder / "chat.jsonl"
    rows = [
        {"timestamp": 1000 * i, "input_length": 1200, "output_length": 20, "hash_ids": [1, 2, 10 + i]}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def on_chat(folder: Path, **engine: object) -> dict[str, object]:
    """The small scenario on that trace, with a prefix cache."""
    data = small(workload={"trace": {"path": str(chat(folder))}}, engine__enable_prefix_caching=True)
    data["engine"].update(engine)
    return data


def test_what_prompts_share_is_found(tmp_path: Path) -> None:
    """All but the first find 1,024 of their 1,200 tokens."""
    result = scenarios.run(on_chat(tmp_path), log_decisions=True)
    assert result.requests["cached_tokens"].tolist() == [0] + [1024] * 39
    assert result.summary["prefix_cache_hit_rate"] == pytest.approx(39 * 1024 / 40 / 1200)
    assert result.decisions is not None
    admitted = {name: hits for step in result.decisions for name, hits in step["admitted"].items()}
    assert sorted(admitted.values()) == [0] + [1024] * 39
    off = scenarios.run(on_chat(tmp_path, enable_prefix_caching=False))
    assert off.summary["prefix_cache_hit_rate"] == 0.0
    assert (result.requests["ttft_ms"][1:] < off.requests["ttft_ms"][1:]).all()
    assert yaml.safe_load(result.scenario_yaml)["engine"]["enable_prefix_caching"] is True


def test_fast_forward_changes_nothing(tmp_path: Path) -> None:
    fast, slow = (scenarios.run(on_chat(tmp_path), log_decisions=True, fast_forward=fast) for fast in (True, False))
    assert fast.summary == slow.summary
    assert fast.decisions == slow.decisions
    assert fast.steps.equals(slow.steps)


def test_requests_that_share_nothing_are_served_as_without_a_cache() -> None:
    """Generated prompts are everybody's own, and there is memory for all of them."""
    data = small(hardware__num_gpu_blocks=2000)
    off = scenarios.run(data)
    data["engine"]["enable_prefix_caching"] = True
    assert scenarios.run(data).summary == off.summary
    assert off.summary["preemptions"] == 0


@pytest.mark.parametrize("policy", WITHOUT)
def test_policies_that_do_not_reckon_with_a_cache_refuse_it(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(CACHING.replace("policy: chunked_prefill", f"policy: {policy}"))
    with pytest.raises(InputError, match=f"the policy {policy} does not reckon with a prefix cache") as caught:
        scenarios.run(path)
    error = caught.value
    assert (error.file, error.line) == (str(path), 13)
    assert "engine.enable_prefix_caching" in str(error)
    assert "these do: " in str(error)
    assert "chunked_prefill" in str(error)


def test_there_are_policies_with_and_without() -> None:
    assert "chunked_prefill" in set(built_in_policies()) - set(WITHOUT)
    assert {"static", "continuous", "preemptive"} <= set(WITHOUT)


def test_a_users_policy_says_whether_it_reckons_with_a_cache(tmp_path: Path) -> None:
    name = write_policy(tmp_path, GREEDY)
    data = small(engine={"policy": name, "enable_prefix_caching": True})
    with pytest.raises(InputError, match="the policy Mine does not reckon with a prefix cache"):
        scenarios.run(data)
    path = Path(name.rpartition(":")[0])
    text = path.read_text().replace("import dataclass\n", "import dataclass\nfrom typing import ClassVar\n")
    text = text.replace("    max_num_seqs", "    caches_prefixes: ClassVar[bool] = True\n    max_num_seqs", 1)
    path.write_text(text)
    assert caches_prefixes(name)
    assert scenarios.run(data).summary["completed"] == 60


def test_the_engines_own_error_names_the_users_policy(tmp_path: Path) -> None:
    """It says that it reckons with the cache, and asks for tokens that were found there."""
    name = write_policy(tmp_path, GREEDY)
    path = Path(name.rpartition(":")[0])
    path.write_text(
        path.read_text().replace("    max_num_seqs: int", "    caches_prefixes = True\n    max_num_seqs: int")
    )
    data = on_chat(tmp_path)
    data["engine"] = {"policy": name, "enable_prefix_caching": True}
    with pytest.raises(InputError, match="computes 1200 tokens of request 1, which has 176 left") as caught:
        scenarios.run(data)
    assert caught.value.file == str(path)


@pytest.mark.parametrize("size", [48, 1000])
def test_blocks_that_do_not_go_with_the_traces_hashes(size: int, tmp_path: Path) -> None:
    says = f"hashes of 512-token blocks, which do not go with block_size = {size}: one must be a multiple"
    with pytest.raises(InputError, match=says):
        scenarios.run(on_chat(tmp_path, block_size=size))
    assert scenarios.run(on_chat(tmp_path, block_size=size, enable_prefix_caching=False)).summary["completed"] == 40


@pytest.mark.parametrize(("size", "found"), [(16, 1024), (512, 1024), (1024, 1024), (64, 1024), (2048, 0)])
def test_blocks_that_go_with_the_traces_hashes(size: int, found: int, tmp_path: Path) -> None:
    result = scenarios.run(on_chat(tmp_path, block_size=size))
    assert result.requests["cached_tokens"].tolist() == [0] + [found] * 39


def test_a_comparison_leaves_it_out_where_it_cannot_be_and_says_so(tmp_path: Path) -> None:
    found = scenarios.compare(on_chat(tmp_path), ["chunked_prefill", "static", "continuous"])
    for label in ("static", "continuous"):
        assert f"{label}: does not take enable_prefix_caching, left out here" in found.notes
        assert found.summaries[label][0]["prefix_cache_hit_rate"] == 0.0
    assert not any(note.startswith("chunked_prefill:") for note in found.notes)
    assert found.summaries["chunked_prefill"] == [scenarios.run(on_chat(tmp_path)).summary]


def test_with_another_policy() -> None:
    caching = load(small(engine__enable_prefix_caching=True, engine__order="priority"))
    chosen, dropped = with_policy(caching, "static")
    assert (chosen.engine.enable_prefix_caching, dropped) == (False, ("enable_prefix_caching", "order"))
    chosen, dropped = with_policy(caching, "chunked_prefill")
    assert (chosen.engine.enable_prefix_caching, dropped) == (True, ())
    off = load(small(engine__enable_prefix_caching=False))
    assert with_policy(off, "static")[1] == (), "what asks for nothing is not worth a word"


def test_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(on_chat(tmp_path, enable_prefix_caching=False)))
    done = batchlab(
        "run", "s.yaml", "--set", "engine.enable_prefix_caching=true", "--json", "--out", "on", cwd=tmp_path
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["prefix_cache_hit_rate"] == pytest.approx(39 * 1024 / 40 / 1200)
    table = gzip.decompress((tmp_path / "on" / "requests.csv.gz").read_bytes()).decode()
    header, _, second, *_ = table.splitlines()
    assert dict(zip(header.split(","), second.split(","), strict=True))["cached_tokens"] == "1024"

    flags = ["--set", "engine.enable_prefix_caching=true", "--set", "engine.policy=static"]
    done = batchlab("run", "s.yaml", *flags, cwd=tmp_path)
    assert done.code == 2
    assert "the policy static does not reckon with a prefix cache" in done.err
    assert "--set engine.enable_prefix_caching=true" in done.err
    assert "Traceback" not in done.err

    flags = ["--set", "engine.enable_prefix_caching=true", "--set", "engine.block_size=48"]
    done = batchlab("run", "s.yaml", *flags, cwd=tmp_path)
    assert done.code == 2
    assert "do not go with block_size = 48" in done.err
    assert "Traceback" not in done.err

    flags = ["--policies", "static,chunked_prefill", "--set", "engine.enable_prefix_caching=true", "--no-report"]
    done = batchlab("compare", "s.yaml", *flags, cwd=tmp_path)
    assert done.code == 0
    assert "is applied to chunked_prefill alone: static does not take enable_prefix_caching" in done.err
