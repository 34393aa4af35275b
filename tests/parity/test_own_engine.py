"""`batchlab parity` and the policy `real` with a real vLLM, which BATCHLAB_VLLM_PYTHON names."""

import json
from pathlib import Path

import pytest

from scenarios.runs.runner import run
from scenarios.schema.loader import load
from tests.command import batchlab, small
from tests.parity.live import missing, python

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

# Little memory, so that requests are preempted, and prompts with a common beginning.
TIGHT = ["hardware.num_gpu_blocks=100", "workload.classes.0.prefix={tokens: 100}", "engine.enable_prefix_caching=true"]


NGRAM, EAGLE = [
    f"engine.speculative_config={{method: {method}, num_speculative_tokens: 3, acceptance: {{rates: [0.7, 0.5, 0.2]}}}}"
    for method in ("ngram", "eagle")
]


# One token is left to compute of a prompt: it enters with drafts that are padding.
PADDED = [NGRAM, "workload.classes.0.input={dist: fixed, value: 1}", "workload.classes.0.prefix={tokens: 112}"]


@pytest.mark.parametrize("asynchronous", ["false", "true"])
@pytest.mark.parametrize("keys", [["engine.order=fcfs"], ["engine.order=priority"], [NGRAM], [EAGLE], PADDED])
def test_vllm_decides_as_batchlab(keys: list[str], asynchronous: str, tmp_path: Path) -> None:
    asked = [*TIGHT, *keys, f"engine.async_scheduling={asynchronous}"]
    flags = [word for key in asked for word in ("--set", key)]
    done = batchlab("parity", small(tmp_path), "--engine-python", python(), "--json", *flags, cwd=tmp_path)
    assert json.loads(done.out)["equal"], done
    ours, theirs = [
        run(load(str(small(tmp_path)), [*asked, *more]), log_decisions=True)
        for more in ([], ["engine.policy=real", f"engine.python={python()}"])
    ]
    assert ours.summary["preemptions"] or keys == PADDED
    assert ours.decisions == theirs.decisions


def test_a_setting_that_vllm_does_not_have(tmp_path: Path) -> None:
    keys = ["engine.policy=real", f"engine.python={python()}", "engine.scheduler_config={no_such_setting: 3}"]
    done = batchlab("run", small(tmp_path), *[word for key in keys for word in ("--set", key)], cwd=tmp_path)
    assert (done.code, "it has no setting no_such_setting, which is 3 here" in done.err) == (2, True), done
