"""What SGLang's server takes by the kind of a model: the host of a step, and kernels of which there are no tables.

All by public runs (aiconfigurator's silicon samples, docs/served.md), with cells left out in turn.
"""

from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.servers import Untabled
from simulator.timing.host import Host
from simulator.timing.launches import LATENT_PUBLISHED_S, has_latent_blocks

_RUNS = "SGLang 0.5 with overlap: TPOT less kernels, closed-loop runs of up to 16 users"
PLAIN = Host(
    0.31e-3,
    0.0,
    "SGLang 0.5 with overlap: one request before a mocked device (tenstorrent/tt-inference-server, issue 3560)",
)
LINEAR = Host(2.4e-3, 0.0, f"{_RUNS} of Qwen3.5 in five cells: its states are looked after in each step")
SPARSE = Host(5.0e-3, 0.0, f"{_RUNS} of GLM-5 in three cells: its indexer is prepared in each step")


def host_of(model: Model) -> Host:
    """The host of an asynchronous step."""
    if model.index_topk:
        return SPARSE
    return LINEAR if model.linear_layers else PLAIN


def untabled(model: Model, gpu: Gpu) -> Untabled | None:
    """FlashInfer's block-scaled products and experts, with which latent attention is served on Blackwell.

    Tables have DeepGEMM's. Prompts of DeepSeek take 1.8 times as long as by these from 1,024 to 8,192 tokens, at TP 4
    and 8, and no longer to launch than was published.
    """
    return Untabled(1.8, LATENT_PUBLISHED_S) if has_latent_blocks(model, gpu) else None
