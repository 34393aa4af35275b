"""The command line as a user meets it: what it prints, what it writes, how fast it starts."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
import yaml

from reports.build import ReportRun
from scenarios.profiles import shipped_profiles
from scenarios.runs.progress import BAR_EVERY_S, LINE_EVERY_S, Progress
from scenarios.schema.loader import shipped
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.policies import built_in_policies
from tests.command import ROOT, SMALL, START, batchlab, small, start, tree
from tests.shared_data import shared_for

RUN_FILES = {"scenario.yaml", "summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz"}
VERBS = ["run", "compare", "validate", "lockstep", "report", "list", "kv", "calibrate", "check", "trace", "new"]


def test_help_lists_the_verbs_that_exist(tmp_path: Path) -> None:
    done = batchlab("--help", cwd=tmp_path)
    commands = done.out.partition("Commands:\n")[2]
    assert [line.split()[0] for line in commands.splitlines()] == VERBS
    assert "..." not in commands, "every verb's line is whole"


@pytest.mark.parametrize(
    "verb",
    ["run", "compare", "report", "list", "kv", "check policy", "trace inspect", "trace sources", "new policy"],
)
def test_every_verb_explains_itself(tmp_path: Path, verb: str) -> None:
    done = batchlab(*verb.split(), "--help", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: batchlab {verb}")


# ---------------------------------------------------------------------------------------------------------------- run


def test_run_prints_a_table_and_writes_a_folder(tmp_path: Path) -> None:
    small(tmp_path)
    done = batchlab("run", "small.yaml", cwd=tmp_path)
    assert done.code == 0
    assert "chunked_prefill" in done.out
    assert done.out.endswith("\nrun folder: runs/small-chunked_prefill\n")
    assert set(tree(tmp_path / "runs/small-chunked_prefill")) == RUN_FILES
    assert "simulated 60 requests in" in done.err


def test_json_is_alone_on_stdout(tmp_path: Path) -> None:
    done = batchlab("run", small(tmp_path), "--json", "--out", "out", cwd=tmp_path)
    assert json.loads(done.out) == json.loads((tmp_path / "out/summary.json").read_text())
    assert json.loads(done.out)["completed"] == 60


def test_quiet_says_nothing_by_the_way(tmp_path: Path) -> None:
    done = batchlab("run", small(tmp_path), "--quiet", "--set", "hardware.num_gpu_blocks=41", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    loud = batchlab("run", small(tmp_path), "--set", "hardware.num_gpu_blocks=41", cwd=tmp_path)
    assert loud.out == done.out
    assert "warning: " in loud.err
    assert "were rejected" in loud.err


def test_equal_runs_are_equal_bytes_and_fast_forward_changes_none(tmp_path: Path) -> None:
    path = small(tmp_path)
    flags = [["--out", "a"], ["--out", "b"], ["--out", "c", "--no-fast-forward"]]
    outs = [batchlab("run", path, "--log-decisions", *more, cwd=tmp_path).out.splitlines() for more in flags]
    assert outs[0][:-1] == outs[1][:-1] == outs[2][:-1]
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == tree(tmp_path / "c")
    assert set(tree(tmp_path / "a")) == RUN_FILES | {"decisions.jsonl.gz"}


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    path = small(tmp_path)
    batchlab("run", path, "--out", "a", cwd=tmp_path)
    process = start("run", path, "--out", "b", cwd=tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_set_and_seed_change_the_scenario(tmp_path: Path) -> None:
    batchlab("run", small(tmp_path), "--set", "engine.max_num_seqs=3", "--set", "seed=5", "--seed", "9", cwd=tmp_path)
    target = tmp_path / "runs/small-chunked_prefill-max_num_seqs=3-seed=9"
    resolved = yaml.safe_load((target / "scenario.yaml").read_text())
    assert (resolved["engine"]["max_num_seqs"], resolved["seed"]) == (3, 9)


def test_the_folders_scenario_can_be_run_again(tmp_path: Path) -> None:
    batchlab("run", small(tmp_path), "--out", "a", "--set", "replicas=2", cwd=tmp_path)
    batchlab("run", "a/scenario.yaml", "--out", "b", cwd=tmp_path)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_run_with_report(tmp_path: Path) -> None:
    path = small(tmp_path)
    done = batchlab("run", path, "--report", "--out", "out", cwd=tmp_path)
    assert done.out.endswith("run folder: out\nreport: out/report.html\n")
    drawn = tree(tmp_path / "out")
    assert set(drawn) >= RUN_FILES | {"report.html"}
    assert any(name.startswith("plots/") and name.endswith(".png") for name in drawn)
    (tmp_path / "out/report.html").unlink()
    batchlab("report", "out", cwd=tmp_path)
    assert tree(tmp_path / "out") == drawn, "the same report from saved rows"
    batchlab("run", path, "--out", "out", cwd=tmp_path)
    assert tree(tmp_path / "out") == drawn, "the same run again takes nothing away"
    other = ["--set", "engine.max_num_seqs=3", "--out", "out"]
    assert batchlab("run", path, *other, cwd=tmp_path).code == 2
    assert tree(tmp_path / "out") == drawn
    assert batchlab("run", path, *other, "--overwrite", cwd=tmp_path).code == 0
    assert set(tree(tmp_path / "out")) == RUN_FILES, "an old report would belong to other numbers"


def test_a_table_by_class_where_there_are_several(tmp_path: Path) -> None:
    data = yaml.safe_load(SMALL)
    chat = data["workload"]["classes"][0]
    data["workload"]["classes"] = [chat, {**chat, "name": "nightly", "priority": 5}]
    done = batchlab("run", small(tmp_path, yaml.safe_dump(data)), cwd=tmp_path)
    lines = done.out.partition("By class\n")[2].splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["class", "chat", "nightly"]


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_run(tmp_path: Path, name: str) -> None:
    shared_for(name)
    done = batchlab("run", name, "--json", cwd=tmp_path)
    summary = json.loads(done.out)
    assert done.code == 0
    assert summary["completed"] > 0
    assert summary["unfinished"] == 0


# ------------------------------------------------------------------------------------------------------------ compare


def test_compare_writes_everything_and_report_draws_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path)
    flags = ["--policies", "static, chunked_prefill", "--seeds", "2", "--set", "engine.order=priority"]
    folder = "runs/small-compare-static+chunked_prefill-seeds=2-order=priority"
    done = batchlab("compare", path, *flags, cwd=tmp_path)
    assert done.code == 0
    assert done.out.endswith(f"\nrun folders: {folder}\nreport: {folder}/report.html\n")
    assert "2 seeds" in done.out
    assert "note: --set engine.order is applied to chunked_prefill alone: static does not take order" in done.err
    target = tmp_path / folder
    for run in ("static/seed-7", "static/seed-8", "chunked_prefill/seed-7", "chunked_prefill/seed-8"):
        assert set(tree(target / run)) == RUN_FILES
    assert (target / "report.html").stat().st_size > 10_000
    assert yaml.safe_load((target / "scenario.yaml").read_text())["engine"]["policy"] == "chunked_prefill"

    again = batchlab("compare", path, *flags, "--out", "again", cwd=tmp_path)
    assert again.out.replace("again", folder) == done.out
    before = tree(target)
    assert tree(tmp_path / "again") == before

    path.unlink()
    monkeypatch.setattr("scenarios.runs.runner.simulate", None)  # nothing is simulated
    (target / "report.html").unlink()
    drawn = batchlab("report", target.relative_to(tmp_path), cwd=tmp_path)
    assert drawn.out == done.out.replace(f"run folders: {folder}\n", "")
    assert tree(target) == before


def test_compare_json_is_summaries_with_intervals(tmp_path: Path) -> None:
    done = batchlab(
        "compare", small(tmp_path), "--policies", "static,continuous", "--seeds", "3", "--json", "--no-report",
        cwd=tmp_path,
    )  # fmt: skip
    folder = tmp_path / "runs/small-compare-static+continuous-seeds=3"
    found = json.loads(done.out)
    assert list(found) == ["static", "continuous"]
    assert found == json.loads((folder / "compare.json").read_text())
    low, high = found["static"]["intervals"]["p99_ttft_ms"]
    assert low < found["static"]["p99_ttft_ms"] < high
    assert found["static"]["completed"] == 60
    assert not (folder / "report.html").exists()
    single = json.loads((folder / "static/seed-7/summary.json").read_text())
    assert single.keys() <= found["static"].keys()


def test_compare_several_settings_of_one_policy(tmp_path: Path) -> None:
    policies = "chunked_prefill,static,chunked_prefill:max_num_batched_tokens=64"
    done = batchlab("compare", small(tmp_path), "--policies", policies, "--json", "--no-report", cwd=tmp_path)
    found = json.loads(done.out)
    plain, other = (f"chunked_prefill max_num_batched_tokens={value}" for value in (256, 64))
    assert list(found) == [other, plain, "static"]
    assert found[other]["runs"] == ["chunked_prefill-max_num_batched_tokens=64/seed-7"]
    folder = "runs/small-compare-" + "+".join(each["runs"][0].split("/")[0] for each in found.values())
    assert (tmp_path / folder / found[plain]["runs"][0] / "summary.json").is_file()
    again = batchlab("report", folder, cwd=tmp_path)
    assert f"\n{other} " in again.out
    bad = batchlab("compare", "small.yaml", "--policies", "static:max_num_seq=3", cwd=tmp_path)
    assert bad.code == 2
    assert "--policies: static:max_num_seq=3: static does not take max_num_seq" in bad.err
    assert "did you mean `max_num_seqs`?" in bad.err


# ------------------------------------------------------------------------------------------------------------- report


def test_report_over_several_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(folder: Path, runs: Sequence[ReportRun], notes: Sequence[str], *, paired: bool) -> None:
        assert paired, "the same requests and SLO"
        text = "\n".join([*(f"{run.label}: {len(run.summaries)}" for run in runs), *notes])
        (folder / "report.html").write_text(text)

    monkeypatch.setattr("reports.build.write_report", draw)
    path = small(tmp_path)
    batchlab("run", path, "--out", "a", cwd=tmp_path)
    batchlab("run", path, "--out", "b", "--set", "engine.max_num_seqs=2", cwd=tmp_path)
    batchlab("compare", path, "--policies", "static", "--seeds", "2", "--no-report", "--out", "c", cwd=tmp_path)
    done = batchlab("report", "a", "b", "c", "a", cwd=tmp_path)
    assert done.code == 0
    assert done.out.endswith("report: runs/report-a+b+c/report.html\n")
    labels = ["chunked_prefill max_num_seqs=2", "chunked_prefill max_num_seqs=8", "static"]
    assert all(f"\n{label} " in done.out for label in labels)
    assert "different numbers of seeds" in done.err
    page = (tmp_path / "runs/report-a+b+c/report.html").read_text().splitlines()
    assert page[:3] == [f"{label}: 1" for label in labels]
    assert "different numbers of seeds" in page[3]
    again = batchlab("report", "b", "a", cwd=tmp_path)
    assert again.code == 0, "an earlier report of others is no obstacle"
    assert (tmp_path / "runs/report-b+a/report.html").exists()
    assert again.out.index("\nmax_num_seqs=2 ") < again.out.index("\nmax_num_seqs=8 "), "in the order of the values"
    assert "step costs" not in again.err
    cost = "cost={kind: linear, base_s: 0.01, per_token_s: 2.0e-5, per_context_token_s: 0}"
    batchlab("run", path, "--out", "e", "--set", cost, cwd=tmp_path)
    assert "step costs" not in batchlab("report", "a", "e", cwd=tmp_path).err, "of one kind"
    batchlab("run", path, "--out", "f", "--set", "cost={kind: roofline}", cwd=tmp_path)
    mixed = batchlab("report", "a", "f", cwd=tmp_path)
    assert "warning: the runs have different step costs (linear, roofline)" in mixed.err
    assert "\ncost.kind=linear " in mixed.out
    shutil.copytree(tmp_path / "a", tmp_path / "d")
    same = batchlab("report", "a", "d", cwd=tmp_path).out
    assert all(f"\nchunked_prefill ({folder}) " in same for folder in "ad")


# --------------------------------------------------------------------------------------------------------------- look


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("policies", built_in_policies()), ("scenarios", shipped()), ("models", tuple(MODELS)), ("gpus", tuple(GPUS)),
        ("profiles", tuple(shipped_profiles())),
    ],
)  # fmt: skip
def test_list_has_a_line_for_each(tmp_path: Path, what: str, names: tuple[str, ...]) -> None:
    done = batchlab("list", what, cwd=tmp_path)
    lines = done.out.splitlines()
    assert [line.split()[0] for line in lines[: len(names)]] == list(names)
    assert all(len(line.split()) > 2 for line in lines), "a name, and what to know of it"


def test_kv_does_the_arithmetic(tmp_path: Path) -> None:
    done = batchlab("kv", "--model", "llama-3.1-8b", "--gpu", "h200", "--context", "4096", "--json", cwd=tmp_path)
    found = json.loads(done.out)
    assert found["kv_bytes_per_token"] == 128 * 1024
    assert found["requests_that_fit"]["4096"] == (found["num_gpu_blocks"] - 1) // (4096 // 16)
    table = batchlab("kv", "--model", "llama-3.1-8b", "--gpu", "h200", "--tensor-parallel", "2", cwd=tmp_path)
    assert "2 x h200" in table.out


def test_trace_inspect_says_what_a_trace_holds(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_time_s,input_tokens,output_tokens\n0,5,6\n1,7,8\n2,x,9\n")
    done = batchlab("trace", "inspect", trace, cwd=tmp_path)
    assert "trace.csv: native, 2 requests out of 3 rows" in done.out
    assert json.loads(batchlab("trace", "inspect", trace, "--json", cwd=tmp_path).out)["requests"] == 2


# ---------------------------------------------------------------------------------------------------------------- new


def test_a_new_policy_runs_as_it_is(tmp_path: Path) -> None:
    done = batchlab("new", "policy", "mine", cwd=tmp_path)
    said = done.out.splitlines()[1].split()
    assert said[:3] == ["batchlab", "run", "quickstart"]
    assert said[-1] == "engine.policy=./mine.py:ShortestPrompt"
    small(tmp_path)
    run = batchlab("run", "small.yaml", "--json", *said[3:], cwd=tmp_path)
    assert json.loads(run.out)["completed"] == 60
    assert "my_policy" not in (tmp_path / "mine.py").read_text()


def test_the_new_policy_serves_short_prompts_first(tmp_path: Path) -> None:
    """Under load, the shorter half waits less than under first come, first served."""
    import scenarios

    batchlab("new", "policy", "mine", cwd=tmp_path)
    load = ["workload.requests=300", "workload.classes.0.arrival.rate=60"]
    waits = {}
    for policy in ("chunked_prefill", f"{tmp_path}/mine.py:ShortestPrompt"):
        requests = scenarios.run(scenarios.load(small(tmp_path), [*load, f"engine.policy={policy}"])).requests
        short = requests["input_tokens"] < requests["input_tokens"].median()
        waits[policy] = requests["queue_time_ms"][short].mean()
    fcfs, shortest = waits.values()
    assert shortest < 0.5 * fcfs


def test_a_new_scenario_runs_as_it_is(tmp_path: Path) -> None:
    assert batchlab("new", "scenario", "my-own", cwd=tmp_path).code == 0
    done = batchlab("run", "my-own.yaml", cwd=tmp_path)
    assert done.code == 0
    assert (tmp_path / "runs/my-own-chunked_prefill/summary.json").exists()


def test_the_new_scenario_shows_defaults(tmp_path: Path) -> None:
    """What the template's text says that a key left out holds is what it holds."""
    import scenarios

    batchlab("new", "scenario", "mine", cwd=tmp_path)
    data = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    bare = scenarios.load({"name": "mine", "workload": data["workload"]})
    whole = scenarios.load(tmp_path / "mine.yaml")
    assert {**whole.resolved(), "slo": None} == bare.resolved()


