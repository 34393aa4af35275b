"""The campaign: every part on a CPU, killed and resumed, on a bare device, and what goes wrong in it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from calibration.rows import read_rows
from simulator.lockstep.step_errors import read_csv
from tests.gpu_backend.counted import count_work
from tools.campaign import parts, run
from tools.campaign.job import MOST_TRIES, DeadDeviceError, Job, Journal, Section, name_of, setting_of
from tools.campaign.parts import PARTS
from tools.campaign.run import TOTAL_S, plan, table
from tools.kernel_bench import speed
from tools.kernel_bench.cases import cases, fp8_cases
from tools.kernel_bench.device_checks import CHECKS


def campaign(out: Path, *more: str) -> int:
    return run.main(["--device", "cpu", "--out", str(out), "--seconds", "1e6", *more])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted clocks, few checks, few cases: what a part does is the same for the rest. Time is never up: the machine
    may be anybody's."""
    count_work(monkeypatch)
    monkeypatch.setattr(run, "plan", lambda: [replace(part, budget_s=1e6) for part in plan()])
    for name in list(CHECKS)[1:]:
        monkeypatch.delitem(CHECKS, name)
    monkeypatch.setattr(speed, "cases", lambda scale: cases(scale)[3:5])
    monkeypatch.setattr(parts, "LIMITS", (2, 32, 16))
    monkeypatch.setattr(parts, "TOKENS", (1,))
    monkeypatch.setattr(speed, "fp8_cases", lambda scale: fp8_cases(scale)[4:])
    whole = speed.variants
    monkeypatch.setattr(speed, "variants", lambda choice=None: whole(choice)[:2])


