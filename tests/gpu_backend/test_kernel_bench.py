"""The kernel benchmark, rehearsed on the CPU from end to end, and the arithmetic of its verdicts."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")

from gpu_backend.attention.worklist import Tiling, tilings
from tools.kernel_bench import speed
from tools.kernel_bench.cases import Case, Pool, cases, decode
from tools.kernel_bench.rivals import RIVALS, NotHereError
from tools.kernel_bench.speed import Bench, Ceilings, Timing, measure, row, smooth_model, stand_in, verdicts


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two would wait for each other on a machine that others use."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LIMITS = Ceilings(copy_gb_s=4300, matmul_tflops=790, peak_gb_s=4800, peak_tflops=989)


def test_the_whole_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert speed.main(["--device", "cpu", "--out", str(tmp_path / "new"), "--sweep", "0.05"]) == 0
    report = json.loads((tmp_path / "new" / "kernel_bench.json").read_text(encoding="utf-8"))
    assert {
        "device",
        "date",
        "versions",
        "shape",
        "ceilings",
        "tilings",
        "cases",
        "latency",
        "verdicts",
        "sweep",
    } <= set(report)
    ours = {item["case"]: item for item in report["cases"] if item["kernel"] == "batchlab"}
    assert set(ours) == {case.name for case in cases(1)}
    assert all(item["error"] < 1e-6 and item["seconds"] > 0 for item in ours.values())
    rivals = [item for item in report["cases"] if item["kernel"] == "torch SDPA" and "error" in item]
    assert rivals
    assert all(item["error"] < 1e-5 for item in rivals)
    assert report["sweep"]
    printed = capsys.readouterr().out
    assert "nothing is judged" in printed
    assert "pass" not in printed


def test_no_gpu_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit) as stopped:
        speed.main(["--device", "cuda", "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_bytes_and_operations() -> None:
    case = decode("x", 8, 4096)
    assert case.kv_bytes == 8 * 4096 * 8 * 128 * 2 * 2 == 134_217_728
    assert case.bytes(2) == 134_217_728 + 8 * 32 * 128 * 2 * 2
    prefill = Case("y", (3,), (3,), "flops")
    assert prefill.flops == 4 * 32 * 128 * (1 + 2 + 3)
    assert Case("z", (5,), (2,), "flops").flops == 4 * 32 * 128 * (4 + 5)


def test_copies_share_no_page() -> None:
    pool = Pool.random(40, torch.device("cpu"), torch.float32)
    case = decode("x", 2, 100)
    assert pool.copies(case, 1 << 40) == 2
    tables = pool.tables(case, 2)
    used = [page for table in tables for page in table.ravel().tolist()]
    assert len(used) == len(set(used)) == 28
    with pytest.raises(ValueError, match="42 pages"):
        pool.tables(case, 3)


@pytest.mark.parametrize(
    ("case", "seconds", "share", "impossible"),
    [
        (decode("x", 64, 4096), 300e-6, 0.83, False),
        (decode("x", 64, 4096), 200e-6, 1.25, True),
        (Case("y", (8192,), (8192,), "flops"), 1.1e-3, 0.633, False),
        (Case("y", (8192,), (8192,), "flops"), 0.5e-3, 1.39, True),
    ],
)
def test_a_result_beyond_physics_is_flagged(case: Case, seconds: float, share: float, impossible: bool) -> None:
    found = row(case, "batchlab", Timing(seconds, 0.01, "graph"), LIMITS, 2)
    assert found["share"] == pytest.approx(share, rel=0.01)
    assert found["impossible"] is impossible
    assert ("IMPOSSIBLE" in speed.line(found)) is impossible


def test_a_step_in_latency_is_found() -> None:
    batches = list(range(1, 65))
    smooth = [20e-6 + 30e-6 * batch for batch in batches]
    a, b, ratios = smooth_model(batches, smooth)
    assert [a, b] == pytest.approx([20e-6, 30e-6])
    assert max(ratios) == pytest.approx(1)
    cliff = [seconds * (2 if 12 <= batch < 20 else 1) for batch, seconds in zip(batches, smooth, strict=True)]
    assert max(smooth_model(batches, cliff)[2]) > speed.SMOOTH


def test_verdicts_fail() -> None:
    fast = row(decode("decode", 64, 4096, 0.9), "batchlab", Timing(260e-6, 0, "graph"), LIMITS, 2) | {"error": 1e-3}
    slow = row(decode("slow", 64, 4096, 0.9), "batchlab", Timing(400e-6, 0, "graph"), LIMITS, 2) | {"error": 0.5}
    found = {item["what"]: item["pass"] for item in verdicts({"cases": [fast, slow], "latency": {"worst": 1.2}})}
    assert found == {
        "decode": True,
        "slow": False,
        "latency over batch at 32k": False,
        "error against float64": False,
        "beyond a physical limit": True,
    }


def test_a_wrong_error_is_not_a_pass() -> None:
    item = row(decode("decode", 64, 4096, 0.9), "batchlab", Timing(260e-6, 0, "graph"), LIMITS, 2) | {"error": math.nan}
    found = {item["what"]: item["pass"] for item in verdicts({"cases": [item], "latency": {"worst": 1.0}})}
    assert not found["error against float64"]


def test_rivals_say_why_they_stay_away() -> None:
    bench = Bench("cpu", torch.float32, 256)
    skewed = next(case for case in bench.cases if case.name == "decode, skewed")
    q = torch.randn(64, 32, 128)
    (table,) = bench.pool.tables(skewed, 1)
    for rival in RIVALS.values():
        with pytest.raises(NotHereError, match=r"differ|not installed|needs a CUDA device|left to our kernel"):
            rival(skewed, bench.pool, table, q)
    assert stand_in(skewed, bench.pool, table, q)().shape == q.shape


def test_chunks_by_gathered_prefixes_are_right() -> None:
    bench = Bench("cpu", torch.float32, 256)
    for case in bench.cases:
        if case.bound == "flops" and set(case.query) != {1}:
            found = speed.case_row(bench, LIMITS, case, "gathered")
            assert found["error"] < 1e-5, case.name


def test_the_winner_is_best_in_its_worst_case() -> None:
    choice = tilings(128, "bfloat16", 4)
    other, third = Tiling(16, 64, 512, 4, 7, 2), Tiling(16, 64, 256, 4, 7, 2)

    def measured(tiling: Tiling, seconds: tuple[float, ...], error: float = 1e-3) -> list[dict[str, Any]]:
        return [
            {"kernel": "decode", "case": str(at), "seconds": each, "error": error, "tiling": asdict(tiling)}
            for at, each in enumerate(seconds)
        ]

    rows = [*measured(choice.decode, (1.0, 1.0)), *measured(other, (0.9, 0.8)), *measured(third, (0.5, 1.1))]
    rows += measured(Tiling(16, 16, 512, 4, 9, 4), (0.1, 0.1), error=0.5)  # fast, and wrong
    rows += measured(Tiling(16, 16, 256, 4, 9, 4), (0.1,))  # it failed in the other case
    best = speed.winners(rows, choice)["decode"]
    assert best["tiling"] == asdict(other)
    assert best["gain"] == pytest.approx(1 / 0.9)


def test_calls_take_turns() -> None:
    order: list[int] = []
    calls = [lambda: order.append(1), lambda: order.append(2)]
    timing = measure(calls, torch.device("cpu"), repeats=3)
    assert order == [1, 2] * 4
    assert timing.seconds > 0
    assert timing.method == "host clock"


def test_the_kernels_themselves_interpreted() -> None:
    """The branch that a GPU takes, with the kernels interpreted."""
    pytest.importorskip("triton", reason="triton is not installed (pip install --no-deps triton)")
    from tests.gpu_backend.test_kernel import no_interpreter

    if reason := no_interpreter():
        pytest.skip(reason)
    script = (
        "import torch; from tools.kernel_bench.speed import Bench, stand_in\n"
        "bench = Bench('cpu', torch.float32, 256); assert bench.kernel is not stand_in\n"
        "names = ('decode B8 ctx 4k', 'prefill 8k', 'chunk 2k behind 8k')\n"
        "print(max(bench.error(case, bench.kernel) for case in bench.cases if case.name in names))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6
