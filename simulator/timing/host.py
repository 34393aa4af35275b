"""Host time of a step, as far as the GPU waits for it: its own work, and launches of kernels outside of CUDA graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.cost import CostModel, StepCounts, StepFloor, StepShape, check_seconds, floors_of

# Scheduling, preparing inputs and taking up results.


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds (finite, 0 or more) by which the host holds up each step, and for each request in it; their source."""

    step_s: float = 0.0
    per_seq_s: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        check_seconds(self, "host", "step_s", "per_seq_s")

    def s(self, seqs: int) -> float:
        """Seconds of a step with so many requests."""
        return self.step_s + self.per_seq_s * seqs


@dataclass(frozen=True, slots=True)
class WithHost:
    """A cost model that knows no host, with a host on every step. Implements CostModel."""

    cost: CostModel
    host: Host

    @property
    def wants_context_stats(self) -> bool:
        return self.cost.wants_context_stats

    def step_s(self, shape: StepShape) -> float:
        return self.cost.step_s(shape) + self.host.s(shape.decode_seqs + shape.prefill_seqs) if shape.tokens else 0.0

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        added_s = self.host.s(shape.decode_seqs)
        return [seconds + added_s for seconds in self.cost.decode_run_s(shape, repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """Those of the cost model, with the host's time."""
        host = StepFloor(self.host.step_s, row=self.host.per_seq_s)
        return [floor.plus(host) for floor in floors_of(self.cost, most_tokens)]


# Time in which a host launches the kernels of a step one by one, where no CUDA graph holds them.
#
# A step of few tokens on many GPUs is over sooner than its kernels are launched: it takes as long as the host does.
# What a layer takes to launch was published for three kinds:
#
# - attention and a dense MLP: 16.6 ms for 36 layers (Qwen3-4B, 129 tokens; 5.7 ms as a graph; wejoncy/sfllm, pull
# request 46);
# - latent attention and experts: 82.6 ms for 61 layers (DeepSeek-V3, one token; 23.1 ms as a graph;
# sgl-project/sglang, pull request 12160);
# - gated delta net and experts: 160 ms for 60 layers (Qwen3.5, the same from 128 to 1,024 tokens; uw-syfi/vibesys,
# pull request 421).
#
# Plain attention with experts is taken to lie in the middle of the first two. Prompts of more than a few tokens
# take another path through latent attention, with more kernels: `LATENT_S` is by public runs of DeepSeek, Kimi and
# GLM-5 under three engines (docs/served.md).
#
# Experts in block-scaled fp8 take more kernels: activations are quantised, scales laid out anew, and tokens sorted
# and padded for grouped products (DeepGEMM; sgl-project/sglang, pull requests 3893 and 33342). What that adds to a
# layer, `BLOCKS_S`, was not published: it is by public runs of DeepSeek, Qwen3.5 and GLM-5 under SGLang and
# TensorRT-LLM, with each cell left out in turn. vLLM, which compiles the layers of a prompt, shows nothing of it
# (MiniMax).

DENSE_S = 16.6e-3 / 36
LATENT_PUBLISHED_S = 82.6e-3 / 61
EXPERTS_S = (DENSE_S + LATENT_PUBLISHED_S) / 2
LATENT_S = 2.0e-3
LINEAR_S = 160e-3 / 60
BLOCKS_S = 1.5e-3
BLOCKS_ON_BLACKWELL_S = 0.6e-3


def layer_launch_s(model: Model, gpu: Gpu, *, compiled: bool = False) -> float:
    """Return the seconds that a host takes to launch a layer of the model, in the mean of its layers.

    `compiled`: the server compiles the layers of prompts.
    """
    if model.linear_layers:
        found = LINEAR_S
    elif model.kv_lora_rank:
        found = LATENT_S
    else:
        found = EXPERTS_S if model.experts else DENSE_S
    if compiled or not _has_blocks(model):
        return found
    return found + (BLOCKS_ON_BLACKWELL_S if _is_blackwell(gpu) else BLOCKS_S)


def has_latent_blocks(model: Model, gpu: Gpu) -> bool:
    """Return whether latent attention with block-scaled experts is served on Blackwell: engines differ in kernels."""
    return bool(model.kv_lora_rank) and not model.index_topk and _has_blocks(model) and _is_blackwell(gpu)


def _has_blocks(model: Model) -> bool:
    return bool(model.experts) and model.experts_multiplied_in == "fp8_block"


def _is_blackwell(gpu: Gpu) -> bool:
    return gpu.fp4_tflops is not None
