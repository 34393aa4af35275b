"""A cost model of one's own: the seconds of a step, from its shape.

    batchlab run quickstart --set "cost={kind: ./my_cost.py:MyCost}"
    batchlab run quickstart --set "cost={kind: ./my_cost.py:MyCost, efficiency: 0.8}"

A cost model is a class. Its fields are its parameters: keys of `cost:` fill them. `step_s(shape)` returns the seconds
of one step and depends on the shape alone. `shape` has the requests that decode (`decode_seqs`), their KV tokens after
the step (`decode_context`), the tokens of prompt chunks (`prefill_tokens`), and more: `simulator/timing/cost.py` names
every count. `start` is optional: it is given the model, the GPU and the number of GPUs before the run.

This one takes the larger of two times, reading memory and computing, as a roofline does.
"""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Gt, Le, doc

from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.timing.cost import StepShape


@dataclass(slots=True)
class MyCost:
    """The larger of the times to read weights and KV cache and to compute, and a fixed time for every step."""

    base_s: Annotated[float, Gt(0), doc("time of every step")] = 0.002
    efficiency: Annotated[float, Gt(0), Le(1), doc("share of the GPU's peaks that is reached")] = 0.7
    weights_s: float = field(default=0.0, init=False)
    token_s: float = field(default=0.0, init=False)
    context_token_s: float = field(default=0.0, init=False)

    def start(self, model: Model, gpu: Gpu, tensor_parallel: int) -> None:
        """Take the figures of model and GPUs; a token takes two operations for each parameter."""
        bytes_a_second = gpu.bandwidth_gb_s * 1e9 * tensor_parallel * self.efficiency
        self.weights_s = model.num_parameters * model.dtype_bytes / bytes_a_second
        self.context_token_s = model.kv_bytes_per_token() / bytes_a_second
        self.token_s = 2 * model.num_parameters / (gpu.bf16_tflops * 1e12 * tensor_parallel * self.efficiency)

    def step_s(self, shape: StepShape) -> float:
        """Seconds of one step."""
        reads_s = self.weights_s + self.context_token_s * shape.context
        return self.base_s + max(reads_s, self.token_s * shape.tokens)
