"""The command line as a user meets it: what it prints, what it writes, how fast it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from scenarios.cli.app import app
from scenarios.profiles import shipped_profiles
from scenarios.schema.loader import load, shipped
from scenarios.schema.workload import PRESETS
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.policies import named_policies
from tests.command import ROOT, SMALL, batchlab, small, start, tree
from tests.shared_data import shared_for

RUN_FILES = {"scenario.yaml", "summary.json", "requests.csv.gz", "steps.csv.gz", "records.npz"}
VERBS = [
    "run",
    "compare",
    "bound",
    "sweep",
    "plan",
    "search",
    "bench-plan",
    "explain",
    "from",
    "serve",
    "validate",
    "lockstep",
    "parity",
    "report",
    "export",
    "list",
    "kv",
    "calibrate",
    "check",
    "trace",
    "new",
]


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


@pytest.mark.usefixtures("few_pictures")
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


def first_requests(name: str) -> str:
    """The override that leaves a scenario its first requests."""
    workload = load(name).model_dump(exclude_unset=True)["workload"]
    if "trace" in workload:
        return "workload.trace.limit=40"
    key, most = ("requests", 100) if "requests" in workload else ("duration_s", 20.0)
    return f"workload.{key}={min(workload[key], most)}"


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_run(tmp_path: Path, name: str, whole: bool) -> None:
    shared_for(name)
    less = [] if whole else ["--set", first_requests(name)]
    done = batchlab("run", name, *less, "--json", cwd=tmp_path)
    summary = json.loads(done.out)
    assert done.code == 0
    assert summary["completed"] > 0
    assert summary["unfinished"] == 0


# --------------------------------------------------------------------------------------------------------------- look


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("policies", named_policies()), ("scenarios", shipped()), ("models", tuple(MODELS)), ("gpus", tuple(GPUS)),
        ("profiles", tuple(shipped_profiles())), ("presets", tuple(PRESETS)),
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


# -------------------------------------------------------------------------------------------------------------- speed


def test_short_runs_show_no_progress(tmp_path: Path) -> None:
    done = batchlab("run", small(tmp_path), cwd=tmp_path)
    assert " left" not in done.err


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_run_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['batchlab', 'run', {str(small(tmp_path))!r}, '--quiet']\n"
        "from scenarios.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "heavy = {'pandas', 'matplotlib', 'scipy', 'torch', 'rich', 'reports.pages.run_report'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
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


@pytest.mark.parametrize(
    "words", [("run", "--help"), ("trace", "--help"), ("check", "policy", "--help"), ("new", "-h")]
)
def test_a_command_that_names_its_verb_is_that_of_all_verbs(words: tuple[str, ...]) -> None:
    """Only the verb that is named is built: what it says must not tell."""
    whole, alone = (CliRunner().invoke(line, words, prog_name="batchlab") for line in (app(), app(words)))
    assert alone.output == whole.output
    assert len(app(words).registered_commands + app(words).registered_groups) == 1
    assert alone.exit_code == whole.exit_code == 0


@pytest.mark.parametrize("words", [(), ("--help",), ("runn",), ("--install-completion",)])
def test_without_a_verb_all_are_there(words: tuple[str, ...]) -> None:
    assert len(app(words).registered_commands) > 10
    assert len(app(words).registered_groups) > 2
