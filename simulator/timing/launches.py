"""Time in which a host launches the kernels of a step one by one, where no CUDA graph holds them.

A step of few tokens on many GPUs is over sooner than its kernels are launched: it takes as long as the host does. What
a layer takes to launch was published for three kinds:

- attention and a dense MLP: 16.6 ms for 36 layers (Qwen3-4B, 129 tokens; 5.7 ms as a graph; wejoncy/sfllm,
  pull request 46);
- latent attention and experts: 82.6 ms for 61 layers (DeepSeek-V3, one token; 23.1 ms as a graph; sgl-project/sglang,
  pull request 12160);
- gated delta net and experts: 160 ms for 60 layers (Qwen3.5, the same from 128 to 1,024 tokens; uw-syfi/vibesys,
  pull request 421).

Plain attention with experts is taken to lie in the middle of the first two. Prompts of more than a few tokens take
another path through latent attention, with more kernels: `LATENT_S` is by public runs of DeepSeek, Kimi and GLM-5
under three engines (docs/served.md).

Experts in block-scaled fp8 take more kernels: activations are quantised, scales laid out anew, and tokens sorted and
padded for grouped products (DeepGEMM; sgl-project/sglang, pull requests 3893 and 33342). What that adds to a layer,
`BLOCKS_S`, was not published: it is by public runs of DeepSeek, Qwen3.5 and GLM-5 under SGLang and TensorRT-LLM, with
each cell left out in turn. vLLM, which compiles the layers of a prompt, shows nothing of it (MiniMax).
"""

from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model

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
