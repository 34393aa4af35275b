"""Each engine's own scheduler, recorded and live, beside the policy of its name: every decision is the same.

BATCHLAB_ENGINES names a folder with bin/python and the engines (`vllm_0.6.6`, `vllm_0.20.2`, ...); the README of
shared/oracle/engines says how to fill it. BATCHLAB_PARITY_CASES says how many live cases of each kind, and
BATCHLAB_PARITY_FIRST the seed of the first.
"""

import gzip
import json
import os
from pathlib import Path

import pytest

from simulator.policies.chunked_prefill.versions import VERSIONS
from tests.parity.engines import (
    FASTGEN,
    SARATHI,
    V0,
    VARIABLE,
    Engine,
    ask,
    compare,
    decisions_of,
    first_difference,
    missing,
    read,
    v1,
)
from tests.shared_data import shared

CASES = os.environ.get("BATCHLAB_PARITY_CASES", "30")
FIRST = os.environ.get("BATCHLAB_PARITY_FIRST", "800000")
RECORDED: dict[str, Engine] = {
    "v0_rec": V0,
    "v0_swap": V0,
    "v0_prio": V0,
    "sar_try": SARATHI,
    "mii_big": FASTGEN,
    "mii_rec": FASTGEN,
    "v_0.11.2": v1("0.11"),
    "va_0.11.2": v1("0.11"),
}

pytestmark = pytest.mark.shared


def recorded(name: str) -> Path:
    return shared(f"oracle/engines/recorded/{name}.jsonl.gz")


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_cases_are_scheduled_as_by_the_engine(name: str) -> None:
    print(compare(RECORDED[name], recorded(name), step=15))


@pytest.mark.long
@pytest.mark.parametrize("name", RECORDED)
def test_all_recorded_cases_are_scheduled_as_by_the_engine(name: str) -> None:
    print(compare(RECORDED[name], recorded(name)))


def test_fastgen_goes_on_where_the_real_loop_stops_in_an_assertion() -> None:
    """Cases without records: a prompt finds no room while the KV of what has ended waits to be freed."""
    with gzip.open(recorded("mii_rec"), "rt", encoding="utf-8") as file:
        cases = [item["case"] for line in file if "records" not in (item := json.loads(line))]
    assert len(cases) > 20
    for case in cases:
        steps = decisions_of(FASTGEN, case, fast_forward=True, by_id=False)
        assert sum(len(step["finished"]) for step in steps) == len(case["requests"])


V0_KINDS: dict[str, tuple[str, ...]] = {
    "recompute": (),
    "swap": ('preemption_mode="swap"',),
    "priority": ('policy="priority"',),
    "chunked": ("enable_chunked_prefill=true", "max_num_batched_tokens=32"),
}


@pytest.mark.parametrize("kind", V0_KINDS)
def test_vllm_v0_live(kind: str, tmp_path: Path) -> None:
    if (reason := missing("vllm_0.6.6")) is not None:
        pytest.skip(reason)
    given = shared("oracle/engines/vllm_v0_harness.py")
    harness = tmp_path / "harness.py"
    # A sequence of 0.6.6 knows the tokens of its prompt that are not computed by its data alone.
    text = given.read_text().replace("seq.get_num_uncomputed_tokens()", "seq.data.get_num_uncomputed_tokens()")
    harness.write_text(f"import sys\nsys.path.insert(0, {str(given.parent)!r})\n{text}")
    out = tmp_path / "out.jsonl.gz"
    ask(harness, "vllm_0.6.6", out, FIRST, CASES, *V0_KINDS[kind])
    print(compare(V0, out))


def installed() -> list[str]:
    """Folders of vLLM's v1 releases in the environment."""
    root = os.environ.get(VARIABLE)
    found = sorted(path.name for path in Path(root).glob("vllm_0.*")) if root else []
    return [name for name in found if version_of(name) in VERSIONS]


def version_of(folder: str) -> str:
    return ".".join(folder.removeprefix("vllm_").split(".")[:2])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("folder", installed() or ["vllm_0.33.0"])
def test_vllm_versions_live(folder: str, asynchronous: bool, tmp_path: Path) -> None:
    if (reason := missing(folder)) is not None:
        pytest.skip(reason)
    version = version_of(folder)
    harness = shared("oracle/engines/vllm_versions_harness.py")
    lacking = [setting for setting, first in LATER.items() if VERSIONS.index(version) < VERSIONS.index(first)]
    out = tmp_path / "out.jsonl.gz"
    settings = [f"async_scheduling={str(asynchronous).lower()}", *lacking]
    ask(harness, folder, out, FIRST, CASES, str(harness.parent), *settings)
    print(compare(v1(version), out))


LATER = {"watermark=0.0": "0.24", "scheduler_reserve_full_isl=false": "0.19"}


def test_the_comparison_can_fail() -> None:
    """With a slot less the decisions differ."""
    for name in ("v0_rec", "sar_try", "mii_big"):
        engine = RECORDED[name]
        found = [(case, theirs) for _, case, theirs in read(recorded(name), 60) if case["config"]["max_num_seqs"] > 1]
        for case, _ in found:
            case["config"]["max_num_seqs"] -= 1
        assert any(
            first_difference(engine, decisions_of(engine, case, fast_forward=True, by_id=False), theirs)
            for case, theirs in found
        )
