"""Every configuration of the kernels, compiled for sm_90 without a GPU: what it needs, and what it is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed (pip install -c constraints.txt -e '.[gpu]')")
pytest.importorskip("triton", reason="triton is not installed (pip install --no-deps triton)")

from gpu_backend import kernels
from gpu_backend.attention.worklist import HALF, Tiling, tilings
from tests.gpu_backend import compiled
from tests.gpu_backend.compiled import SHAPES, SHARED_BYTES, Compiled, Shape
from tools.kernel_bench.speed import variants

SPARED = 8  # bytes: Triton 3.7 lays two of 255 registers of a prompt's heads of 256 aside, 3.6 none

pytestmark = pytest.mark.skipif(kernels.INTERPRETED, reason="TRITON_INTERPRET is set: nothing is compiled")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def named(shape: tuple[Any, ...]) -> str:
    return "-".join(map(str, shape))


def fits(made: Compiled, tiling: Tiling) -> None:
    assert made.stack_bytes <= SPARED, "registers were spilled"
    assert made.shared_bytes <= SHARED_BYTES
    assert made.programs_per_sm >= max(1, tiling.programs_per_sm), (
        "the grid promises more programs than there is room for"
    )


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_decode(shape: tuple[int, int, int, str]) -> None:
    model = Shape(*shape)
    tiling = tilings(model.head_dim, model.dtype, model.group).decode
    made = compiled.compile_attend(model, tiling)
    fits(made, tiling)
    if model.dtype in HALF:
        assert made.mma > 0
        assert made.wgmma == 0
        assert made.async_16 > 0, "keys and values are not copied 16 bytes at a time"
        assert made.in_flight >= 3, "no tile is under way while another is computed"


@pytest.mark.parametrize("shape", SHAPES, ids=named)
def test_prefill(shape: tuple[int, int, int, str]) -> None:
    model = Shape(*shape)
    tiling = tilings(model.head_dim, model.dtype, model.group).prefill
    made = compiled.compile_attend(model, tiling)
    fits(made, tiling)
    if model.dtype in HALF:
        assert tiling.block_m == (128 if model.head_dim <= 128 else 64)
        assert made.wgmma > 0
        assert made.mma == 0
        assert made.async_16 > 0
        assert made.in_flight >= 3


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=named)
def test_pages_in_fp8(shape: tuple[int, int, int, str]) -> None:
    """Widened in registers, one program fewer in decode: no spill, as many programs, copies of 16 bytes, wgmma."""
    model = Shape(*shape, fp8_kv=True)
    choice = tilings(model.head_dim, model.dtype, model.group, fp8_kv=True)
    for tiling in (choice.decode, choice.prefill):
        made = compiled.compile_attend(model, tiling)
        fits(made, tiling)
        assert made.async_16 > 0
        assert made.in_flight >= 3
        assert (made.wgmma > 0) == (tiling is choice.prefill)
    fits(compiled.compile_write(model), Tiling(16, 16, 16, 4, 1))
    assert compiled.compile_pointwise(model, 4096)[2].stack_bytes == 0


@pytest.mark.parametrize("width", [4096, 28672])
def test_activations_to_fp8(width: int) -> None:
    assert compiled.compile_quantised(Shape(), width).stack_bytes == 0


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[5]], ids=named)
def test_merge_and_write(shape: tuple[int, int, int, str]) -> None:
    model = Shape(*shape)
    choice = tilings(model.head_dim, model.dtype, model.group)
    for made in (
        compiled.compile_merge(model, choice.decode),
        compiled.compile_merge(model, choice.prefill),
        compiled.compile_write(model),
    ):
        fits(made, Tiling(16, 16, 16, 4, 1))


@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3], SHAPES[5], SHAPES[8]], ids=named)
def test_the_small_operators(shape: tuple[int, int, int, str]) -> None:
    for made in compiled.compile_pointwise(Shape(*shape), 4096):
        assert made.stack_bytes == 0, "registers were spilled"
        assert made.programs_per_sm >= 4


@pytest.mark.parametrize("page", [1, 8, 32])
def test_other_pages(page: int) -> None:
    model = Shape(page=page)
    for tiling in (tilings(128, "bfloat16", 4).decode, tilings(128, "bfloat16", 4).prefill):
        fits(compiled.compile_attend(model, tiling), tiling)


EXPERIMENTS = [tiling for _, tiling in variants() if tiling.table_once or tiling.evict_first]


@pytest.mark.parametrize("tiling", [*EXPERIMENTS, Tiling(64, 64, 8192, 4, 5)], ids=str)
def test_experiments_fit_without_spills(tiling: Tiling) -> None:
    """A table known beforehand halves the chain of loads: fewer stages keep as much under way."""
    made = compiled.compile_attend(Shape(), tiling)
    fits(made, tiling)
    assert (made.wgmma > 0) == (tiling.block_m >= 64)
    assert made.in_flight >= 2


def test_a_spill_is_seen() -> None:
    """Half the warps have to keep twice as much in their registers, and cannot."""
    made = compiled.compile_attend(Shape(), Tiling(128, 64, 8192, 4, 5))
    assert made.stack_bytes > 0


def test_too_few_rows_for_hopper_are_seen() -> None:
    assert compiled.compile_attend(Shape(), Tiling(32, 32, 8192, 4, 3)).wgmma == 0
