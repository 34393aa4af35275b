"""The roofline of a model of which some layers see a window of the context alone (gpt-oss, Gemma 3).

A request's keys in such a layer are its context up to the window. A step's shape has the sum of the contexts, so those
of its decodes are taken as equal: of unequal ones fewer keys are seen, and the step is a little shorter than here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.hardware.stages import Stage
from simulator.timing.cost import StepCounts, StepShape
from simulator.timing.floor import StepFloor
from simulator.timing.roofline_cost import Floats, Roofline


@dataclass(frozen=True, slots=True)
class WindowedRoofline:
    """Step costs of `cost.model`, whose windows are those of its layers. Implements CostModel."""

    cost: Roofline
    _whole: float = field(init=False, repr=False, compare=False)  # the share of layers that see all
    _window: int = field(init=False, repr=False, compare=False)

    wants_context_stats = False

    def __post_init__(self) -> None:
        model = self.cost.model
        object.__setattr__(self, "_whole", 1.0 - model.windowed_layers / model.attention_layers)
        object.__setattr__(self, "_window", model.sliding_window)

    def step_s(self, shape: StepShape) -> float:
        return self.cost.step_s(self._seen(shape))

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        return [self.step_s(shape.later(steps)) for steps in range(repeat)]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        return self.cost.remarks(steps)

    def floors(self, most_tokens: int) -> list[StepFloor]:
        """Lines below: of the layers that see all."""
        return [
            floor._replace(
                decode_context=self._whole * floor.decode_context,
                prefill_context=self._whole * floor.prefill_context,
                pair=self._whole * floor.pair,
            )
            for floor in self.cost.floors(most_tokens)
        ]

    def stage(self, stage: Stage) -> "WindowedRoofline | Roofline":
        """The cost of a stage of the model, which may have layers of one kind alone."""
        of_stage = self.cost.stage(stage)
        return WindowedRoofline(of_stage) if of_stage.model.windowed_layers else of_stage

    def by_resource_s(
        self, tokens: Floats, rows: Floats, decode_context: Floats, prefill_tokens: Floats, pairs: Floats
    ) -> dict[str, Floats]:
        """As `Roofline.by_resource_s`, which counts windows itself."""
        return self.cost.by_resource_s(tokens, rows, decode_context, prefill_tokens, pairs)

    def _seen(self, shape: StepShape) -> StepShape:
        """The shape with the keys and pairs that are seen in the mean layer, whole numbers of them."""
        decodes = shape.decode_seqs * self._window
        chunks = shape.prefill_seqs * self._window + shape.prefill_tokens
        return shape._replace(
            decode_context=self._mean(shape.decode_context, decodes),
            prefill_context=self._mean(shape.prefill_context, chunks),
            prefill_pairs=self._mean(shape.prefill_pairs, shape.prefill_tokens * self._window),
        )

    def _mean(self, whole: int, within: int) -> int:
        """The mean over the layers of a count, and of the same within the window."""
        return whole if whole <= within else round(self._whole * whole + (1.0 - self._whole) * within)
