"""Bad input through the command itself: exit code 2, a message that helps, no traceback, nothing half-written."""

import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.command import SMALL, START, Done, batchlab, small, start, tree

TRACE = "arrival_time_s,input_tokens,output_tokens\n"
POLICY = """\
    from dataclasses import dataclass
    from simulator.plan import StepPlan

    @dataclass(frozen=True, slots=True)
    class Mine:
        max_num_seqs: int = 4
        max_num_batched_tokens: int = 64

        def plan(self, view):
            return BODY
"""
REPLACE = {
    "tiny": ("num_gpu_blocks: 400", "num_gpu_blocks: 2"),
    "typo": ("max_num_seqs", "max_num_seq"),
    "ignored": ("max_num_seqs: 8", "stream: false"),
    "huge": ("gpu: a100-80gb, num_gpu_blocks: 400", "gpu: l4, gpu_memory_utilization: 0.3"),
}

# what is typed: what must be said
CASES: dict[str, list[str]] = {
    # the scenario
    "run quikstart": ["did you mean `quickstart`?", "shipped scenarios: "],
    "run smal.yaml": ["no such file", "small.yaml"],
    "run .": ["is a folder"],
    "run typo.yaml": ["typo.yaml:13:35: engine.max_num_seq: unknown key", "did you mean `max_num_seqs`?"],
    "run huge.yaml": ["huge.yaml:4:1: hardware", "llama-3.1-8b needs", "tensor_parallel >= "],
    "run tiny.yaml": ["none of the 60 requests can be served", "the KV cache holds 16 tokens"],
    # --set and --seed
    "run small.yaml --set engine.max_num_seq=4": ["--set engine.max_num_seq=4", "did you mean `max_num_seqs`?"],
    "run small.yaml --set engine.max_num_seqs": ["--set", "engine.max_num_seqs=VALUE"],
    "run small.yaml --set engine.max_num_seqs 64": [
        "engine.max_num_seqs has no value",
        "--set engine.max_num_seqs=VALUE",
    ],
    "run small.yaml --set engine.max_num_seqs=many": ["whole number", "'many'"],
    "run small.yaml --seed -1": ["seed", "-1"],
    "run small.yaml --seed x": ["--seed"],
    "run quickstart --set cost.kind=profile --set cost.path=h200-llama-3.1-8b": ["cost.name=h200-llama-3.1-8b"],
    # the policy
    "run small.yaml --set engine.policy=statc": ["unknown policy 'statc'", "did you mean `static`?"],
    "run ignored.yaml": ["ignored.yaml:13:35: engine.stream", "chunked_prefill does not use this key", "it takes: "],
    "run small.yaml --set engine.policy=./my.py:Mine": ["no such file", "my.py"],
    "run small.yaml --set engine.policy=./zero.py:Min": ["zero.py", "no class 'Min'", "did you mean Mine?"],
    "run small.yaml --set engine.policy=./zero.py:Other": ["no class 'Other'", "classes there: Mine"],
    "run small.yaml --set engine.policy=./syntax.py:Mine": ["syntax.py:10", "SyntaxError"],
    "run small.yaml --set engine.policy=./zero.py:Mine": ["zero.py:10: ZeroDivisionError"],
    "run small.yaml --set engine.policy=./rest.py:Mine --set engine.patience=3": ["engine.patience", "max_num_seqs"],
    # the trace
    "run small.yaml --set workload.trace.path=a.csv": ["workload"],
    "run none.yaml": ["none.yaml", "nowhere.csv"],
    "run empty.yaml": ["empty.csv"],
    "run zero.yaml": ["zero.csv"],
    "trace inspect nowhere.csv": ["nowhere.csv", "no such file"],
    "trace inspect small.yaml": ["small.yaml", "unknown trace format"],
    "trace inspect empty.csv": ["empty.csv"],
    "trace inspect good.csv --format azur": ["unknown trace format 'azur'", "did you mean azure?"],
    "trace inspect good.csv --time-unit h": ["'h' is not a unit of time", "s, ms, us, ns"],
    # the folder
    "run small.yaml --out small.yaml": ["cannot write to the folder small.yaml", "it is a file", "--out"],
    "run small.yaml --out small.yaml/deep": ["cannot write to the folder small.yaml/deep"],
    "run small.yaml --out .": ["not empty and holds no earlier run", "--out"],
    "compare small.yaml --policies static --out small.yaml/deep": ["cannot write to the folder"],
    # compare
    "compare small.yaml --policies ,": ["--policies", "no policy to compare"],
    "compare small.yaml --policies static,statc": ["--policies", "did you mean `static`?"],
    "compare small.yaml --policies static,static": ["named twice"],
    "compare small.yaml --policies static --seeds 0": ["--seeds"],
    "compare small.yaml --policies static(max_num_seqs=3)": ["parted by commas, settings by colons", "as in: "],
    "compare small.yaml --policies static,./zero.py:Mine": ["zero.py:10: ZeroDivisionError"],
    "compare tiny.yaml --policies static,continuous": ["none of the 60 requests can be served"],
    # the other verbs
    "kv --model llama-3.1-8 --gpu h200": ["unknown model 'llama-3.1-8'", "did you mean llama-3.1-8b?"],
    "kv --model llama-3.1-8b --gpu h20o": ["unknown gpu 'h20o'"],
    "kv --model llama-3.1-8b --gpu h200 --tensor-parallel 3": ["tensor_parallel"],
    "kv --model gpt2 --gpu h200 --context 4096": ["context 4096", "1024"],
    "kv --model llama-3.1-8b --gpu h200 --gpu-memory-utilization 9": ["gpu_memory_utilization"],
    "kv --model llama-3.1-8b --gpu h200 --context 1e9": ["--context", "write 1000000000"],
    "kv --model llama-3.1-8b --gpu h200 --context 0": ["--context", "whole number of 1 or more"],
    "list modells": ["modells", "models"],
    "report .": ["not a run folder of batchlab", "batchlab run"],
    "report ./small.yaml": ["small.yaml is a file, not the folder of a run"],
    "report nowhere": ["no such folder: nowhere", "batchlab run"],
    "report run/folder": ["no such folder: run/folder"],
    "new policy a-b": ["'a-b' cannot name a policy file"],
    "new policy zero": ["zero.py exists already"],
    "new scenario small": ["small.yaml exists already"],
    "new scenario ../x/y": ["cannot name a scenario"],
    "new policy other --out nowhere": ["cannot write nowhere/other.py"],
    # the command
    "runn": ["No such command 'runn'", "run"],
    "run small.yaml --sed 1": ["No such option", "--seed"],
    "run small.yaml --polices static": ["No such option", "`batchlab compare` has --policies"],
    "run": ["SCENARIO"],
    "sweep small.yaml --vary engine.max_num_seqs=1:64": ["a range has three parts", "=1:64:7"],
    "sweep small.yaml --vary engine.max_num_seqs=4,abc": ["--vary engine.max_num_seqs=abc", "whole number", "'abc'"],
    "plan small.yaml --slo p99_ttft_ms<=1000ms": ["a bare number, without 'ms'", "write p99_ttft_ms<=1000"],
    "search small.yaml --objective p99_ttft": ["unknown metric 'p99_ttft'", "did you mean `p99_ttft_ms`?"],
    "sweep small.yaml": ["small.yaml is a scenario: nothing varies", "--vary KEY=VALUES"],
}


