"""Tables of latent attention: the shipped ones are small and say their source; the builder's rules on made rows."""

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.profiles import shipped_tables
from simulator.hardware.gpus import GPUS
from simulator.timing.tables.latent import SUFFIX, load_latent
from tools.tables.latent import (
    FILES,
    SHARES,
    SHIPPED,
    SPARSE_MODELS,
    chain_us,
    module_rows,
    tabulate_latent,
    without_chain,
)

FOLDER = next(iter(shipped_tables().values())).parent
ALL_BYTES = 650_000

AT_MOST = {"random": 2.5, "heads": 4.5}
"""Held-out medians in percent, by regime."""
OF_OTHERS = {"random": 6.5, "heads": 7.5}  # of SGLang and TensorRT-LLM


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tables_say_where_they_come_from_and_how_well_they_predict(name: str) -> None:
    document = json.loads(gzip.decompress((FOLDER / f"{name}{SUFFIX}.json.gz").read_bytes()))
    tables = load_latent(document)
    assert tables.gpu in GPUS
    (source,) = document["sources"]
    assert (source["source"], source["version"], source["licence"]) == ("aiconfigurator-core", "0.12.0", "Apache-2.0")
    sparse = next((f"-{model}" for model in SPARSE_MODELS if name.endswith(model)), "")
    family, engine = "sparse_attention" if sparse else "mla", name.removesuffix(sparse).split("-")[-2]
    assert source["path"].endswith("/".join((SHIPPED[name][0], family, engine, SHIPPED[name][1])))
    few = 0.0 if "-vllm-" in name else 0.002
    assert all(count <= few * of and of > (500 if sparse else 3000) for count, of in document["rejected"].values())
    assert document["norms_taken_out"] == (SHARES.get(tables.gpu, 0.0) if "-vllm-" in name else 0.0)
    for kind, regimes in document["errors"].items():
        for regime, found in regimes.items():
            assert found["median"] <= (AT_MOST if "-vllm-" in name else OF_OTHERS)[regime], (kind, regime)


def test_those_listed_are_those_shipped_small_and_no_tables_by_themselves() -> None:
    paths = sorted(FOLDER.glob(f"*{SUFFIX}.json.gz"))
    assert {path.name.removesuffix(f"{SUFFIX}.json.gz") for path in paths} == set(SHIPPED)
    assert sum(path.stat().st_size for path in paths) < ALL_BYTES
    assert not [name for name in shipped_tables() if name.endswith(SUFFIX)]


# ------------------------------------------------------------------------------------------------------------- builder


def chain(tokens: float, heads: int) -> float:
    """The cost of uncompiled norms in the made rows."""
    return 40.0 + 0.02 * tokens + 0.001 * tokens * heads


def made(root: Path, folder: str, version: str, share: float) -> None:
    """Rows of a GPU: plain physics, and `share` of the uncompiled norms."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="writing parquet needs pyarrow")
    place = root / folder / "mla" / "vllm" / version
    place.mkdir(parents=True)
    for kind, file in FILES.items():
        rows: list[dict[str, Any]] = []
        for heads, batch, length, kv in product((1, 8, 64), (1, 8, 64), (16, 256, 4096), ("bfloat16", "fp8")):
            tokens = batch if kind == "decode" else batch * length
            us = 30.0 + heads + 0.1 * tokens * (1 + heads / 40)
            us += 3e-4 * batch * length if kind == "decode" else 1e-6 * heads * batch * length**2
            rows.append(
                {
                    "model": "deepseek-ai/DeepSeek-V3", "mla_dtype": "bfloat16", "kv_cache_dtype": kv,
                    "gemm_type": "bfloat16", "num_heads": heads, "batch_size": batch, "kernel_source": "SOME_MLA",
                    "isl": length if kind == "prompt" else 1, "step": length if kind == "decode" else 0,
                    "latency": (us + share * chain(tokens, heads)) * 1e-3,
                }
            )  # fmt: skip
        rows.append({**rows[0], "mla_dtype": "fp8", "latency": 9.0})
        rows.append({**rows[0], "model": "moonshotai/Kimi-K3", "latency": 9.0})
        rows.append({**rows[-3], "num_heads": 128, "latency": 0.002})  # 2 us for weights that take 60 to read
        pd.DataFrame(rows).to_parquet(place / f"{file}.parquet")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data")
    made(path, "gb300", "0.24.0", 1.0)
    made(path, "gb300", "0.27.0", 0.0)
    made(path, "h200_sxm", "0.24.0", SHARES["h200"])
    made(path, "b200_sxm", "0.24.0", 0.0)
    return path


def test_the_cost_of_uncompiled_norms_is_found_where_both_were_measured(root: Path) -> None:
    for heads, (tokens, us) in chain_us(root).items():
        if heads in (1, 8, 64):
            short = tokens <= 8 * 256
            assert us[short] == pytest.approx([chain(each, heads) for each in tokens[short]], rel=1e-6)


def test_it_is_taken_out_of_rows_that_have_it(root: Path) -> None:
    rows = module_rows(root / "h200_sxm/mla/vllm/0.24.0", "decode")
    assert set(rows["heads"]) == {1, 8, 64, 128}
    assert rows["us"].max() < 9000  # neither another model nor prompts computed in fp8
    ours = rows[rows["heads"] < 128].reset_index(drop=True)
    plain = module_rows(root / "b200_sxm/mla/vllm/0.24.0", "decode")
    plain = plain[plain["heads"] < 128].reset_index(drop=True)
    assert np.allclose(without_chain(ours, "decode", root, "h200")["us"], plain["us"])
    assert without_chain(plain, "decode", root, "b200") is plain


def test_tables_are_made_of_rows(root: Path) -> None:
    document = tabulate_latent(root, "b200-vllm-0.24", "b200_sxm", "0.24.0", root / "none.json.gz")
    assert document["rejected"] == {file: [1, 55] for file in FILES.values()}
    tables = load_latent(document)
    decode = tables.decode[0]
    assert (decode.dtype, decode.kv_dtype, decode.kernels) == ("bf16", "bf16", ("SOME_MLA",))
    assert all(list(modules.by_heads) == [1, 8, 64] for modules in (*tables.decode, *tables.prompt))
    assert np.exp(decode.by_heads[8].log_us[1, 2]) == pytest.approx(30 + 8 + 0.8 * 1.2 + 3e-4 * 8 * 4096, rel=1e-3)
    assert tables.prompt[1].kv_dtype == "fp8"
    assert document["errors"]["latent_decode"]["heads"]["median"] < 3.0  # linear in the heads
