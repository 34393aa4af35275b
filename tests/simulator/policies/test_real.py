"""The policy `real`: a scheduler outside in the loop gives the bytes of ours where it decides alike."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scenarios.runs.runner import run
from scenarios.schema.loader import load
from simulator.errors import InputError
from simulator.plan import StepPlan
from simulator.policies.real.asked import AskedSglang
from tests.command import batchlab, small
from tests.scenarios.parity.fake_python import fake_python

ROOMY = ["hardware.num_gpu_blocks=2000"]
DRAFTS = "engine.speculative_config={method: ngram, num_speculative_tokens: 2, acceptance: {rates: [0.5, 0.2]}}"


def real(folder: Path, fault: str = "none") -> list[str]:
    return [*ROOMY, "engine.policy=real", f"engine.python={fake_python(folder, fault)}"]


def same_bytes(folder: Path, ours: list[str], theirs: list[str], policies: tuple[str, str]) -> None:
    """Both runs leave the same folder, but for the policy's name."""
    path = small(folder)
    for name, asked in (("ours", ours), ("real", theirs)):
        run(load(str(path), [*ROOMY, *asked]), log_decisions=True).save(folder / name)
    for file in sorted((folder / "ours").iterdir()):
        if file.name not in ("scenario.yaml", "summary.json"):
            assert file.read_bytes() == (folder / "real" / file.name).read_bytes(), file.name
    mine, real_one = [(folder / name / "summary.json").read_text() for name in ("ours", "real")]
    assert mine == real_one.replace(f'"policy": "{policies[1]}"', f'"policy": "{policies[0]}"')


@pytest.mark.parametrize("more", [[], ["replicas=2"], ["workload.classes.0.client={timeout_s: 0.4}"], [DRAFTS]])
def test_a_scheduler_that_decides_alike_gives_the_same_bytes(more: list[str], tmp_path: Path) -> None:
    same_bytes(tmp_path, more, [*real(tmp_path), *more], ("chunked_prefill", "real"))


def test_sglang_that_decides_alike_gives_the_same_bytes(tmp_path: Path) -> None:
    keys = ["engine.max_num_batched_tokens=2048", "engine.async_scheduling=false"]
    python = f"engine.python={fake_python(tmp_path)}"
    asked = [*keys, "engine.policy=real_sglang", python]
    same_bytes(tmp_path, [*keys, "engine.policy=sglang"], asked, ("sglang", "real_sglang"))


def test_real_is_sglangs_where_the_python_has_no_other(tmp_path: Path) -> None:
    packages, python = tmp_path / "lib" / "python3.11" / "site-packages", tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(fake_python(tmp_path))
    for package, policy in ((None, "real"), ("sglang", "real_sglang"), ("vllm", "real")):
        if package is not None:
            (packages / package).mkdir(parents=True)
        scenario = load(str(small(tmp_path)), ["engine.policy=real", f"engine.python={python}"])
        assert scenario.engine.policy == policy


def test_a_relative_python_is_found_from_the_scenarios_folder(tmp_path: Path) -> None:
    """Unless an override names it; a link stays one, for an environment is where its link is."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(fake_python(tmp_path))
    path = small(tmp_path)
    path.write_text(path.read_text().replace("{policy: chunked_prefill,", "{policy: real, python: venv/python,"))
    assert load(str(path)).engine.parameter("python") == str(tmp_path / "venv" / "python")
    with contextlib.chdir(tmp_path / "venv"):
        changed = load(str(path), ["engine.python=./python"])
    assert changed.engine.parameter("python") == str(tmp_path / "venv" / "python")
    assert load(str(path), ["engine.python=python3"]).engine.parameter("python") == "python3"


def test_a_scheduler_with_a_rule_of_its_own_is_simulated(tmp_path: Path) -> None:
    """One with a slot less does as ours with a slot less."""
    path = str(small(tmp_path))
    theirs = run(load(path, real(tmp_path, "slot"))).summary
    ours = run(load(path, [*ROOMY, "engine.max_num_seqs=7"])).summary
    assert theirs["mean_ttft_ms"] == ours["mean_ttft_ms"]
    assert theirs["mean_ttft_ms"] != run(load(path, ROOMY)).summary["mean_ttft_ms"]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["engine.policy=real"], "policy real needs python"),
        (["engine.policy=real", "engine.python=no/such/python"], "engine.python: .*names no program"),
        (["engine.python=python3"], "does not use this key"),
    ],
)
def test_bad_input(keys: list[str], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        run(load(str(small(tmp_path)), keys))


def test_what_the_schedulers_are_not_told_is_refused(tmp_path: Path) -> None:
    path, python = str(small(tmp_path)), f"engine.python={fake_python(tmp_path)}"
    with pytest.raises(InputError, match=r"engine\.speculative_config: the policy real_sglang"):
        run(load(path, ["engine.policy=real_sglang", python, DRAFTS]))
    offload = ["engine.enable_prefix_caching=true", "hardware.kv_offload={host_gib: 10}"]
    with pytest.raises(InputError, match="KV offload cannot be combined with a real scheduler"):
        run(load(path, [*real(tmp_path), *offload]))


def test_an_engine_that_fails_is_bad_input(tmp_path: Path) -> None:
    keys = [word for key in real(tmp_path, "fails") for word in ("--set", key)]
    done = batchlab("run", small(tmp_path), *keys, cwd=tmp_path)
    assert (done.code, "vLLM 9.9: AssertionError: here" in done.err) == (2, True)


@dataclass(frozen=True, slots=True)
class Live:
    """A request as a plan names it."""

    request_id: str
    is_decoding: bool = True


def test_sglangs_batch_and_what_its_tree_was_asked_become_a_plan() -> None:
    a, b, c = Live("a"), Live("b"), Live("c", is_decoding=False)
    asked: Any = AskedSglang("python3", "sglang", 2)
    asked._by_id = {each.request_id: each for each in (a, b, c)}

    def plan(scheduled: dict[str, int], **found: Any) -> Any:
        view = SimpleNamespace(running=[a, b], num_decoding=2, caches_prefixes=False)
        nothing: dict[str, Any] = {"preempted": [], "tried": None, "withheld": False}
        return asked._plan(view, {"scheduled": scheduled, **nothing, **found})

    assert plan({"a": 1, "b": 1}) == StepPlan()
    assert plan({"b": 1, "a": 1}).to_end == (b, a)
    assert plan({"b": 1}).paused == (a,)
    assert plan({}, withheld=True) == StepPlan(decode=False, withheld=True)
    retracted = plan({"b": 1}, preempted=[["a", 0]])
    assert ([each.request for each in retracted.preempt], retracted.paused, retracted.to_end) == ([a], (), ())
    alone = plan({"c": 5}, tried=["c"])
    assert (alone.decode, alone.tried, alone.to_end) == (False, (c,), ())
    assert [(chunk.request, chunk.num_tokens) for chunk in alone.prefill] == [(c, 5)]
    mixed = plan({"c": 5, "a": 1, "b": 1}, tried=[])
    assert (mixed.decode, mixed.tried, mixed.to_end) == (True, (), (c, a, b))
