"""What engines measure of themselves: files that their own code wrote (tests/data/engines/README.md)."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from calibration.own_steps import (
    AskedBatch,
    Belief,
    ask,
    believe,
    candidates,
    fit_own_steps,
    grid,
    noise_of,
    scope_of,
    table_of,
    width,
)
from calibration.rows import KernelRows, merge, write_rows
from calibration.sources import detect, read_source
from scenarios.profiles import shipped_profiles
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS
from simulator.hardware.models import MODELS
from simulator.timing.cost import StepShape
from simulator.timing.profile import Options, ProfileCost, load_profile, read_profile
from tests.command import batchlab, small

DATA = Path(__file__).parents[1] / "data/engines"
FORWARD, LOG, PASSES, SCRAPES = (
    DATA / name
    for name in ("bench_forward.json.gz", "iterations.log.gz", "forward_pass_metrics.jsonl.gz", "scrapes.txt.gz")
)
SWEEP = DATA / "sweep"
MODEL, GPU = "llama-3.1-8b", "h100"
FULL = 300_000.0  # KV tokens that the GPU holds


def price(shape: StepShape) -> float:
    """Seconds of a step of some GPU: launches, weights or operations, keys, pairs."""
    work = max(6.0, 0.022 * shape.tokens)
    rows = 0.003 * (shape.decode_seqs + shape.prefill_seqs)
    return 1e-3 * (1.0 + work + rows + 4e-5 * shape.context + 4e-7 * shape.prefill_pairs)


def read(path: Path) -> KernelRows:
    return read_source(path, "auto", MODEL, GPU)


@pytest.fixture(scope="module")
def belief() -> Belief:
    kernels = ProfileCost(read_profile(shipped_profiles()["h100-llama-3.1-8b"]), Options(0.0, 0.0, cuda_graphs=False))
    return believe(kernels.step_s, 0.15, 8192, FULL)


@pytest.mark.parametrize(
    ("path", "name", "scope", "rows"),
    [
        (FORWARD, "vllm-forward", "kernels", 17),
        (LOG, "vllm-iterations", "whole", 104),
        (PASSES, "sglang-passes", "device", 60),
        (SCRAPES, "vllm-metrics", "whole", 6),
        (SWEEP, "vllm-serve", "whole", 5),
    ],
)
def test_a_file_is_known_by_what_it_holds(path: Path, name: str, scope: str, rows: int) -> None:
    assert detect(path) == name
    found = read(path)
    assert scope_of(found) == scope
    assert found.count() == rows
    table = found.table("step")
    assert (table["us"] > 5e3).all()
    assert (table["us"] < 1.5e6).all()
    assert (table["decode_context"] >= table["decode_seqs"] - 1e-9).all()
    assert (table["prefill_context"] >= table["prefill_tokens"] - 1e-9).all()


def test_a_case_of_the_bench_is_its_requests() -> None:
    case = json.loads(gzip.decompress(FORWARD.read_bytes()))[14]
    assert case["case"] == "mix"
    table = {name: values[14] for name, values in read(FORWARD).table("step").items()}
    decodes = [each["kv_len"] for each in case["requests"] if each["query_len"] == 1]
    assert table["decode_seqs"] == 32
    assert table["decode_context"] == sum(decodes)
    assert table["decode_longest"] == max(decodes)
    assert (table["prefill_seqs"], table["prefill_tokens"]) == (1, 2048)
    assert table["prefill_pairs"] == 2048 * 2049 / 2
    assert table["us"] == case["median_us"]


def test_rows_that_were_imported_keep_what_their_times_hold(tmp_path: Path) -> None:
    write_rows(read(FORWARD), tmp_path / "rows.jsonl.gz")
    again = read(tmp_path / "rows.jsonl.gz")
    assert (scope_of(again), noise_of(again), again.is_padded) == ("kernels", 0.01, False)


def test_scrapes_are_held_apart() -> None:
    found = read(SCRAPES).table("step")["decode_seqs"]
    assert np.all(np.diff(found) > 0)  # each load had more users than the one before
    assert found[-1] == pytest.approx(48, abs=6)  # of 60, some of which wait or prefill


@pytest.mark.parametrize(("path", "most"), [(FORWARD, 5.0), (LOG, 8.0), (PASSES, 3.0), (SCRAPES, 15.0)])
def test_a_profile_is_nearer_to_steps_that_it_has_not_seen_than_the_tables(
    path: Path, most: float, belief: Belief
) -> None:
    fitted = fit_own_steps(read(path), belief, MODELS[MODEL], GPUS[GPU], "mine")
    assert fitted.held_out["mape"] < most
    assert fitted.held_out["mape"] < 0.6 * fitted.before["mape"]
    own = fitted.document["own_steps"]
    assert isinstance(own, dict)
    assert own["log_ratio"] == sorted(own["log_ratio"])
    cost = ProfileCost(load_profile(json.loads(json.dumps(fitted.document))), Options(host_s=0.0))
    truth = ProfileCost(read_profile(shipped_profiles()["h100-llama-3.1-8b"]), Options(0.0, 0.0))
    shape = StepShape(16, 16 * 1000)
    is_whole = path in (LOG, SCRAPES)  # of an engine core on a CPU that had other work too
    host_s = 4e-4 + 16e-5 if is_whole else 0.0
    assert cost.step_s(shape) == pytest.approx(1.15 * truth.step_s(shape) + host_s, rel=0.15 if is_whole else 0.06)


def test_a_scrape_of_an_older_server_says_the_same(tmp_path: Path) -> None:
    text = gzip.decompress(SCRAPES.read_bytes()).decode()
    (tmp_path / "old.txt").write_text(text.replace("inter_token_latency_seconds", "time_per_output_token_seconds"))
    assert read(tmp_path / "old.txt").table("step")["us"].tolist() == read(SCRAPES).table("step")["us"].tolist()


def test_runs_of_a_sweep_are_mean_steps() -> None:
    """The server was batchlab itself, in real time on a busy CPU; answers had 24 tokens."""
    table = read(SWEEP).table("step")
    order = np.argsort(table["decode_seqs"])
    assert table["decode_seqs"][order] == pytest.approx([0.7, 2.6, 9, 21, 30], rel=0.35)
    truth = ProfileCost(read_profile(shipped_profiles()["h100-llama-3.1-8b"]))
    alone = truth.step_s(StepShape(1, 268))
    assert table["us"][order][0] == pytest.approx(1e6 * alone, rel=0.3)


def test_few_steps_change_what_they_measure_and_leave_the_rest(belief: Belief) -> None:
    table = table_of([AskedBatch(1, 256).row(), AskedBatch(4, 256).row(), AskedBatch(16, 256).row()])
    table = {**table, "us": 1.3 * belief.us(table)}
    after = belief.given(table, np.full(3, 0.01))
    far = table_of([AskedBatch(0, 0, 1, 8192).row()])
    assert after.us(table) == pytest.approx(table["us"], rel=0.03)
    assert belief.us(far)[0] < after.us(far)[0] < 1.3 * belief.us(far)[0]
    assert (after.log_sd(table) < 0.2 * belief.log_sd(table)).all()
    assert after.log_sd(far)[0] > 0.5 * belief.log_sd(far)[0]


def test_shapes_that_are_asked_for_beat_as_many_random_ones() -> None:
    """The interval is narrower, and a truth that is drawn lies nearer, and in the interval as often as it says."""
    before = believe(price, 0.2, 8192, FULL)
    shapes = candidates(8192, FULL, 32768)
    asked = ask(before, shapes, 0.01, 8192, FULL)
    assert asked.after < asked.with_all * 1.1 < asked.now
    count = len(asked.shapes)
    assert count <= 16
    targets, known = grid(8192, FULL), table_of([each.row() for each in shapes])
    random = np.random.default_rng(1)
    some = [random.permutation(len(shapes))[:count] for _ in range(12)]
    chosen = np.array([shapes.index(each) for each in asked.shapes])
    full = {**known, "us": before.us(known)}
    ours, theirs = (np.array([width(before, full, each, 0.01, targets) for each in sets]) for sets in ([chosen], some))
    assert ours[0] < 0.85 * theirs.mean()
    assert ours[0] <= theirs.min()
    off: dict[str, list[float]] = {"asked": [], "random": []}
    held: list[float] = []
    scale = np.sqrt(np.diag(before.covariance))
    for draw in some:
        drawn = np.linalg.cholesky(before.covariance / np.outer(scale, scale)) @ random.normal(size=len(scale))
        truth = np.maximum(before.mean + scale * drawn, 0.0)
        real = Belief(truth, before.covariance, 0.0)
        for name, places in (("asked", chosen), ("random", draw)):
            table = table_of([shapes[place].row() for place in places])
            measured = {**table, "us": real.us(table) * np.exp(random.normal(0.0, 0.01, count))}
            after = before.given(measured, np.full(count, 0.01))
            distance = np.abs(np.log(after.us(targets) / real.us(targets)))
            off[name].append(float(np.sqrt(np.mean(distance**2))))
            if name == "asked":
                held.append(float((distance <= 1.645 * np.hypot(after.log_sd(targets), before.form_error)).mean()))
    assert np.mean(off["asked"]) < 0.8 * np.mean(off["random"])
    assert 0.85 <= np.mean(held) <= 1.0


def test_what_cannot_be_read_is_refused(tmp_path: Path, belief: Belief) -> None:
    text = gzip.decompress(LOG.read_bytes()).decode()
    short = tmp_path / "server.log"
    short.write_text("\n".join(text.splitlines()[1:]))
    with pytest.raises(InputError, match="how large the KV cache is"):
        read(short)
    with pytest.raises(InputError, match=r"different kinds.*kernels.*whole"):
        scope_of(merge([read(FORWARD), read(LOG)]))
    few = read(FORWARD).keep("step", np.arange(17) < 3)
    with pytest.raises(InputError, match="3 steps are too few"):
        fit_own_steps(few, belief, MODELS[MODEL], GPUS[GPU], "mine")
    damaged = tmp_path / "bench.json"
    damaged.write_text('[{"case": "a", "median_us": 7}]')
    with pytest.raises(InputError, match="not what vllm bench forward writes"):
        read(damaged)
    assert noise_of(merge([read(PASSES), read(LOG)])) == 0.05


def test_the_commands_lead_to_a_profile_that_a_run_takes(tmp_path: Path) -> None:
    asked = batchlab("calibrate", "ask", MODEL, GPU, "--json", cwd=tmp_path)
    told = json.loads(asked.out)
    assert all(f"--case {case}" in told["commands"][0] for case in told["shapes"])
    made = tmp_path / "mine.json"
    told_of = ("--model", MODEL, "--gpu", GPU, "--out", made)
    assert batchlab("calibrate", "fit", FORWARD, *told_of, cwd=tmp_path).code == 0
    scenario = small(tmp_path)
    keys = ("cost={kind: profile, path: " + str(made) + "}", f"hardware.gpu={GPU}")
    sets = [part for key in keys for part in ("--set", key)]
    run = json.loads(batchlab("run", scenario, *sets, "--json", cwd=tmp_path).out)
    error = run["provenance"]["cost"]["error"]["step_mape_percent"]
    assert error < 5.0
    assert f"held out {error:.1f} % off" in run["prediction"]["why"]
    ends = run["prediction"]["metrics"]["mean_tpot_ms"]
    assert ends["high"] / ends["low"] < 2.0
