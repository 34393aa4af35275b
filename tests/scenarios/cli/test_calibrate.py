import json
from pathlib import Path

from tests import calibration_maker as maker
from tests.command import batchlab


def test_from_tables_to_a_profile_that_runs(tmp_path: Path) -> None:
    source = maker.write_llmservingsim(tmp_path)
    done = batchlab("calibrate", "import", source, "--out", "rows.jsonl.gz", cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.out.startswith("rows: rows.jsonl.gz (")
    done = batchlab("calibrate", "fit", "rows.jsonl.gz", "--name", "mine", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "joint_attention    random" in done.out
    assert "profile: mine.json" in done.out
    checked = batchlab("calibrate", "check", "mine.json", cwd=tmp_path)
    assert checked.code == 0
    assert "mine: llama-3.1-8b on h200, tensor_parallel 1, vLLM 0.19.0" in checked.out
    (tmp_path / "s.yaml").write_text(
        "name: s\nmodel: llama-3.1-8b\nhardware: {gpu: h200}\ncost: {kind: profile, path: mine.json}\n"
        "workload:\n  requests: 20\n  classes:\n    - {name: a, arrival: {process: poisson, rate: 5},"
        " input: {dist: fixed, value: 100}, output: {dist: fixed, value: 20}}\n"
    )
    assert batchlab("run", "s.yaml", "--out", "o", "--quiet", cwd=tmp_path).code == 0


def test_check_takes_the_names_that_list_prints(tmp_path: Path) -> None:
    names = [line.split()[0] for line in batchlab("list", "profiles", cwd=tmp_path).out.splitlines()]
    assert names
    for name in names[:2]:
        done = batchlab("calibrate", "check", name, cwd=tmp_path)
        assert done.code == 0, done.err
        assert done.out.startswith(f"{name}: ")
    done = batchlab("calibrate", "check", names[0][:-1], cwd=tmp_path)
    assert done.code == 2
    assert f"did you mean {names[0]}?" in done.err
    (tmp_path / names[0]).write_text("{}")  # a file of that name is meant rather than the shipped profile
    assert batchlab("calibrate", "check", names[0], cwd=tmp_path).code == 2


def test_impossible_rows_are_listed(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"schema": "batchlab rows", "version": 1, "gpu": "h200", "model": "llama-3.1-8b"}\n'
        '{"kind": "gemm", "m": 8192, "n": 8192, "k": 8192, "us": 10}\n'
        '{"kind": "gemm", "m": 1, "n": 8192, "k": 8192, "us": 100}\n'
    )
    done = batchlab("calibrate", "import", "rows.jsonl", "--out", "o.jsonl", cwd=tmp_path)
    assert done.code == 0
    assert "1 of 2 rows of gemm are faster than the GPU can be" in done.err
    assert "(1 gemm)" in done.out


def test_a_step_log_of_tokens_and_contexts(tmp_path: Path) -> None:
    rows = [f"{t},{t * c},{3 + 0.01 * t + 1e-5 * t * c}" for t in (1, 50, 400) for c in (5, 100, 700, 3000)]
    (tmp_path / "log.csv").write_text("tokens,context,ms\n" + "\n".join(rows) + "\n")
    done = batchlab("calibrate", "fit", "--from-steps", "log.csv", cwd=tmp_path)
    assert done.code == 0
    assert done.out.startswith("cost: {kind: linear, base_s: 0.003")
    assert "held out: MAPE 0.0 %" in done.err


def test_bad_input_is_said_with_code_2(tmp_path: Path) -> None:
    assert batchlab("calibrate", "fit", cwd=tmp_path).code == 2
    assert batchlab("calibrate", "import", "nowhere", cwd=tmp_path).code == 2
    (tmp_path / "p.json").write_text(json.dumps({"schema": "batchlab profile", "version": 9}))
    done = batchlab("calibrate", "check", "p.json", cwd=tmp_path)
    assert done.code == 2
    assert "version 9" in done.err
