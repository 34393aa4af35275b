"""A lockstep recorded on a real device, played back: verdict, report and exit codes, where torch is not installed too.

tests/data/lockstep holds it: the scenario, the profile that was measured and fitted for it, and the steps. To record it
anew: `calibrate measure --scenario`, `calibrate fit --from-steps` and `lockstep --profile`, each in that folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import scenarios
from reports.pages.lockstep_report import LockstepReport, lockstep_rows, write_lockstep
from scenarios.cli.lockstep import CANNOT_TELL, NOT_WITHIN
from scenarios.validate.lockstep_case import priced_elsewhere
from simulator.lockstep.step_errors import agreement, read_csv, write_csv
from tests.command import ROOT, Done, batchlab

DATA = Path(__file__).parents[2] / "data" / "lockstep"
RECORDED, SCENARIO, PROFILE = DATA / "lockstep.csv", DATA / "scenario.yaml", DATA / "profile.json"


def replay(folder: Path, *more: str | Path, profile: Path = PROFILE) -> Done:
    return batchlab("lockstep", SCENARIO, "--replay", RECORDED, "--profile", profile, "--out", "out", *more, cwd=folder)


def test_todays_plans_are_those_executed(tmp_path: Path) -> None:
    done = replay(tmp_path, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["plans_equal"]
    assert found["steps"] == 348
    assert found["verdict"] == "within"
    assert found["step_mape"] < found["noise_floor_mape"] < 0.06
    assert abs(found["drift"]) < 0.03
    assert list(found["regimes"]) == ["decode", "prefill", "mixed"]


def test_the_same_steps_make_the_same_bytes(tmp_path: Path) -> None:
    assert replay(tmp_path).code == 0
    first = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert replay(tmp_path).code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == first
    assert {"lockstep.csv", "lockstep.json", "report.html", "lockstep_scatter.png", "lockstep_drift.svg"} <= set(first)


def test_a_wrong_profile_is_told(tmp_path: Path) -> None:
    document = json.loads(PROFILE.read_text(encoding="utf-8"))
    document["attention"]["decode"]["physics"]["terms"]["keys"] *= 20
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(document), encoding="utf-8")
    done = replay(tmp_path, "--no-report", profile=wrong)
    assert done.code == NOT_WITHIN
    assert "plans equal" in done.out
    assert "Not within the limits: step MAPE" in done.out


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_profile_a_tenth_off_is_told(factor: float, tmp_path: Path) -> None:
    document = json.loads(PROFILE.read_text(encoding="utf-8"))
    for table in document["tables"].values():
        for curve in table.values():
            curve["us"] = [factor * us for us in curve["us"]]
            curve["us_beyond"] *= factor
    for part in ("decode", "prompt"):
        terms = document["attention"][part]["physics"]["terms"]
        terms.update({name: factor * us for name, us in terms.items()})
    (tmp_path / "off.json").write_text(json.dumps(document), encoding="utf-8")
    done = replay(tmp_path, "--no-report", "--json", profile=tmp_path / "off.json")
    assert done.code == NOT_WITHIN
    said = json.loads(done.out)["reasons"]
    assert any(reason.startswith("decode steps drift") for reason in said)
    assert any(reason.startswith("mixed steps drift") for reason in said)


def test_noise_is_no_verdict(tmp_path: Path) -> None:
    """The same steps, had their second execution been noisier: neither right nor wrong."""
    noisy = [
        replace(step, again_s=step.again_s * (1.3 if index % 2 else 0.78))
        for index, step in enumerate(read_csv(RECORDED))
    ]
    write_csv(tmp_path / "noisy.csv", noisy)
    command = ("lockstep", SCENARIO, "--replay", tmp_path / "noisy.csv", "--profile", PROFILE, "--no-report")
    done = batchlab(*command, "--out", "out", cwd=tmp_path)
    assert done.code == CANNOT_TELL
    assert "Cannot tell: two executions of the same steps differ by" in done.out


def test_another_policy_does_not_plan_the_same(tmp_path: Path) -> None:
    done = replay(tmp_path, "--set", "engine.policy=continuous", "--no-report", "--json")
    assert done.code == NOT_WITHIN
    assert not json.loads(done.out)["plans_equal"]


def test_recorded_steps_take_another_price(tmp_path: Path) -> None:
    """As a profile does that was fitted later: nothing is planned, so any scenario of the model will do."""
    done = replay(tmp_path, "--as-recorded", "--set", "workload.requests=1", "--no-report", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["steps"] == 348
    cost = "cost={kind: linear, base_s: 0.1, per_token_s: 0, per_context_token_s: 0}"
    done = batchlab(
        "lockstep", SCENARIO, "--replay", RECORDED, "--as-recorded", "--set", cost, "--no-report", "--out", "out",
        "--overwrite", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == NOT_WITHIN


def test_step_times_of_another_machine_are_called_so(tmp_path: Path) -> None:
    """Without a profile of the machine; the verdict then says how to measure one."""
    command = ("lockstep", SCENARIO, "--replay", RECORDED, "--no-report", "--out", "out")
    done = batchlab(*command, cwd=tmp_path)
    assert done.code == NOT_WITHIN
    assert "another machine's" in done.out
    assert f"batchlab calibrate measure --scenario {SCENARIO} --device cpu" in done.out
    shipped = priced_elsewhere(scenarios.load("lockstep-cpu"), "lockstep-cpu", "cpu")
    assert shipped is not None
    assert "`make lockstep`" in shipped
    profile = scenarios.load(SCENARIO, [f"cost={{kind: profile, path: {PROFILE}}}"])
    assert priced_elsewhere(profile, "x", "cpu") is None


def test_gpus_are_held_to_more(tmp_path: Path) -> None:
    done = replay(tmp_path, "--device", "cuda", "--no-report")
    assert done.code == NOT_WITHIN
    assert "beyond 2.0%" in done.out


NO_TORCH = (
    "import sys, importlib.abc\n"
    "class No(importlib.abc.MetaPathFinder):\n"
    "    def find_spec(self, name, path, target=None):\n"
    "        if name.partition('.')[0] in ('torch', 'triton'): raise ImportError(name)\n"
    "        return None\n"
    "import importlib.util\n"
    "real = importlib.util.find_spec\n"
    "importlib.util.find_spec = lambda name, *more: None if name == 'torch' else real(name, *more)\n"
    "sys.meta_path.insert(0, No())\n"
    "sys.argv = ['batchlab', *sys.argv[1:]]\n"
    "from scenarios.cli.app import main\n"
    "main()\n"
)


def without_torch(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command in an interpreter that finds no torch."""
    command = [sys.executable, "-c", NO_TORCH, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)


