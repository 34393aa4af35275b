"""The time that the encoder of images adds to a step: its operations by the GPU's datasheet.

A token of the model stands for `encoder_patches` patches of the image, each of which goes through all the encoder's
parameters: two operations a parameter. Attention among the patches of an image is left out: for 1,024 patches of width
1,280 it takes less than a tenth of what a layer's products take.
"""

from dataclasses import dataclass

from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.cost import StepShape
from simulator.timing.roofline_cost import GEMM_EFFICIENCY


@dataclass(frozen=True, slots=True)
class EncoderTime:
    """The encoder of a model, divided among `tensor_parallel` GPUs."""

    model: Model
    gpu: Gpu
    tensor_parallel: int = 1

    def s(self, shape: StepShape) -> float:
        """Seconds that a step of this shape spends on images."""
        if not shape.embeddings:
            return 0.0
        flops = self.gpu.tflops("bf16") * 1e12 * GEMM_EFFICIENCY * self.tensor_parallel
        return 2 * self.model.encoder_parameters * self.model.encoder_patches * shape.embeddings / flops
