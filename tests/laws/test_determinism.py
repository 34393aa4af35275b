"""Law 5: equal inputs, equal bytes; in any process, whatever its hashes are seeded with."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.check.law_trial import differences
from scenarios.check.laws import same
from simulator.simulate import Run
from simulator.timing.formula_cost import Linear
from tests.examples import examples
from tests.laws.scenarios import POLICIES, Memory, Scenario, make_policy, make_workload, scenarios, takes

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@examples(30)
def test_equal_inputs_equal_results(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    once = scenario.run(log_decisions=True)
    assert same(once, scenario.run(log_decisions=True), ("", " again")) is None
    silent = scenario.run()
    assert differences(once.records, silent.records) == [], "looking at the decisions changes them"


def fixed_scenarios() -> Iterator[Scenario]:
    """Every policy, short of memory, with ties, priorities and two replicas."""
    rng = np.random.default_rng(7)
    count = 200
    lengths = list(zip(rng.integers(1, 60, count).tolist(), rng.integers(1, 40, count).tolist(), strict=True))
    arrivals = np.cumsum(rng.choice([0.0, 0.0, 0.01, 0.05], count)).tolist()
    workload = make_workload(arrivals, lengths, priority=rng.integers(0, 3, count).tolist())
    for name in POLICIES:
        options: dict[str, Any] = {"preemption_mode": "swap"} if takes(name, "preemption_mode") else {}
        options |= {"order": "priority"} if name == "chunked_prefill" else {}
        yield Scenario(
            workload,
            make_policy(name, 8, 64, **options),
            Memory(30, 8, 40),
            Linear(0.005, 2e-5, 5e-7),
            1e-4,
            replicas=2,
            router="least_loaded",
        )


def digest(run: Run) -> str:
    """Of every bit of the records, and of the decisions as they would be written."""
    sha = hashlib.sha256()
    records = run.records
    for columns in (records.requests, records.rows, records.gaps, records.requeues):
        for column in astuple(columns):
            sha.update(column.tobytes())
    sha.update(records.step_end_s.tobytes())
    sha.update(records.step_used_blocks.tobytes())
    sha.update(repr(run.decisions).encode())
    return sha.hexdigest()


def digests() -> list[str]:
    return [digest(scenario.run(log_decisions=True)) for scenario in fixed_scenarios()]


def test_equal_results_in_another_process() -> None:
    """Sets and dictionaries of strings go another way there, if any result depends on them."""
    here = digests()
    assert len(set(here)) == len(POLICIES) - 1, "one replica has nothing to delay for: that variant is plain sglang"
    script = "from tests.laws.test_determinism import digests\nprint(*digests())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == here