def prepare(folder: Path) -> None:
    small(folder)
    for name, (old, new) in REPLACE.items():
        assert old in SMALL
        (folder / f"{name}.yaml").write_text(SMALL.replace(old, new))
    for name, body in {"zero": "1 / 0", "syntax": "return", "rest": "StepPlan()"}.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(POLICY).replace("BODY", body))
    for name, rows in {"empty": "", "zero": "0,5,0\n1,0,5\n", "good": "0,5,6\n1,7,8\n"}.items():
        (folder / f"{name}.csv").write_text(TRACE + rows)
    for name, trace in {"none": "nowhere.csv", "empty": "empty.csv", "zero": "zero.csv"}.items():
        (folder / f"{name}.yaml").write_text(f"workload: {{trace: {{path: {trace}}}}}\n")


def check(done: Done, said: list[str]) -> None:
    assert done.code == 2, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "defect" not in done.err
    for words in said:
        assert words in done.err, done.err


@pytest.mark.parametrize("typed", CASES)
def test_bad_input(tmp_path: Path, typed: str) -> None:
    prepare(tmp_path)
    before = tree(tmp_path)
    check(batchlab(*typed.split(), cwd=tmp_path), CASES[typed])
    assert tree(tmp_path) == before


def test_the_cases_are_bad_for_one_reason_each(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert batchlab("run", "small.yaml", cwd=tmp_path).code == 0
    assert batchlab("trace", "inspect", "good.csv", cwd=tmp_path).code == 0
    assert batchlab("new", "policy", "other", cwd=tmp_path).code == 0


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    process = start("run", "quikstart", cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    check(Done(process.returncode, out, err), ["did you mean `quickstart`?"])
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("spoilt", ["summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz", "scenario.yaml"])
def test_report_on_a_spoilt_folder(tmp_path: Path, spoilt: str) -> None:
    batchlab("run", small(tmp_path), "--out", "run", cwd=tmp_path)
    (tmp_path / "run" / spoilt).write_bytes(b"\x1f\x8b{[")
    before = tree(tmp_path)
    check(batchlab("report", "run", cwd=tmp_path), [spoilt])
    assert tree(tmp_path) == before


def test_an_unwritable_folder_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    monkeypatch.setattr("scenarios.runs.runner.simulate_fleet", None)  # would be a defect
    for verb in (["run"], ["compare", "--policies", "static"]):
        done = batchlab(*verb, "small.yaml", "--out", "good.csv/out", cwd=tmp_path)
        check(done, ["cannot write to the folder good.csv/out"])


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "what",
    ["scenarios.runs.storage.run_folder.write_parts", "scenarios.runs.storage.run_folder.npy.write_array_header_1_0"],
)
@pytest.mark.parametrize("verb", [["run"], ["compare", "--policies", "static,continuous"]])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, verb: list[str]) -> None:
    small(tmp_path)
    before = tree(tmp_path)
    monkeypatch.setattr(what, full)
    done = batchlab(*verb, "small.yaml", cwd=tmp_path)
    assert done.out == ""
    target = "runs/small-compare-static+continuous" if verb[0] == "compare" else "runs/small-chunked_prefill"
    check(done, [f"cannot write to the folder {target}: No space left on device"])
    assert tree(tmp_path) == before