# ----------------------------------------------------------------------------------------------------------- progress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def watch(monkeypatch: pytest.MonkeyPatch, stream: StringIO) -> list[str]:
    """What a simulation of 10 s and 1,000 requests shows."""
    ticks = 0
    monkeypatch.setattr(time, "monotonic", lambda: ticks / 8)
    progress = Progress("static", 1000, stream=stream)
    for ticks in range(80):
        progress(ticks * 12 + 40)
    progress.close()
    return stream.getvalue().split("\r" if stream.isatty() else "\n")


def test_progress_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = watch(monkeypatch, StringIO())
    assert lines == [
        "static: 232 of 1,000 requests, 23%, 7 s left",
        "static: 712 of 1,000 requests, 71%, 3 s left",
        "",
    ]
    assert LINE_EVERY_S == 5


def test_progress_is_a_bar_on_a_terminal_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watch(monkeypatch, Terminal())
    assert shown[1].startswith("[######........................] static: 232 of 1,000")
    assert len(shown) > 8 / BAR_EVERY_S / 2
    assert shown[-2].strip() == ""
    assert shown[-1] == ""


def test_a_bar_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    shown = watch(monkeypatch, Terminal())
    assert max(map(len, shown)) == 49


def test_short_runs_show_no_progress(tmp_path: Path) -> None:
    done = batchlab("run", small(tmp_path), cwd=tmp_path)
    assert " left" not in done.err


# -------------------------------------------------------------------------------------------------------------- speed


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def cpu_seconds(*arguments: str, cwd: Path) -> float:
    """CPU seconds of the command as a process of its own, the least of three."""
    found = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*START, *arguments], cwd=cwd, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)


def test_help_is_there_at_once(tmp_path: Path) -> None:
    assert cpu_seconds("--help", cwd=tmp_path) < 0.3


def test_a_thousand_requests_as_a_whole_process(tmp_path: Path) -> None:
    assert cpu_seconds("run", "quickstart", "--set", "workload.requests=1000", "--quiet", cwd=tmp_path) < 1.2


def test_run_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['batchlab', 'run', {str(small(tmp_path))!r}, '--quiet']\n"
        "from scenarios.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print(sorted({'pandas', 'matplotlib', 'scipy', 'torch', 'rich', 'reports.build'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    process = start("list", "models", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=30)
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.returncode == 0