def test_a_replay_needs_no_torch(tmp_path: Path) -> None:
    done = without_torch(
        "lockstep", SCENARIO, "--replay", RECORDED, "--profile", PROFILE, "--out", "out", "--no-report", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["lockstep", "lockstep-cpu", "--device", "cpu"],
        ["calibrate", "measure", "--device", "cpu", "--model", "gpt2"],
    ],
)
def test_without_torch_there_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    done = without_torch(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.strip().splitlines()
    assert lines[0] == "error: the real backend needs torch, which is not installed"
    assert "pip install" in lines[1]
    assert len(lines) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_campaign_needs_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tools.campaign.run import main

    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    assert main(["--device", "cpu", "--out", str(tmp_path / "out")]) == 2
    assert "needs torch" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--clock", "wall"], "predicted"),
        (["--device", "gpu"], "cuda"),
        (["--profile", "none.json"], "no such file"),
        (["--replay", "none.csv"], "cannot be read"),
        (["--free-running", "--rates", "1,x"], "--rates"),
        (["--free-running", "--rates", "0"], "--rates"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = batchlab("lockstep", SCENARIO, *arguments, "--out", "out", cwd=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err


@pytest.mark.parametrize("name", ["lockstep-cpu", "ragged-gpt2"])
def test_shipped_scenarios_serve_everybody_and_say_how_they_are_executed(name: str) -> None:
    text = (ROOT / f"scenarios/library/{name}.yaml").read_text(encoding="utf-8")
    for part in ("# Shows ", "# Look at ", "# Try ", f"batchlab lockstep {name}"):
        assert part in text
    for policy in ("static", "chunked_prefill", "tgi", "vllm", "sglang"):
        found = scenarios.run(scenarios.load(name, [f"engine.policy={policy}"])).summary
        assert (found["rejected"], found["unfinished"]) == (0, 0)
    assert found["completed"] == (100 if name == "lockstep-cpu" else 6)


def test_the_report(tmp_path: Path) -> None:
    steps = read_csv(RECORDED)
    write_lockstep(tmp_path, LockstepReport("a & b", steps, {"device": "<x>"}, ["It is so."], "name: x\n", ["noted"]))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for part in ("a &amp; b", "&lt;x&gt;", "It is so.", "noted", "name: x", "mixed", "348 steps"):
        assert part in page
    assert page.count("<svg") == 3
    rows = lockstep_rows(agreement(steps)).body
    assert [row[0] for row in rows] == ["all", "decode", "prefill", "mixed"]
    assert rows[0][1] == "348"


def test_a_report_of_a_single_step(tmp_path: Path) -> None:
    write_lockstep(tmp_path, LockstepReport("one", read_csv(RECORDED)[:1], {}, []))
    assert "1 steps" in (tmp_path / "report.html").read_text(encoding="utf-8")
