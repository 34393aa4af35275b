"""The shipped tables of kernels, made by `calibration.tabulate`.

Their root is the folder `systems/data` of the wheel aiconfigurator-core (PyPI), or one that holds `GPU/vllm_VERSION` of
plain files, or one that holds these in a folder `aiconfigurator_kernels`.
"""

from collections.abc import Mapping
from pathlib import Path

from calibration.sources import Source, find_source
from calibration.tabulate import tabulate, write_tables
from simulator.errors import InputError

WHEEL = "0.12.0"
"""The release of aiconfigurator-core that the shipped tables are made of."""

DATA_CENTRE = {
    "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm", "gb200": "gb200", "gb300": "gb300",
}  # fmt: skip
"""GPUs whose tables of SGLang and TensorRT-LLM are shipped, and their folders in the source."""

SHIPPED: Mapping[str, str] = {
    "h100-vllm-0.19": "h100_sxm/vllm_0.19.0",
    "h100-vllm-0.24": "h100_sxm/vllm_0.24.0",
    "h200-vllm-0.18": "h200_sxm/vllm_0.18.0",
    "h200-vllm-0.24": "h200_sxm/vllm_0.24.0",
    "a100-80gb-vllm-0.14": "a100_sxm/vllm_0.14.0",
    "b200-vllm-0.24": "b200_sxm/vllm_0.24.0",
    "b300-vllm-0.24": "b300_sxm/vllm_0.24.0",
    "gb200-vllm-0.24": "gb200/vllm_0.24.0",
    "gb300-vllm-0.24": "gb300/vllm_0.24.0",
    "l40s-vllm-0.24": "l40s/vllm_0.24.0",
    "rtx-pro-6000-vllm-0.24": "rtx_pro_6000_server/vllm_0.24.0",
    **{f"{gpu}-sglang-0.5": f"{place}/sglang_0.5.14" for gpu, place in DATA_CENTRE.items()},
    **{f"{gpu}-trtllm-1.3": f"{place}/trtllm_1.3.0rc20" for gpu, place in DATA_CENTRE.items()},
}
"""The tables that come with batchlab, and what they are made of, as GPU/ENGINE_VERSION whatever the source's layout."""


def shipped_source(root: Path, place: str) -> Source | None:
    """The source of shipped tables (`GPU/ENGINE_VERSION`) below a root of either layout; None where it has none."""
    gpu, _, tail = place.partition("/")
    engine, _, version = tail.partition("_")
    for folder, asked in ((root / "aiconfigurator_kernels" / place, ""), (root / place, ""), (root / gpu, version)):
        try:
            return find_source(folder, asked, engine)
        except InputError:
            continue
    return None


def make(root: Path, folder: Path, name: str) -> Path | None:
    """Make shipped tables again, in `folder / "tables"`; None where there is no source of them below `root`."""
    source = shipped_source(root, SHIPPED[name])
    if source is None:
        return None
    path = folder / "tables" / f"{name}.json.gz"
    write_tables(tabulate(source, name, release=WHEEL), path)
    return path


NAMES = tuple(SHIPPED)
