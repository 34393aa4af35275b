"""Closed-loop runs against measured TPOT: read, simulated, and two constants fitted to the low ones alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from docs.writers.accuracy import silicon
from docs.writers.accuracy.silicon import (
    Kernels,
    SiliconRun,
    fit_hosts,
    grouped,
    median_error,
    read_silicon,
    score,
    simulated_tpot_s,
)
from simulator.errors import InputError
from simulator.timing.cost import StepShape
from simulator.timing.formula_cost import Linear
from simulator.timing.host import Host, WithHost
from tests.shared_data import shared

RUN = SiliconRun("a", "qwen3-32b", "h100", 2, "bf16", 256, 64, 8, 0.01)
KERNELS = Linear(0.008, 1e-6, 1e-9)
HEADER = "id,model_path,system,precision,isl,osl,batch_size,tp_size,silicon_tpot_ms,concurrency\n"


def kernels_of(run: SiliconRun) -> Kernels:
    return Kernels("linear", replace(KERNELS, base_s=KERNELS.base_s / run.tensor_parallel))


def servers(host: Host) -> list[SiliconRun]:
    """Runs of servers that add just this to every step."""
    runs = [
        replace(RUN, name=f"{ranks}-{concurrency}", tensor_parallel=ranks, concurrency=concurrency)
        for ranks in (2, 8)
        for concurrency in (4, 8, 16, 32, 64)
    ]
    return [replace(run, tpot_s=simulated_tpot_s(run, WithHost(kernels_of(run).cost, host))) for run in runs]


def test_tpot_of_a_batch_that_stays_full() -> None:
    alone = simulated_tpot_s(replace(RUN, concurrency=1), Linear(0.01, 0.0, 0.0))
    assert alone == pytest.approx(0.01)
    busy = simulated_tpot_s(replace(RUN, concurrency=32), Linear(0.01, 1e-5, 0.0))
    decodes_alone = 0.01 + 32e-5
    assert decodes_alone < busy < 1.3 * decodes_alone  # and the prompts of those who follow


def test_the_constants_are_found_again() -> None:
    true = Host(0.002, 50e-6)
    runs = servers(true)
    found = fit_hosts(runs, kernels_of)["linear"]
    assert found.step_s == pytest.approx(true.step_s, rel=0.1)
    assert found.per_seq_s == pytest.approx(true.per_seq_s, rel=0.2)
    assert median_error(score(runs, kernels_of, {"linear": found})) < 0.01


def test_runs_of_high_concurrency_have_no_say() -> None:
    runs = servers(Host(0.002, 50e-6))
    spoilt = [run if run.is_low else replace(run, tpot_s=9.9) for run in runs]
    assert fit_hosts(spoilt, kernels_of) == fit_hosts(runs, kernels_of)


@pytest.mark.parametrize("shift", [-0.5, 0.0])
def test_a_server_that_is_faster_than_its_kernels_gets_no_negative_constant(shift: float) -> None:
    runs = [replace(run, tpot_s=run.tpot_s * (1 + shift)) for run in servers(Host())]
    found = fit_hosts(runs, kernels_of)["linear"]
    assert found.step_s == pytest.approx(0.0, abs=1e-6)
    assert found.per_seq_s == pytest.approx(0.0, abs=1e-7)


def test_host_is_added_to_every_step_alike() -> None:
    cost = WithHost(KERNELS, Host(0.001, 1e-5))
    shape = StepShape(4, 400)
    assert cost.step_s(shape) == pytest.approx(KERNELS.step_s(shape) + 0.001 + 4e-5)
    assert cost.decode_run_s(shape, 3) == [cost.step_s(shape.later(i)) for i in range(3)]
    assert cost.step_s(StepShape(0, 0)) == 0.0


def test_rows_are_read_and_others_left(tmp_path: Path) -> None:
    path = tmp_path / "silicon.csv"
    rows = (
        "a,Qwen/Qwen3-32B,h100_sxm,,1024,128,8.0,2.0,18.0,8\n"
        "b,openai/gpt-oss-120b,h200_sxm,fp4,1024,128,8.0,2.0,18.0,8\n"
        "c,meta-llama/Llama-3.1-70B,h200_sxm,fp8,1024,128,16.0,4.0,9.5,\n"
    )
    path.write_text(HEADER + rows, encoding="utf-8")
    first, mixture, second = read_silicon(path)
    assert (mixture.dtype, mixture.resolve_model().expert_dtype, mixture.resolve_model().dtype_bytes) == (
        "mxfp4", "mxfp4", 2,
    )  # fmt: skip
    assert (first.model, first.gpu, first.dtype, first.concurrency, first.tpot_s) == (
        "qwen3-32b",
        "h100",
        "bf16",
        8,
        0.018,
    )
    assert (second.dtype, second.tensor_parallel, second.concurrency) == ("fp8", 4, 16)
    assert second.resolve_model().dtype_bytes == 1
    assert list(grouped(score([first], kernels_of, {"linear": Host()}))) == [("h100", "qwen3-32b", "bf16", 2, 8)]
    path.write_text(HEADER + rows.replace("1024,128,8.0", "many,128,8.0", 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"silicon\.csv:2: not a row"):
        read_silicon(path)
    path.write_text(HEADER, encoding="utf-8")
    with pytest.raises(InputError, match="no run of a model"):
        read_silicon(path)


@pytest.mark.long
@pytest.mark.shared
def test_real_servers_within_ten_per_cent() -> None:
    from docs.writers.accuracy.compute import kernels

    runs = read_silicon(shared("measured/ground_truth/aiconfigurator_silicon/silicon_vllm.csv"))
    assert len(runs) == 196
    found = kernels()
    hosts = fit_hosts(runs, found)
    scored = score(runs, found, hosts)
    assert median_error(scored) < 0.10
    assert median_error([each for each in scored if not each.run.is_low]) < 0.10
    assert median_error([each for each in scored if each.run.dtype == "mxfp4"]) < 0.07
    assert silicon.LOW_CONCURRENCY == 16
