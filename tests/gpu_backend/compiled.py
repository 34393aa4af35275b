"""Compile the kernels without a GPU: registers, shared memory, spills and instructions.

`python -m tests.gpu_backend.compiled` prints a table for the shapes that models have. Triton carries the assembler
and the disassembler, so neither a GPU nor CUDA is needed; TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpu_backend import kernels
from gpu_backend.attention.paged import merge_blocks, variant
from gpu_backend.attention.worklist import REGISTERS, Tiling, tilings

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_BYTES = 227 * 1024
"""Shared memory that a program may have on sm_90. A multiprocessor has 1 KiB more, and takes 1 KiB for each program."""

FLOATS = ("scale_log2", "value_scale", "into_key", "into_value", "eps", "largest", "smallest")
# Types of the arguments that are neither constants nor integers; "value" stands for the model's type.
POINTERS = {
    **dict.fromkeys(("q", "kv", "out", "key", "value"), "*value"),
    **dict.fromkeys(("hidden", "part", "weight", "total", "normed", "up", "mixed", "query", "rope"), "*value"),
    **dict.fromkeys(("query_weight", "key_weight"), "*value"),
    **dict.fromkeys(("tables", "entries", "counts", "merges", "slots"), "*i32"),
    **dict.fromkeys(("partial", "partial_log"), "*fp32"),
    "position": "*i64",
    **dict.fromkeys(("x",), "*value"),
    "scales": "*fp32",
    **dict.fromkeys(FLOATS, "fp32"),
}
NOT_ALIGNED = (*FLOATS, "stride_table", "slot_rows")
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape that the kernels are compiled for: a model's heads and type, and the page."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: str = "bfloat16"
    page: int = 16
    fp8_kv: bool = False

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.heads // self.kv_heads

    @property
    def block_d(self) -> int:
        """The head's size, up to a power of two."""
        return max(16, 1 << (self.head_dim - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel's needs and the instructions it is made of.

    `stack_bytes` > 0 means that registers were spilled. `wgmma` and `mma` are matrix instructions of Hopper and of
    older GPUs, `async_16` copies of 16 bytes a thread that a program does not wait for, `in_flight` copies (groups of
    them) that it leaves under way while it computes.
    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int
    wgmma: int
    mma: int
    async_16: int
    in_flight: int

    @property
    def programs_per_sm(self) -> int:
        """How many fit on a multiprocessor of sm_90 at once (registers are given out by 8 a thread)."""
        by_registers = REGISTERS // (-(-self.registers // 8) * 8 * self.threads)
        return min(32, 2048 // self.threads, by_registers, (SHARED_BYTES + 1024) // (self.shared_bytes + 1024))


def compile_attend(shape: Shape, tiling: Tiling) -> Compiled:
    """The attention kernel for a shape and a configuration."""
    constants = _constants(shape) | {
        "page": shape.page,
        "block_m": tiling.block_m,
        "block_n": tiling.block_n,
        "upcast": False,
        "precision": "ieee",
        **variant(tiling, shape.page),
    }
    return _compile(kernels.attend, shape, constants, tiling)


def compile_merge(shape: Shape, tiling: Tiling) -> Compiled:
    """The merge of partial results of that configuration."""
    rows, parts = merge_blocks(tiling)
    constants = _constants(shape) | {"block_rows": rows, "block_parts": parts}
    return _compile(kernels.merge, shape, constants)


def compile_write(shape: Shape) -> Compiled:
    """The kernel that writes keys and values to their slots."""
    constants = {
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "block_h": 1 << (shape.kv_heads - 1).bit_length(),
        "block_d": 1 << (shape.head_dim - 1).bit_length(),
        "page": shape.page,
        "emulated": False,
    }
    return _compile(kernels.write, shape, constants)


def compile_pointwise(shape: Shape, hidden: int) -> list[Compiled]:
    """The kernels of a layer's small operators: residual and norm, activation, rope and cache write."""
    block = 1 << (hidden - 1).bit_length()
    heads = {
        "kv_heads": shape.kv_heads,
        "group": shape.group,
        "block_g": 1 << (shape.group - 1).bit_length(),
        "half": shape.head_dim // 2,
        "block_d": 1 << (shape.head_dim // 2 - 1).bit_length(),
        "page": shape.page,
        "normed": True,
        "emulated": False,
    }
    return [
        _compile(kernels.add_norm, shape, {"width": hidden, "block": block}),
        _compile(kernels.gated, shape, {"width": 3 * hidden, "block": kernels.GATED_BLOCK}),
        _compile(kernels.place, shape, heads),
    ]


def compile_quantised(shape: Shape, width: int) -> Compiled:
    """The kernel that brings activations to fp8."""
    block = 1 << (width - 1).bit_length()
    constants = {"width": width, "block": block, "emulated": False}
    return _compile(kernels.quantised, shape, constants, out="fp8e4nv", warps=kernels.warps(block))


def _constants(shape: Shape) -> dict[str, Any]:
    return {
        "kv_heads": shape.kv_heads,
        "group": shape.group,
        "head_dim": shape.head_dim,
        "block_d": shape.block_d,
    }


def _compile(
    kernel: Any,
    shape: Shape,
    constants: Mapping[str, Any],
    tiling: Tiling | None = None,
    *,
    out: str | None = None,
    warps: int = 4,
) -> Compiled:
    """Compile a kernel; `out` is the type of what it writes where that is not the shape's."""
    names = list(kernel.arg_names)
    types = {name: POINTERS.get(name, "i32").replace("value", SHORT[shape.dtype]) for name in names}
    if shape.fp8_kv:
        types["kv"] = "*fp8e4nv"
    if out is not None:
        types["out"] = f"*{out}"
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = [["tt.divisibility", 16]]
    runtime = [name for name in names if name not in constants and name not in NOT_ALIGNED]
    attributes = {(names.index(name),): aligned for name in runtime}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constants), attrs=attributes)
    options: dict[str, Any] = {"num_warps": warps, "enable_fp_fusion": True}
    if tiling is not None:
        options |= {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages, "maxnreg": tiling.max_registers}
    made = triton.compile(source, target=HOPPER, options=options)
    usage, sass = _disassembled(made.asm["cubin"])
    return Compiled(
        registers=int(_found(r"REG:(\d+)", usage)),
        stack_bytes=int(_found(r"STACK:(\d+)", usage)) + int(_found(r"LOCAL:(\d+)", usage)),
        shared_bytes=made.metadata.shared,
        threads=32 * options["num_warps"],
        wgmma=len(re.findall(r"\bHGMMA\b", sass)),
        mma=len(re.findall(r"\bHMMA\b", sass)),
        async_16=len(re.findall(r"\bLDGSTS[.\w]*\.128\b", sass)),
        in_flight=max((int(n) for n in re.findall(r"cp\.async\.wait_group\s+(\d+)", made.asm["ptx"])), default=0),
    )


def _disassembled(cubin: bytes) -> tuple[str, str]:
    """The resources that a cubin needs, and its instructions, from the cuobjdump that Triton carries."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        tool = triton.knobs.nvidia.cuobjdump.path
        outputs = [
            subprocess.run([tool, option, str(file)], check=True, capture_output=True, text=True).stdout
            for option in ("-res-usage", "-sass")
        ]
    return outputs[0], outputs[1]


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"the output of cuobjdump has no {pattern}")
    return match[1]


def table() -> Iterator[str]:
    """A line a kernel, for the shapes that models have."""
    yield f"{'kernel':34}{'registers':>10}{'stack':>7}{'shared':>9}{'wgmma':>7}{'mma':>5}{'in flight':>10}{'per SM':>8}"
    for heads, kv_heads, head_dim, dtype in SHAPES:
        shape = Shape(heads, kv_heads, head_dim, dtype)
        choice = tilings(head_dim, dtype, shape.group)
        for name, tiling in (("decode", choice.decode), ("prefill", choice.prefill)):
            made = compile_attend(shape, tiling)
            label = f"{name} {heads}/{kv_heads} D{head_dim} {dtype}"
            yield (
                f"{label:34}{made.registers:>10}{made.stack_bytes:>7}{made.shared_bytes:>9}{made.wgmma:>7}{made.mma:>5}"
                f"{made.in_flight:>10}{made.programs_per_sm:>8}"
            )


SHAPES = (
    (32, 8, 128, "bfloat16"),
    (32, 32, 128, "float16"),
    (48, 8, 128, "bfloat16"),
    (64, 8, 128, "bfloat16"),
    (32, 8, 64, "bfloat16"),
    (32, 32, 80, "bfloat16"),
    (32, 1, 64, "bfloat16"),
    (32, 16, 256, "bfloat16"),
    (32, 8, 128, "float32"),
)
"""Query heads, KV heads, head size and type."""

if __name__ == "__main__":
    for line in table():
        sys.stdout.write(line + "\n")
