"""Tables of experts: the shipped ones are small and say their source and errors; the builder's rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibration.tabulate import write_tables
from scenarios.profiles import shipped_tables
from simulator.hardware.gpus import GPUS
from simulator.timing.tables.experts import SUFFIX, Cell, beside, read_expert_tables
from tools.tables.experts import SHIPPED, tabulate_experts

FOLDER = next(iter(shipped_tables().values())).parent
LARGEST_BYTES, ALL_BYTES = 200_000, 2_500_000

# Held-out medians in percent, of whole models that were left out. Of mxfp4 each GPU has two models or three.
# SGLang's experts are of two kernels, by model.
AT_MOST, OF_TWO_MODELS, OF_OTHERS = 10.0, 22.0, 28.0


def test_those_listed_are_those_shipped_and_small() -> None:
    paths = sorted(FOLDER.glob(f"*{SUFFIX}"))
    assert [path.name.removesuffix(SUFFIX) for path in paths] == sorted(SHIPPED)
    assert not set(shipped_tables()) & {path.name.removesuffix(".json.gz") for path in paths}
    sizes = [path.stat().st_size for path in paths]
    assert max(sizes) < LARGEST_BYTES
    assert sum(sizes) < ALL_BYTES


@pytest.mark.parametrize("name", SHIPPED)
def test_tables_say_where_they_come_from_and_how_well_they_predict(name: str) -> None:
    tables = read_expert_tables(FOLDER / f"{name}{SUFFIX}")
    gpu, folder = SHIPPED[name]
    assert (tables.name, tables.gpu) == (f"{name}-experts", gpu)
    assert gpu in GPUS
    (source,) = tables.document["sources"]
    assert source["licence"] == "Apache-2.0"
    assert source["path"] == f"systems/data/{folder}"
    for kind, regimes in tables.document["errors"].items():
        for regime, found in regimes.items():
            few = kind.startswith("experts_mxfp4")
            usual = AT_MOST if "-vllm-" in name else OF_OTHERS
            assert found["median"] <= (OF_TWO_MODELS if few else usual), (kind, regime)
    for count, of in tables.document["rejected"].values():
        assert count <= (0.03 if "-vllm-" in name else 0.06) * of, "faster than the GPU can be"


def test_the_nearest_version_comes_first() -> None:
    assert [each.software for each in beside(FOLDER, "h200", "vLLM 0.18.0")] == ["vLLM 0.19.0", "vLLM 0.24.0"]
    assert [each.software for each in beside(FOLDER, "h200", "vLLM 0.23.0")] == ["vLLM 0.24.0", "vLLM 0.19.0"]
    assert beside(FOLDER, "rtx-4090", "vLLM 0.19.0") == []


# ------------------------------------------------------------------------------------------------------------- builder


def row(**fields: Any) -> dict[str, Any]:
    plain = {
        "kernel_source": "vllm_triton_tritonexperts", "moe_dtype": "bfloat16", "num_tokens": 1, "hidden_size": 2048,
        "inter_size": 768, "topk": 8, "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1,
        "distribution": "balanced", "latency": 0.0,
    }  # fmt: skip
    found = {**plain, **fields}
    if not found["latency"]:
        width, held = found["inter_size"] / found["moe_tp_size"], found["num_experts"] / found["moe_ep_size"]
        pairs = found["num_tokens"] * found["topk"] / found["moe_ep_size"]
        moved = min(held, max(pairs, 1)) * 6e-3 * found["hidden_size"] * width
        found["latency"] = (30 + moved / 2.8e3 + 6e-6 * pairs * found["hidden_size"] * width / 500) * 1e-3
    return found


def folder(root: Path, rows: list[dict[str, Any]]) -> Path:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="writing parquet needs pyarrow")
    place = root / "h200_sxm" / "moe" / "vllm" / "9.9.0"
    place.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(place / "moe_perf.parquet")
    return place


def some(**fields: Any) -> list[dict[str, Any]]:
    parallel = (("moe_tp_size", 1), ("moe_tp_size", 2), ("moe_ep_size", 2))
    return [row(num_tokens=m, **{name: size}, **fields) for name, size in parallel for m in (1, 4, 16, 64, 1024)]


MODELS = [*some(), *some(hidden_size=4096, inter_size=1536), *some(hidden_size=6144, inter_size=2048, num_experts=256)]


def test_tables_are_made_of_a_folder(tmp_path: Path) -> None:
    uneven = row(num_tokens=16, distribution="power_law_1.2", latency=0.5)
    twice = [row(num_tokens=16, distribution="power_law_1.01", latency=each) for each in (0.5, 0.6, 0.9)]
    made = tabulate_experts(folder(tmp_path, [*MODELS, uneven, *twice]), "mine", "h200")
    assert (made["name"], made["software"], made["tokens"]) == ("mine-experts", "vLLM 9.9.0", [1, 4, 16, 64, 1024])
    assert made["sources"][0]["path"] == "systems/data/h200_sxm/moe/vllm/9.9.0"
    assert made["errors"]["experts_bf16"]["models"]["rows"] == len(MODELS)
    path = tmp_path / f"h200-mine{SUFFIX}"
    write_tables(made, path)
    again = path.read_bytes()
    write_tables(made, path)
    assert path.read_bytes() == again
    cells = read_expert_tables(path).precisions["bf16"].cells
    assert len(cells) == 9
    half = cells[Cell(2048, 384, 128, 128, 8)]
    assert half.kernel == "vllm_triton_tritonexperts"
    assert np.exp(half.log_us["balanced"][2]) == pytest.approx(
        1e3 * row(num_tokens=16, moe_tp_size=2)["latency"], rel=1e-3
    )
    whole = cells[Cell(2048, 768, 128, 128, 8)].log_us
    assert np.exp(whole["power_law_1.2"][2]) == pytest.approx(500, rel=1e-3)
    assert np.exp(whole["power_law_1.01"][2]) == pytest.approx(600, rel=1e-3)  # of repeated ones the median
    assert np.isnan(whole["power_law_1.2"][0])


def test_what_is_impossible_or_something_else_is_left_out(tmp_path: Path) -> None:
    groups = {"hidden_size": 7168, "inter_size": 2048, "num_experts": 256, "moe_dtype": "fp8_block"}
    rows = [
        *MODELS,
        row(num_tokens=256, latency=0.1),  # 1.2 GB in 100 us
        row(hidden_size=2688, inter_size=1856, topk=6),  # two matrices
        row(**groups),  # groups of its own
        row(**groups, moe_ep_size=8, distribution="power_law_1.01"),
        row(**groups, moe_tp_size=8, distribution="power_law_1.01"),  # which the sums of all GPUs do not show
        row(**groups, kernel_source="vllm_fused_moe"),
        row(moe_dtype="int4_wo", kernel_source="vllm_marlin_int4_moe"),
    ]
    made = tabulate_experts(folder(tmp_path, rows), "mine", "h200")
    assert made["rejected"] == {"experts bf16": [1, len(MODELS) + 1], "experts fp8_block": [0, 2]}
    assert set(made["left_out"]) == {"experts without a gate", "loads of DeepSeek-V3", "experts int4"}
    assert set(made["precisions"]) == {"bf16", "fp8_block"}
