"""Tables of kernels: the shipped ones are small, say their source, are what the builder makes; the builder's rules."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.fit import check_tables
from calibration.sources import FAMILIES, find_source
from calibration.tabulate import tabulate, write_tables
from scenarios.profiles import shipped_tables
from simulator.errors import InputError
from simulator.hardware.gpus import GPUS
from simulator.timing.tables import read_tables
from tests.shared_data import shared
from tools.tables.kernels import SHIPPED, shipped_source

KERNELS = "measured/calibration/aiconfigurator_kernels"
LARGEST_BYTES, ALL_BYTES = 400_000, 6_500_000
QUICK = "a100-80gb-vllm-0.14"

# Held-out medians in percent, by regime.
AT_MOST = {"thinned": 4.0, "sizes": 5.2, "random": 4.5, "heads": 5.0, "kv_heads": 5.5}
OF_OTHERS = {"thinned": 8.5, "sizes": 7.0, "random": 4.5, "heads": 5.0, "kv_heads": 5.5}  # SGLang's, TensorRT-LLM's


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def test_those_listed_are_those_shipped_and_small() -> None:
    paths = shipped_tables()
    assert set(paths) == set(SHIPPED)
    sizes = [path.stat().st_size for path in paths.values()]
    assert max(sizes) < LARGEST_BYTES
    assert sum(sizes) < ALL_BYTES
    names = list(paths)
    assert names.index("h100-vllm-0.24") < names.index("h100-vllm-0.19")  # the newest first


@pytest.mark.parametrize("name", SHIPPED)
def test_tables_say_where_they_come_from_and_how_well_they_predict(name: str) -> None:
    tables = read_tables(shipped_tables()[name])
    assert tables.name == name
    assert tables.gpu in GPUS
    folder, _, software = SHIPPED[name].partition("/")
    engine, _, version = software.partition("_")
    for source in tables.document["sources"]:
        assert source["licence"] == "Apache-2.0"
        assert source["commit" if source["source"] == "ai-dynamo/aiconfigurator" else "version"]
        assert f"systems/data/{folder}/" in source["path"]
    assert tables.document["sources"][0]["path"].endswith(f"{engine}{'_' if 'commit' in source else '/'}{version}")
    for kind, regimes in tables.document["errors"].items():
        for regime, found in regimes.items():
            assert found["median"] <= (AT_MOST if engine == "vllm" else OF_OTHERS)[regime], (kind, regime)
    text = "\n".join(check_tables(shipped_tables()[name]).lines)
    ranks = [2, 4] if tables.gpu == "gb200" or name == "gb300-vllm-0.24" else [2, 4, 8]
    assert list(tables.all_reduce)[: len(ranks)] == ranks
    assert f"all-reduce among {', '.join(map(str, tables.all_reduce))} GPUs" in text
    assert "decode_attention   heads" in text


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", [name if name == QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SHIPPED]
)
def test_the_shipped_file_is_what_the_builder_makes(name: str) -> None:
    pytest.importorskip("pyarrow", reason="reading parquet needs pyarrow")
    source = shipped_source(shared(KERNELS).parent, SHIPPED[name])
    if source is None:
        pytest.skip(f"{SHIPPED[name]} is in the wheel aiconfigurator-core, which is not here")
    made, there = json.loads(json.dumps(tabulate(source, name))), document(shipped_tables()[name])
    assert {**made, "sources": []} == {**there, "sources": []}  # where the wheel has the same rows, it is named


# ------------------------------------------------------------------------------------------------------------- builder


def folder(root: Path, *, launches_us: float = 4.0) -> Path:
    """A source of a few rows, as aiconfigurator's repository has it: fp8_block's products take `launches_us` more."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="writing parquet needs pyarrow")
    place = root / "h100_sxm" / "vllm_9.9.0"
    place.mkdir(parents=True)
    products = [
        {"device": "NVIDIA H100 80GB HBM3", "gemm_dtype": dtype, "m": m, "n": n, "k": k,
         "latency": (3.0 + more + 2e-6 * m * n * k / 600 + n * k * width / 2.5e6) * 1e-3}
        for dtype, width, more in (("bfloat16", 2, 0.0), ("fp8", 1, 1.0), ("fp8_block", 1, launches_us))
        for m in (1, 3, 8, 64, 1024) for n in (64, 512, 4096, 16384) for k in (512, 4096, 16384)
    ]  # fmt: skip
    products.append({**products[-61], "m": 8, "n": 16384, "k": 16384, "latency": 1e-3})  # faster than the memory
    pd.DataFrame(products).to_parquet(place / "gemm_perf.parquet")
    heads = [(8, 2), (16, 2), (32, 2), (16, 8), (32, 8), (64, 8)]
    common = {"head_dim": 128, "kv_cache_dtype": "bfloat16", "window_size": 0}
    decode = [
        {**common, "batch_size": b, "num_heads": h, "num_key_value_heads": g, "step": s,
         "latency": (8 + b * g * (s + 1) * 512 / 2.5e6) * 1e-3}
        for h, g in heads for b in (1, 8, 64) for s in (15, 255, 4095)
    ]  # fmt: skip
    prompt = [
        {**common, "batch_size": b, "num_heads": h, "num_key_value_heads": g, "isl": n,
         "latency": (9 + b * h * n * n * 256 / 5e8) * 1e-3}
        for h, g in heads for b in (1, 4) for n in (16, 256, 4096)
    ]  # fmt: skip
    pd.DataFrame(decode).to_parquet(place / "generation_attention_perf.parquet")
    pd.DataFrame(prompt).to_parquet(place / "context_attention_perf.parquet")
    reduce = [
        {"num_gpus": n, "message_size": size, "backend": backend, "latency": 5e-3 + size * 1e-9}
        for n in (2, 4) for size in (128, 1 << 20) for backend in ("vllm_graph", "vllm_eager")
    ]  # fmt: skip
    pd.DataFrame(reduce).to_parquet(place / "custom_allreduce_perf.parquet")
    return place


