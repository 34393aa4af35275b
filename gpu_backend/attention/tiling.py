"""The sizes of the kernels' tiles: one table, for every head size and value type.

The numbers are starting points that compile well for sm_90 (no spills, wgmma in prefill); `kernel_bench --sweep`
measures the neighbours of each on the GPU at hand. See bench/NOTES.md for what each was weighed against.
"""

from __future__ import annotations

from dataclasses import dataclass

HALF = ("float16", "bfloat16")  # value types that the tensor cores multiply as they are
DTYPES = (*HALF, "float32")

MIN_ROWS = 16  # rows of the smallest tile that a tensor core takes
REGISTERS = 65536  # registers of a multiprocessor, on every NVIDIA GPU of the last ten years


@dataclass(frozen=True, slots=True)
class Tiling:
    """One configuration of the attention kernel.

    A tile is `block_m` rows, a row being one query head of one token. A work item is a tile and at most `chunk` keys,
    read `block_n` at a time. `programs_per_sm` > 0: a persistent grid of so many programs on each multiprocessor;
    0: a program for each work item, which the hardware hands out in order. `table_once`: the page table's entries of an
    item are loaded before its keys, so that no load of keys waits for one of them. `evict_first`: keys and values are
    marked as read once, and do not push others out of the L2 cache.
    """

    block_m: int
    block_n: int
    chunk: int
    num_warps: int
    num_stages: int
    programs_per_sm: int = 0
    table_once: bool = False
    evict_first: bool = False

    def __post_init__(self) -> None:
        if self.chunk % self.block_n:
            raise ValueError(f"chunk {self.chunk} is not a multiple of block_n {self.block_n}")

    @property
    def max_registers(self) -> int | None:
        """Registers a thread that the programs on a multiprocessor leave each other; None: the most there can be.

        The assembler is told. Left to itself it aims lower in some shapes, and spills a few.
        """
        share = REGISTERS // (32 * self.num_warps * max(1, self.programs_per_sm)) // 8 * 8
        return share if share < 255 else None


@dataclass(frozen=True, slots=True)
class Tilings:
    """The two configurations that a step needs. What fits into one decode tile is decode, whatever its caller calls
    it: the last few tokens of a prompt behind a long prefix are cut by their keys like any decode."""

    decode: Tiling
    prefill: Tiling


def tilings(head_dim: int, dtype: str, group: int = 1, *, fp8_kv: bool = False) -> Tilings:
    """The configurations for heads of `head_dim`, values of `dtype` and `group` query heads a KV head.

    With `fp8_kv` pages are widened in registers: a program fewer on a multiprocessor leaves it enough of them.

    Raises ValueError for a dtype other than float16, bfloat16 and float32, and for heads wider than 256.
    """
    if dtype not in DTYPES:
        raise ValueError(f"attention kernels work on {', '.join(DTYPES)}, not on {dtype}")
    if not 1 <= head_dim <= 256:
        raise ValueError(f"attention kernels work on heads of 1 to 256, not {head_dim}")
    rows = max(MIN_ROWS, 1 << (group - 1).bit_length())
    if dtype == "float32":  # exact products on the ordinary cores: for comparing, not for speed
        return Tilings(Tiling(rows, 16, 512, 4, 1, 2), Tiling(16, 16, 8192, 4, 1))
    if rows > MIN_ROWS:
        return Tilings(Tiling(rows, 32, 512, 4, 5, 2), _prefill(head_dim))
    if head_dim > 128:
        return Tilings(Tiling(rows, 16, 512, 4, 7, 3), _prefill(head_dim))
    if head_dim > 64:
        return Tilings(Tiling(rows, 32, 512, 4, 7, 3 if fp8_kv else 4), _prefill(head_dim))
    return Tilings(Tiling(rows, 64, 512, 4, 7, 4), _prefill(head_dim))


def _prefill(head_dim: int) -> Tiling:
    if head_dim > 128:  # 128 rows of 256 fill every register, and spill under Triton 3.6 and 3.7
        return Tiling(64, 16, 8192, 8, 5)
    return Tiling(128, 64, 8192, 8, 5)
