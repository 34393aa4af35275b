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
"""

from simulator.hardware.models import Model

DENSE_S = 16.6e-3 / 36
EXPERTS_S = (DENSE_S + 82.6e-3 / 61) / 2
LATENT_S = 2.0e-3
LINEAR_S = 160e-3 / 60


def layer_launch_s(model: Model) -> float:
    """Return the seconds that a host takes to launch a layer of the model, in the mean of its layers."""
    if model.linear_layers:
        return LINEAR_S
    if model.kv_lora_rank:
        return LATENT_S
    return EXPERTS_S if model.experts else DENSE_S
