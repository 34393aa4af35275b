from pathlib import Path

import numpy as np
import pytest

from calibration.fit import decode_surface
from calibration.rows import KernelRows, gpu_name, model_name, select
from calibration.sources import VIDUR_OPS, detect, read_llmservingsim, read_source, read_splitwise, read_vidur
from simulator.errors import InputError
from simulator.timing.profile.surface import decode_features
from tests import calibration_maker as maker
from tests.shared_data import shared

KERNELS = "measured/calibration"


def same(rows: KernelRows, others: KernelRows) -> None:
    assert sorted(rows.tables) == sorted(others.tables)
    for kind, table in rows.tables.items():
        for column, values in table.items():
            found = others.table(kind)[column].tolist()
            assert found == (values.tolist() if column == "op" else pytest.approx(values.tolist()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("h200_sxm", "h200"),
        ("a100-80gb", "a100-80gb"), ("something", ""),
    ],
)  # fmt: skip
def test_gpus_are_known_by_their_drivers_names(text: str, name: str) -> None:
    assert gpu_name(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"), ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("Llama-2-70b-hf", "llama-2-70b"), ("meta-llama/Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"), ("bloom", ""),
    ],
)  # fmt: skip
def test_models_are_known_by_their_hubs_names(text: str, name: str) -> None:
    assert model_name(text) == name


def test_llmservingsim_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = maker.write_llmservingsim(tmp_path)
    assert detect(folder) == "llmservingsim"
    rows = read_source(folder)
    assert (rows.gpu, rows.model, rows.software) == ("h200", "llama-3.1-8b", "vLLM 0.19.0, CUDA ?")
    same(maker.rows(), rows)


def test_a_parallelism_that_is_not_there(tmp_path: Path) -> None:
    folder = maker.write_llmservingsim(tmp_path)
    with pytest.raises(InputError, match="no folder tp4") as found:
        read_llmservingsim(folder, 4)
    assert found.value.hint == "there are: tp1"


def test_a_table_without_a_column(tmp_path: Path) -> None:
    folder = maker.write_llmservingsim(tmp_path)
    (folder / "tp1" / "attention.csv").write_text("prefill_chunk,kv_prefill\n0,0\n")
    with pytest.raises(InputError, match="no column n_decode"):
        read_llmservingsim(folder)


def test_a_value_that_is_no_number_is_named_by_its_line(tmp_path: Path) -> None:
    folder = maker.write_llmservingsim(tmp_path)
    (folder / "tp1" / "dense.csv").write_text("layer,tokens,time_us\nqkv_proj,1,2.0\nqkv_proj,2,fast\n")
    with pytest.raises(InputError, match="time_us is 'fast', not a number") as found:
        read_llmservingsim(folder)
    assert found.value.line == 3


def test_vidur_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "h100" / "Llama-2-70b-hf"
    folder.mkdir(parents=True)
    ops = list(VIDUR_OPS)
    header = ",".join([f"time_stats.{op}.median" for op in ops] + ["num_tokens", "num_tensor_parallel_workers"])
    lines = [
        ",".join([f"{0.01 * (i + 1) * tokens}" for i in range(len(ops))] + [str(tokens), "4"]) for tokens in (8, 64)
    ]
    (folder / "mlp.csv").write_text("\n".join([header, *lines]) + "\n")
    names = "is_prefill,batch_size,prefill_chunk_size,kv_cache_size,time_stats.attn_prefill.median"
    rows = [
        f"{names},time_stats.attn_decode.median,num_tensor_parallel_workers",
        "True,1,64,128,0.5,,4",
        "False,8,0,256,,0.1,4",
    ]
    (folder / "attention.csv").write_text("\n".join(rows) + "\n")
    found = read_vidur(folder, 4)
    assert (found.gpu, found.model, detect(folder)) == ("h100", "llama-2-70b", "vidur")
    dense = found.table("dense")
    assert dense["us"][dense["op"] == "output_projection"].tolist() == pytest.approx([160.0, 1280.0])
    attention = found.table("attention")
    assert attention["chunk"].tolist() == [64, 0]
    assert attention["cached"].tolist() == [128, 0]
    assert attention["seqs"].tolist() == [0, 8]
    assert attention["us"].tolist() == [500.0, 100.0]
    with pytest.raises(InputError, match="no rows for tensor_parallel 2"):
        read_vidur(folder, 2)


def test_splitwise_is_steps(tmp_path: Path) -> None:
    path = tmp_path / "perf_model.csv"
    header = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"
    path.write_text(f"{header}\nllama2-70b,h100-80gb,512,2,128,60,30,8\nllama2-70b,a100-80gb,512,2,128,90,50,8\n")
    steps = read_splitwise(path, "llama-2-70b", "h100", 8).table("step")
    assert steps["prefill_tokens"].tolist() == [1024, 0]
    assert steps["prefill_pairs"].tolist() == [2 * 512 * 513 / 2, 0]
    assert steps["decode_context"].tolist() == [0, 2 * (512 + 64.5)]
    assert steps["us"].tolist() == [60_000, 30_000]
    with pytest.raises(InputError, match="no rows of") as found:
        read_splitwise(path, "llama-2-70b", "h100", 4)
    assert "llama-2-70b on a100-80gb with tensor_parallel 8" in str(found.value.hint)


@pytest.mark.parametrize("name", ["nothing", "a-folder", "a.txt"])
def test_what_is_no_source_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"no such file|no known format"):
        detect(tmp_path / name)


def test_aiconfigurator_needs_a_model_and_its_heads() -> None:
    folder = shared(f"{KERNELS}/aiconfigurator_kernels/a100_sxm/vllm_0.14.0")
    pytest.importorskip("pyarrow", reason="reads parquet")
    with pytest.raises(InputError, match="of which model"):
        read_source(folder)
    with pytest.raises(InputError, match="no rows of 12 query and 12 KV heads of 64") as found:
        read_source(folder, model="gpt2")
    assert "heads here: [(" in str(found.value.hint)
    rows = read_source(folder, model="llama-3.1-70b", tensor_parallel=4)
    assert (rows.gpu, rows.software) == ("a100-80gb", "vLLM 0.14.0")
    decode = rows.table("attention")
    assert set(rows.tables) == {"gemm", "attention", "all_reduce"}
    assert decode["context"][decode["chunk"] == 0].min() == 2  # step + 1
    assert rows.table("all_reduce")["us"].min() > 1


def test_skew_times_of_llmservingsim_are_sums() -> None:
    """The rows of equal contexts are those of the attention table, once divided by the iterations."""
    folder = shared(f"{KERNELS}/llmservingsim_profiles/RTXPRO6000/meta-llama/Llama-3.1-8B/bf16")
    rows = read_llmservingsim(folder)
    attention, skew = rows.table("attention"), rows.table("skew")
    surface = decode_surface(select(attention, (attention["chunk"] == 0) & (attention["seqs"] > 0)))
    skew = select(skew, skew["chunk"] == 0)
    mean = (skew["long_seqs"] * skew["long"] + (skew["seqs"] - skew["long_seqs"]) * skew["short"]) / skew["seqs"]
    alone = surface.us_many([skew["seqs"], mean], decode_features(skew["seqs"], mean))
    assert np.median(skew["equal_us"] / alone) == pytest.approx(1.0, abs=0.02)