def by_family(flat: Path, root: Path, **versions: str) -> Path:
    """The same files as the wheel lays them out, each family in 9.9.0 or the version that is given."""
    for name, family in FAMILIES.items():
        place = root / "h100_sxm" / family / "vllm" / versions.get(family, "9.9.0")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.parquet").write_bytes((flat / f"{name}.parquet").read_bytes())
    return root / "h100_sxm"


def test_both_layouts_give_the_same_tables(tmp_path: Path) -> None:
    flat = folder(tmp_path / "flat")
    place = by_family(flat, tmp_path / "wheel", comm="9.8.0")
    source = find_source(place)
    assert (source.gpu, source.version, source.by_family) == ("h100_sxm", "9.9.0", True)
    plain, made = tabulate(find_source(flat)), tabulate(source, release="1.2.3")
    assert {**made, "sources": []} == {**plain, "sources": []}
    assert made["sources"] == [
        {"source": "aiconfigurator-core", "licence": "Apache-2.0", "version": "1.2.3",
         "path": "systems/data/h100_sxm/{gemm,attention}/vllm/9.9.0"},
        {"source": "aiconfigurator-core", "licence": "Apache-2.0", "version": "1.2.3",
         "path": "systems/data/h100_sxm/{comm}/vllm/9.8.0"},
    ]  # fmt: skip


def test_a_layout_lacks_what_it_lacks(tmp_path: Path) -> None:
    place = by_family(folder(tmp_path / "flat"), tmp_path / "wheel", comm="9.10.0")
    with pytest.raises(InputError, match=r"no custom_allreduce_perf.parquet of vLLM 9.9.0 or before"):
        tabulate(find_source(place))  # a later version's is not taken
    with pytest.raises(InputError, match=r"no tables of vLLM 9.8.0; there are 9.9.0"):
        find_source(place, "9.8.0")
    with pytest.raises(InputError, match=r"no tables of vLLM"):
        find_source(tmp_path)
    found = shipped_source(tmp_path / "wheel", "h100_sxm/vllm_9.9.0")
    assert found is not None
    assert found.by_family
    assert shipped_source(tmp_path / "wheel", "b200_sxm/vllm_9.9.0") is None


def test_tables_are_made_of_a_folder(tmp_path: Path) -> None:
    made = tabulate(find_source(folder(tmp_path)))
    assert (made["name"], made["gpu"], made["software"]) == ("h100-vllm-9.9.0", "h100", "vLLM 9.9.0")
    assert set(made["products"]) == {"bf16", "fp8", "fp8_block"}
    m, n, _ = made["products"]["bf16"]["axes"]
    assert m["values"] == [1, 8, 64, 1024]  # 3 is left out, and tested
    assert n["values"] == [512, 4096, 16384]  # 64 is too narrow
    assert made["errors"]["gemm_bf16"]["thinned"]["rows"] == 9
    assert made["all_reduce"]["2"]["bytes"] == [256, 2 << 20]
    path = tmp_path / "made.json.gz"
    write_tables(made, path)
    again = path.read_bytes()
    write_tables(made, path)
    assert path.read_bytes() == again
    tables = read_tables(path)
    warm, from_memory = 8 + 8 * 16 * 512 / 2.5e6, 8 * 16 * 512 / 3.35e6
    assert np.exp(tables.decode[0].log_us[32, 8][0, 0]) == pytest.approx(warm + from_memory, rel=1e-3)


def test_impossible_rows_and_timed_launches_are_left_out(tmp_path: Path) -> None:
    made = tabulate(find_source(folder(tmp_path, launches_us=60.0)))
    assert made["rejected"]["products fp8"][0] + made["rejected"]["products bf16"][0] == 1
    assert set(made["products"]) == {"bf16", "fp8"}
    assert "launches, not kernels" in made["left_out"]["products fp8_block"]
