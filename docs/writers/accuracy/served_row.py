"""A run of a real server, as the sample of aiconfigurator-core has it."""

from dataclasses import dataclass

NODE = 8  # GPUs that NVLink connects where it is no rack (a name of `_sxm`)
QWEN = "Qwen/Qwen3-32B"
"""Runs of this model on H100 are NVIDIA's own, but for Dynamo's recipes, which have a date."""
INFERENCEX = ((1024, 1024), (1024, 8192), (8192, 1024))
"""The lengths of InferenceX's runs. Other rows are of NVIDIA's own clients, with fixed lengths."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run: what ran, how, and what was measured (milliseconds; NaN where it was not)."""

    name: str
    engine: str  # the sample's word
    version: str
    model: str
    system: str
    precision: str
    isl: int
    osl: int
    concurrency: int
    tensor_parallel: int
    data_parallel: int  # of attention
    moe_tensor: int
    moe_expert: int
    ttft_ms: float
    tpot_ms: float
    measured: str = ""  # date; '' where it is not known
    drafts: bool = False  # though the row does not say so
    cached: bool = False  # prompts of this server were found in a cache, by another row

    @property
    def is_inferencex(self) -> bool:
        """Return whether InferenceX's client made the run."""
        return (self.isl, self.osl) in INFERENCEX and not self.is_nvidias

    @property
    def is_nvidias(self) -> bool:
        """Return whether the run is one of NVIDIA's of Qwen3-32B on H100: fixed lengths, no date."""
        return self.model == QWEN and self.system == "h100_sxm" and not self.measured

    @property
    def cell(self) -> str:
        """Engine, model, GPU and precision."""
        return " ".join((self.engine, self.model.rpartition("/")[2], self.system, self.precision))
