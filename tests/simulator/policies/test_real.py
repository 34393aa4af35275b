"""The policy `real`: a scheduler outside in the loop gives the bytes of ours where it decides alike."""

from pathlib import Path

import pytest

from scenarios.runs.runner import run
from scenarios.schema.loader import load
from simulator.errors import InputError
from tests.command import batchlab, small
from tests.scenarios.parity.fake_python import fake_python

ROOMY = ["hardware.num_gpu_blocks=2000"]


def real(folder: Path, fault: str = "none") -> list[str]:
    return [*ROOMY, "engine.policy=real", f"engine.python={fake_python(folder, fault)}"]


@pytest.mark.parametrize("more", [[], ["replicas=2"], ["workload.classes.0.client={timeout_s: 0.4}"]])
def test_a_scheduler_that_decides_alike_gives_the_same_bytes(more: list[str], tmp_path: Path) -> None:
    path = small(tmp_path)
    for name, asked in (("ours", ROOMY), ("real", real(tmp_path))):
        run(load(str(path), [*asked, *more]), log_decisions=True).save(tmp_path / name)
    for file in sorted((tmp_path / "ours").iterdir()):
        if file.name not in ("scenario.yaml", "summary.json"):
            assert file.read_bytes() == (tmp_path / "real" / file.name).read_bytes(), file.name
    ours, theirs = [(tmp_path / name / "summary.json").read_text() for name in ("ours", "real")]
    assert ours == theirs.replace('"policy": "real"', '"policy": "chunked_prefill"')


def test_a_scheduler_with_a_rule_of_its_own_is_simulated(tmp_path: Path) -> None:
    """One with a slot less does as ours with a slot less."""
    path = str(small(tmp_path))
    theirs = run(load(path, real(tmp_path, "slot"))).summary
    ours = run(load(path, [*ROOMY, "engine.max_num_seqs=7"])).summary
    assert theirs["mean_ttft_ms"] == ours["mean_ttft_ms"]
    assert theirs["mean_ttft_ms"] != run(load(path, ROOMY)).summary["mean_ttft_ms"]


def test_drafts_are_refused(tmp_path: Path) -> None:
    drafts = "engine.speculative_config={method: ngram, num_speculative_tokens: 2, acceptance: {rates: [0.5, 0.2]}}"
    with pytest.raises(InputError, match="speculative_config"):
        run(load(str(small(tmp_path)), [*real(tmp_path), drafts]))


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


def test_an_engine_that_fails_is_bad_input(tmp_path: Path) -> None:
    keys = [word for key in real(tmp_path, "fails") for word in ("--set", key)]
    done = batchlab("run", small(tmp_path), *keys, cwd=tmp_path)
    assert (done.code, "vLLM 9.9: AssertionError: here" in done.err) == (2, True)
