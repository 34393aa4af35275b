"""GPUs by the figures that matter to serving: memory, bandwidths, compute, links, price.

The figure of each column:

- `memory_gib` is the total that the CUDA (HIP) driver reports to torch, of which vLLM's `gpu_memory_utilization` is a
  share, as seen in public start-up logs. It lies up to 3 % below the capacity on the box, 8 % where GDDR6 keeps its
  ECC bits in it, and varies by 0.1 GiB with the driver.
- `bandwidth_gb_s` and `bf16_tflops` are the datasheet's peaks, the latter dense (without 2:4 sparsity) with float32
  accumulation. The fraction that kernels reach belongs to the cost model.
- `fp8_tflops` and `fp4_tflops` are the same for matrices in these precisions, dense too; none where the GPU has no such
  units, and weights of that width are widened to bf16 on the way (as Marlin kernels do).
- `host_link_gb_s` is what large copies between pinned host memory and the device reach, in one direction: about 25 of
  PCIe 4.0 x16's nominal 32, about 55 of PCIe 5.0 x16's 64. Of NVLink-C2C's 225 (900 both ways for a Grace and its two
  GPUs) it is taken to be 200: not measured. Swapping takes it without a discount.
- `link_gb_s` is the nominal rate between GPUs of one node, per GPU and direction: NVLink's or Infinity Fabric's
  datasheet total halved, or else PCIe's nominal.
- `l2_mib` is the datasheet's or architecture whitepaper's L2 cache (Blackwell's data centre GPUs: as the driver says).
- `usd_per_hour` is a typical on-demand price of a GPU cloud, rounded: an order of magnitude, to be replaced by yours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Unit, doc

from simulator.errors import InputError
from simulator.parameters import check_choice, fields_from


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; the module's docstring defines the columns. `source` names the datasheet."""

    name: Annotated[str, doc("name in reports")]
    memory_gib: Annotated[float, doc("memory as the driver reports it")]
    bandwidth_gb_s: Annotated[float, doc("memory bandwidth, the datasheet's peak")]
    bf16_tflops: Annotated[float, doc("dense bf16 compute, the datasheet's peak")]
    host_link_gb_s: Annotated[float, doc("copies between pinned host memory and the GPU, one direction")]
    link_gb_s: Annotated[float, doc("link to the other GPUs of the node, per GPU and direction")]
    usd_per_hour: Annotated[float | None, doc("price of a GPU; null: unknown"), Unit("USD/h")]
    source: Annotated[str, doc("where the figures come from")]
    fp8_tflops: Annotated[float | None, doc("dense fp8 compute; null: none, so bf16's is taken"), Unit("TFLOP/s")] = (
        None
    )
    fp4_tflops: Annotated[float | None, doc("dense fp4 compute; null: none, so bf16's is taken"), Unit("TFLOP/s")] = (
        None
    )
    l2_mib: Annotated[
        float, doc("size of the L2 cache; 0: unknown, and no data counts as cached there"), Unit("MiB")
    ] = 0.0

    @property
    def link_gpus(self) -> int:
        """GPUs that its links connect: the 72 of a rack with GB200 or GB300 (NVL72), else the 8 of a server."""
        return 72 if self.name.startswith("gb") else 8

    @property
    def memory_bytes(self) -> int:
        """`memory_gib` in bytes."""
        return round(self.memory_gib * 2**30)

    def tflops(self, precision: str) -> float:
        """The peak for matrices multiplied in one of `Model.matmul_dtype`: bf16's where the GPU has no units for it."""
        own = {
            "fp8": self.fp8_tflops, "fp8_block": self.fp8_tflops, "nvfp4": self.fp4_tflops, "fp4": self.fp4_tflops,
        }.get(precision)  # fmt: skip
        return self.bf16_tflops if own is None else own


_PCIE_4_COPY, _PCIE_5_COPY, _C2C_COPY = 25.0, 55.0, 200.0
_PCIE_4, _PCIE_5 = 32.0, 64.0