@pytest.mark.long
def test_all_of_it_on_a_cpu(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del quick
    assert campaign(tmp_path) == 0
    out = tmp_path / "cpu"
    state = json.loads((out / "state.json").read_text())
    assert list(state) == list(PARTS)
    assert all(each["done"] and not each["lost"] for each in state.values())
    for load in ("azure-chat", "swap", "long-context"):
        steps = read_csv(out / f"lockstep-{load}.csv")
        found = json.loads((out / "lockstep.json").read_text())[load]
        assert found["plans_equal"]
        assert found["steps"] == len(steps) > 5
        assert found["noise_floor_mape"] == 0
        lines = (out / f"steps-{load}-1.jsonl").read_text().splitlines()
        assert len(lines) >= len(steps), "every step is on the disk"
    swapped = json.loads((out / "lockstep.json").read_text())["swap"]
    assert "swap" in swapped["regimes"]
    with tarfile.open(tmp_path / "cpu.tar.gz") as packed:
        assert {"cpu/rows.jsonl.gz", "cpu/profile-steps.json", "cpu/cases.json"} <= set(packed.getnames())
        assert {"cpu/fp8/rows.jsonl.gz", "cpu/profile-fp8-steps.json", "cpu/fp8-cases.json"} <= set(packed.getnames())
    measured = read_rows(out / "fp8" / "rows.jsonl.gz")
    assert (measured.dtype, measured.kv_dtype) == ("fp8", "fp8")
    products = json.loads((out / "fp8-products.json").read_text())
    assert len({row["kind"] for row in products}) == 4
    assert all(row["seconds"] > 0 for row in products)
    said = capsys.readouterr().err
    assert "h200" in said
    assert "at most" in said, "the plan is printed"
    before = {path: path.read_bytes() for path in out.glob("*.csv")}
    journal = (out / "journal.jsonl").read_bytes()
    assert campaign(tmp_path) == 0
    assert (out / "journal.jsonl").read_bytes() == journal, "nothing is done twice"
    assert {path: path.read_bytes() for path in out.glob("*.csv")} == before


class KilledError(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize(
    ("after", "parts"),
    [
        (1, "ceilings,cases"),
        (8, "ceilings,cases,latency"),
        pytest.param(22, "sweep,profile,lockstep", marks=pytest.mark.long),
    ],
)
def test_killed_anywhere_it_goes_on(
    after: int, parts: str, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is on the disk at that moment is neither lost nor measured again."""
    del quick
    kept = Journal.keep

    def dying(self: Journal, key: str, found: Mapping[str, Any]) -> None:
        kept(self, key, found)
        if len(self._found) == after:
            raise KilledError

    monkeypatch.setattr(Journal, "keep", dying)
    with pytest.raises(KilledError):
        campaign(tmp_path, "--parts", parts)
    path = tmp_path / "cpu" / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "cases: cut o')
    monkeypatch.setattr(Journal, "keep", kept)
    assert campaign(tmp_path, "--parts", parts) == 0
    assert path.read_bytes().startswith(whole)
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    keys = [entry["key"] for entry in found if "found" in entry and not entry["key"].endswith("canary")]
    assert len(keys) == len(set(keys))
    state = json.loads((tmp_path / "cpu" / "state.json").read_text())
    assert all(each["done"] for each in state.values())


def test_a_kernel_that_fails_costs_its_case_alone(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del quick
    real = speed.stand_in

    class TritonError(Exception):
        """No RuntimeError, as Triton's own are none."""

    def stand_in(case: Any, *more: Any) -> Any:
        if case.name.startswith("prefill 8k"):
            raise TritonError("out of resource: shared memory")
        return real(case, *more)

    monkeypatch.setattr(speed, "stand_in", stand_in)
    assert campaign(tmp_path, "--parts", "ceilings,cases,latency") == 0
    rows = json.loads((tmp_path / "cpu" / "cases.json").read_text())
    ours = {row["case"]: row for row in rows if row["kernel"] == "batchlab"}
    assert [name for name, row in ours.items() if row.get("failed")] == ["prefill 8k"]
    assert "TritonError: out of resource" in ours["prefill 8k"]["skipped"]
    assert ours["decode, skewed"]["seconds"] > 0


def test_a_part_that_breaks_does_not_cost_the_others(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del quick

    def broken(job: Job) -> None:
        raise RuntimeError("no")

    monkeypatch.setitem(PARTS, "ceilings", broken)
    assert campaign(tmp_path, "--parts", "ceilings,latency") == 1
    state = json.loads((tmp_path / "cpu" / "state.json").read_text())
    assert (state["ceilings"]["wrong"], state["latency"]["done"]) == ("RuntimeError: no", True)


def test_a_dead_device_starts_another_process(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del quick
    started: list[list[str]] = []

    def lost(job: Job) -> None:
        raise DeadDeviceError("illegal address")

    monkeypatch.setitem(PARTS, "latency", lost)
    monkeypatch.setattr("os.execv", lambda path, arguments: started.append(arguments))
    monkeypatch.setenv(run.RESTARTS, "0")
    campaign(tmp_path, "--parts", "latency")
    assert started[0][1:5] == ["-m", "tools.campaign", "--device", "cpu"]
    for _ in range(5):
        campaign(tmp_path, "--parts", "latency")
    assert len(started) == run.MOST_RESTARTS, "not for ever"


def test_an_error_lets_go_of_what_its_frames_hold() -> None:
    import weakref

    class Memory:
        """Stands for the device's."""

    seen: list[weakref.ref[Memory]] = []

    def deep() -> None:
        memory = Memory()
        seen.append(weakref.ref(memory))
        try:
            raise ValueError("inner")
        except ValueError as inner:
            raise RuntimeError("outer") from inner

    with pytest.raises(RuntimeError) as raised:
        deep()
    assert speed.said(raised.value) == "RuntimeError: outer"
    assert seen[0]() is None, "though the error itself is still there"


def test_what_ended_the_process_twice_is_left_out(tmp_path: Path) -> None:
    for _ in range(MOST_TRIES):
        journal = Journal(tmp_path / "journal.jsonl")
        assert journal.begin("cases: x")
    assert not Journal(tmp_path / "journal.jsonl").begin("cases: x")


def test_no_time_is_no_result(tmp_path: Path) -> None:
    section = Section(Journal(tmp_path / "journal.jsonl"), "cases", 0.0)
    job = Job("cpu", setting_of("cpu", {}), tmp_path, section, lambda text: None)
    assert job.once("x", lambda: {"seconds": 1.0}) is None
    assert section.all() == {}


def test_rows_of_two_devices_never_mix(quick: None, tmp_path: Path) -> None:
    del quick
    assert campaign(tmp_path, "--parts", "ceilings") == 0
    known = tmp_path / "cpu" / "fingerprint.json"
    known.write_text(known.read_text().replace("torch", "torch of another day"))
    before = (tmp_path / "cpu" / "journal.jsonl").read_bytes()
    assert campaign(tmp_path, "--parts", "ceilings") == 0
    assert (tmp_path / "cpu" / "journal.jsonl").read_bytes() == before
    assert (tmp_path / "cpu-2" / "ceilings.json").exists()


def test_it_goes_on_from_what_another_machine_left(quick: None, tmp_path: Path) -> None:
    del quick
    assert campaign(tmp_path / "one", "--parts", "ceilings") == 0
    assert campaign(tmp_path / "two", "--parts", "ceilings", "--from", str(tmp_path / "one")) == 0
    journals = [tmp_path / name / "cpu" / "journal.jsonl" for name in ("one", "two")]
    assert journals[0].read_bytes() == journals[1].read_bytes()


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA Next 9000", "nvidia-next-9000"),
    ],
)  # fmt: skip
def test_a_gpu_is_called_what_it_calls_itself(driver: str, name: str) -> None:
    assert name_of(driver) == name


def test_pages_fit_the_memory_that_is_there() -> None:
    """95 GB of pages are for an H200, and an H100 is never asked for them."""
    sizes = {}
    for driver, gib in (("NVIDIA H200", "139.8"), ("NVIDIA H100 80GB HBM3", "79.2")):
        setting = setting_of("cuda", {"device": driver, "memory_gib": gib})
        sizes[setting.name] = setting.kv.num_gpu_blocks * setting.kv.bytes_per_block / 2**30
        assert sizes[setting.name] + setting.model.weight_bytes() / 2**30 < 0.8 * float(gib)
    assert sizes["h200"] > 80 > 50 > sizes["h100"] > 30


def test_the_plan_keeps_within_nine_minutes() -> None:
    parts = plan()
    assert [part.name for part in parts] == list(PARTS)
    assert sum(part.budget_s for part in parts) <= TOTAL_S <= 540
    for part in parts:
        assert all(0 < seconds <= part.budget_s for seconds in part.expected_s.values()), part.name
    printed = table("h100")
    assert "the device here: h100" in printed
    assert len(printed.splitlines()) == len(parts) + 3


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--device", "cpu", "--out", "x", "--parts", "sweeep"]])
def test_bad_input_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(arguments) == 2
    assert ("--out DIR" in capsys.readouterr().err) == (len(arguments) == 2)