# -------------------------------------------------------------------------------------------------------- interruption


@pytest.mark.parametrize(
    ("stop", "code", "earlier"), [(signal.SIGINT, 130, False), (signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)]
)
def test_stopped_in_the_middle_of_a_run(tmp_path: Path, stop: signal.Signals, code: int, earlier: bool) -> None:
    small(tmp_path)
    if earlier:
        batchlab("run", "small.yaml", "--out", "runs/out", cwd=tmp_path)
    before = tree(tmp_path)
    long = ["--set", "workload.requests=200000", "--no-fast-forward", "--out", "runs/out", "--overwrite"]
    process = start("run", "small.yaml", *long, cwd=tmp_path)
    wait_for_partial(tmp_path, process)
    time.sleep(0.3)
    process.send_signal(stop)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert err == ("interrupted\n" if stop is signal.SIGINT else "")
    assert "Traceback" not in err
    assert tree(tmp_path) == before


def wait_for_partial(folder: Path, process: Any) -> None:
    """Until the run has begun: it has made the folder in which it will write."""
    until = time.monotonic() + 60
    while not list(folder.glob("runs/*/.partial-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    "where", ["scenarios.runs.storage.run_folder.npy.write_array_header_1_0", "reports.pages.run_report.write_report"]
)
def test_ctrl_c_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    small(tmp_path)
    before = tree(tmp_path)
    monkeypatch.setattr(where, pressed)
    done = batchlab("compare", "small.yaml", "--policies", "static", cwd=tmp_path)
    assert (done.code, done.out) == (130, "")
    assert tree(tmp_path) == before


# ------------------------------------------------------------------------------------------------------------- defects


def test_a_defect_of_ours_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(tmp_path)
    before = tree(tmp_path)
    monkeypatch.setattr("scenarios.runs.runner.summarize", None)
    done = batchlab("run", "small.yaml", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    lines = done.err.splitlines()
    assert "this is a defect of batchlab, please report it: TypeError: 'NoneType' object is not callable" in lines
    assert "Traceback (most recent call last):" in lines
    assert tree(tmp_path) == before


def test_a_result_of_a_run_is_no_scenario(tmp_path: Path) -> None:
    small(tmp_path)
    assert batchlab("run", "small.yaml", "--out", "out", cwd=tmp_path).code == 0
    check(batchlab("run", "out/summary.json", cwd=tmp_path), ["a result of a run", "its scenario is out/scenario.yaml"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_no_defect(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*START, "list", "gpus"], stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: cannot write stdout: No space left on device\n"
