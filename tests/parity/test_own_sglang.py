"""`batchlab parity` and the policy `real_sglang` with a real SGLang, which BATCHLAB_SGLANG_PYTHON names."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from scenarios.runs.runner import run
from scenarios.schema.loader import load
from simulator.plan import StepPlan, View
from simulator.policies.sglang import Sglang
from tests.command import batchlab, small
from tests.parity.sglang_live import python

pytestmark = pytest.mark.sglang

# Little memory and much hope, so that requests are retracted, and prompts with a common beginning.
TIGHT = [
    "engine.policy=sglang", "hardware.num_gpu_blocks=70", "engine.schedule_conservativeness=0.05",
    "engine.max_num_batched_tokens=2048", "engine.enable_prefix_caching=true", "engine.order=lpm",
    "workload.classes.0.prefix={tokens: 100}",
]  # fmt: skip
MIXED = ["engine.enable_mixed_chunk=true", "engine.chunked_prefill_size=128"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FewerAtOnce(Sglang):
    """A rule is broken: a slot stays empty."""

    def plan(self, view: View) -> StepPlan:
        return Sglang.plan(self, view) if len(view.running) < self.max_num_seqs - 1 else StepPlan()


@pytest.mark.parametrize("overlap", ["false", "true"])
@pytest.mark.parametrize("more", [[], MIXED])
def test_sglang_decides_as_batchlab(more: list[str], overlap: str, tmp_path: Path) -> None:
    asked = [*TIGHT, *more, f"engine.async_scheduling={overlap}"]
    flags = [word for key in asked for word in ("--set", key)]
    done = batchlab("parity", small(tmp_path), "--engine-python", python(), "--json", *flags, cwd=tmp_path)
    assert json.loads(done.out)["equal"], done
    ours, theirs = [
        run(load(str(small(tmp_path)), [*asked, *more]), log_decisions=True)
        for more in ([], ["engine.policy=real_sglang", f"engine.python={python()}"])
    ]
    assert ours.summary["preemptions"]
    assert ours.decisions == theirs.decisions


def test_a_broken_rule_is_told_in_words(tmp_path: Path) -> None:
    flags = [
        "--engine",
        "sglang",
        "--set",
        f"engine.policy={__file__}:FewerAtOnce",
        "--set",
        "engine.async_scheduling=false",
    ]
    done = batchlab("parity", small(tmp_path), "--engine-python", python(), *flags, cwd=tmp_path)
    assert (done.code, "first difference in step" in done.out, "SGLang 0.5.23 computes" in done.out) == (3, True, True)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("engine.server_args={no_such: 3}", "no_such"),
        ("engine.order=sjf", "sjf"),
        ("engine.enable_prefill_delayer=true", "the delayer follows a server's clock"),
    ],
)
def test_a_setting_that_sglang_does_not_have(key: str, words: str, tmp_path: Path) -> None:
    keys = ["engine.policy=real_sglang", f"engine.python={python()}", key]
    done = batchlab("run", small(tmp_path), *[word for each in keys for word in ("--set", each)], cwd=tmp_path)
    assert (done.code, words in done.err) == (2, True), done
