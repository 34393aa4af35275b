"""The cost of norms and rope of latent attention in rows that time them uncompiled, and how to remove it.

aiconfigurator's collector runs the attention module outside of a server, where these fall back to chains of PyTorch's
element-wise kernels; a server compiles or fuses them. Its own notes say so: B200's rows were collected again with fused
ones, "the previous rows ran the never-in-serving native chain (+34 %)", the new ones are 9 % below a trace of a served
layer (systems/data/b200_sxm/mla/vllm/0.24.0/collection_meta.yaml). So were GB300's for vLLM 0.27. All others have the
chain: H100, H200, B300, GB200, and GB300 for vLLM 0.24.

GB300 has both, and there the difference depends on the tokens and, by rope, on the heads, whatever the precision and
the context: 39 us at one token, 55 at 32, and from a thousand on 0.020 us + 0.00076 us a head for each token. Taken
from the rows of GB200 and B300, it leaves B200's. Nothing of Hopper was measured both ways. There `SHARES` is how what
the products leave of a module exceeds what they leave of B200's, by that curve: 0.9, from one token to thousands.

    python -m calibration.makers.latent_norms DATA     # the curves, and the test on B200; DATA is systems/data

L40S and RTX PRO 6000 have rows too. Their modules run faster than the weights could be read, from L2 caches of 96 and
128 MB that hold them between two runs, as no server's do: what the norms cost there cannot be told apart from it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibration.makers.latent_rows import FILES, module_rows
from simulator.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

BOTH_WAYS = ("gb300", "0.24.0", "0.27.0")
"""The folder of the GPU that was measured both ways, and the versions with the chain and without it."""

SHARES: Mapping[str, float] = {"h100": 0.9, "h200": 0.9, "b300": 1.0, "gb200": 1.0}
"""The chain in rows of a GPU for vLLM 0.24, in those of GB300."""

BLACKWELL = ("b300", "gb200")
"""Of these, with the kernels of GB300."""

KEYS = ["dtype", "kv", "heads", "batch", "length", "tokens"]
"""What two rows of the same module have in common."""

LONGEST = {"decode": 256, "prompt": 1024}
"""Rows of longer contexts are left out: noise of the attention in them is more than the norms."""


def chain_us(root: Path, fp8_queries: bool = False) -> dict[int, tuple[Array, Array]]:
    """Microseconds of the uncompiled kernels over ascending tokens of a step, by heads: medians over all that differs.

    `fp8_queries` asks for decodes with an fp8 cache, whose queries were quantised otherwise too.
    """
    import pandas as pd

    gpu, native, fused = BOTH_WAYS
    found = []
    for kind in ("decode",) if fp8_queries else FILES:
        one, two = (module_rows(root / gpu / "mla" / "vllm" / version, kind) for version in (native, fused))
        both = one.merge(two, on=KEYS, suffixes=("", "_fused"))
        found.append(both[(both["length"] <= LONGEST[kind]) & (both["kv"] == ("fp8" if fp8_queries else "bf16"))])
    rows: pd.DataFrame = pd.concat(found)
    curves = {}
    for heads, some in rows.groupby("heads"):
        medians = (some["us"] - some["us_fused"]).groupby(some["tokens"]).median()
        us = medians.to_numpy(float)
        curves[int(str(heads))] = medians.index.to_numpy(float), us if fp8_queries else np.maximum.accumulate(us)
    return curves


def without_chain(rows: pd.DataFrame, kind: str, root: Path, gpu: str) -> pd.DataFrame:
    """Rows of a GPU without its uncompiled kernels, where it has such."""
    if gpu not in SHARES:
        return rows
    chain = np.empty(len(rows))
    for kv, of_kv in rows.groupby("kv"):
        curves = chain_us(root, kind == "decode" and kv == "fp8" and gpu in BLACKWELL)
        for heads, some in of_kv.groupby("heads"):
            tokens, us = curves[int(str(heads))]
            chain[some.index.to_numpy()] = np.interp(some["tokens"].to_numpy(float), tokens, us)
    return rows.assign(us=rows["us"] - SHARES[gpu] * chain)


def main() -> None:
    """Print the curves, and how far rows of B200 are from those of GB200 and B300 without it."""
    if len(sys.argv) != 2:
        raise InputError("no folder of sources", hint="python -m calibration.makers.latent_norms DATA")
    root = Path(sys.argv[1])
    for heads, curve in chain_us(root).items():
        for tokens, us in zip(*curve, strict=True):
            print(f"{heads:4} heads {tokens:8,.0f} tokens {us:8.1f} us")
    for gpu, folder in (("gb200", "gb200"), ("b300", "b300_sxm")):
        for kind in FILES:
            known = module_rows(root / "b200_sxm/mla/vllm/0.24.0", kind)
            rows = module_rows(root / folder / "mla/vllm/0.24.0", kind)
            words = []
            for each in (rows, without_chain(rows, kind, root, gpu)):
                both = each.merge(known, on=KEYS, suffixes=("", "_known"))
                errors = both["us"] / both["us_known"] - 1.0
                words.append(f"{100 * errors.median():+.1f} % ({100 * errors.abs().quantile(0.95):.1f})")
            print(f"{kind} {gpu}, of b200: as measured {words[0]}, without {words[1]}: median (95 % within)")


if __name__ == "__main__":
    main()