_TABLE = (
    Gpu(
        "h200", 139.8, 4800, 989.4, _PCIE_5_COPY, 450, 3.8,
        "NVIDIA H200 Tensor Core GPU datasheet, SXM", 1978.9, l2_mib=50,
    ),
    Gpu(
        "h100", 79.2, 3350, 989.4, _PCIE_5_COPY, 450, 3.0,
        "NVIDIA H100 Tensor Core GPU datasheet, SXM5 80 GB", 1978.9, l2_mib=50,
    ),
    Gpu("h20", 95.1, 4000, 148, _PCIE_5_COPY, 450, None, "NVIDIA H20 product brief, 96 GB", 296, l2_mib=60),
    Gpu(
        "b200", 178.3, 8000, 2250, _PCIE_5_COPY, 900, 5.5,
        "NVIDIA HGX B200 datasheet, per GPU", 4500, 9000, l2_mib=126,
    ),
    Gpu(
        "b300", 267.69, 8000, 2250, _PCIE_5_COPY, 900, None,
        "NVIDIA HGX B300 datasheet, per GPU", 4500, 13500, l2_mib=126,
    ),
    Gpu(
        "gb200", 184.31, 8000, 2500, _C2C_COPY, 900, None,
        "NVIDIA GB200 NVL72 datasheet, per GPU", 5000, 10000, l2_mib=126,
    ),
    Gpu(
        "gb300", 276.5, 8000, 2500, _C2C_COPY, 900, None,
        "NVIDIA GB300 NVL72 datasheet, per GPU", 5000, 15000, l2_mib=126,
    ),
    Gpu(
        "a100-80gb", 79.15, 2039, 312, _PCIE_4_COPY, 300, 1.8,
        "NVIDIA A100 Tensor Core GPU datasheet, SXM4 80 GB", l2_mib=40,
    ),
    Gpu(
        "a100-40gb", 39.4, 1555, 312, _PCIE_4_COPY, 300, 1.3,
        "NVIDIA A100 Tensor Core GPU datasheet, SXM4 40 GB", l2_mib=40,
    ),
    Gpu("l40s", 44.4, 864, 362.05, _PCIE_4_COPY, _PCIE_4, 1.0, "NVIDIA L40S datasheet", 733, l2_mib=96),
    Gpu("l4", 22.0, 300, 121, _PCIE_4_COPY, _PCIE_4, 0.7, "NVIDIA L4 datasheet", 242.5, l2_mib=48),
    Gpu("a10g", 22.06, 600, 70, _PCIE_4_COPY, _PCIE_4, 1.0, "NVIDIA A10G datasheet (AWS g5)", l2_mib=6),
    Gpu(
        "rtx-4090", 23.52, 1008, 165.2, _PCIE_4_COPY, _PCIE_4, 0.7,
        "NVIDIA Ada GPU architecture whitepaper, RTX 4090", 330.3, l2_mib=72,
    ),
    Gpu(
        "rtx-5090", 31.36, 1792, 209.5, _PCIE_5_COPY, _PCIE_5, 0.9,
        "NVIDIA RTX Blackwell GPU architecture whitepaper, RTX 5090", 419, 1676, l2_mib=96,
    ),
    # The Workstation Edition of the same name has 1792 GB/s.
    Gpu(
        "rtx-pro-6000", 94.97, 1597, 503.8, _PCIE_5_COPY, _PCIE_5, 1.8,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet; compute: RTX PRO Blackwell whitepaper",
        1007.6, 2015.2, l2_mib=128,
    ),
    Gpu("mi300x", 191.98, 5300, 1307.4, _PCIE_5_COPY, 448, 2.5, "AMD Instinct MI300X datasheet", 2614.9),
    Gpu("mi325x", 255.98, 6000, 1307.4, _PCIE_5_COPY, 448, 2.8, "AMD Instinct MI325X datasheet", 2614.9),
)  # fmt: skip

GPUS: dict[str, Gpu] = {gpu.name: gpu for gpu in _TABLE}
"""The built-in GPUs by name, in the order in which they are listed."""


REQUIRED = ("memory_gib", "bandwidth_gb_s", "bf16_tflops")  # the figures that a mapping without a `base` must give


def find_gpu(name: str) -> Gpu:
    """The built-in GPU of that name; InputError with the nearest names otherwise."""
    return GPUS[check_choice(name, GPUS, "gpu")]


def gpu_of(given: str | Mapping[str, object]) -> Gpu:
    """The GPU of a scenario: `find_gpu` of a name, `custom_gpu` of a mapping."""
    return find_gpu(given) if isinstance(given, str) else custom_gpu(given)


def custom_gpu(mapping: Mapping[str, object]) -> Gpu:
    """A GPU from a mapping (the YAML's `hardware.gpu: {...}`), keyed like the fields of `Gpu`.

    With `base: NAME` the built-in GPU of that name gives what the mapping leaves out. Without it
    those of `REQUIRED` must be there; the links default to PCIe 4.0 x16 and the price to none.
    InputError on unknown, missing, mistyped or non-positive values.
    """
    defaults = {
        "name": "custom",
        "host_link_gb_s": _PCIE_4_COPY,
        "link_gb_s": _PCIE_4,
        "usd_per_hour": None,
        "source": "the scenario",
    }
    custom = fields_from(Gpu, mapping, defaults, find_gpu, "gpu")
    for field in (*REQUIRED, "host_link_gb_s", "link_gb_s", "fp8_tflops", "fp4_tflops"):
        if (value := getattr(custom, field)) is not None and value <= 0:
            raise InputError(f"gpu: {field} must be more than 0, not {value}")
    for field in ("l2_mib", "usd_per_hour"):
        if (value := getattr(custom, field)) is not None and value < 0:
            raise InputError(f"gpu: {field} must not be negative, but is {value}")
    return custom
