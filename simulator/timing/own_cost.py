"""A user's own cost model: `path.py:Class`, with `step_s(shape)` and what else it wants."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.hardware.gpus import Gpu
from simulator.hardware.models import Model
from simulator.parameters import check_given, named_class, parameters_of, split_class
from simulator.timing.cost import StepCounts, StepShape

_CONTRACT = "a cost model is a class with step_s(shape) -> seconds (see simulator/timing/cost.py)"


class OwnCost:
    """The user's model, checked at every step. Implements CostModel.

    `decode_run_s` of the user's own is taken where there is one; else every step of a run is asked for by itself.
    """

    def __init__(self, model: Any, file: str) -> None:
        self._model = model
        self._file = file
        self._run = getattr(model, "decode_run_s", None)
        self.wants_context_stats = bool(getattr(model, "wants_context_stats", False))

    def step_s(self, shape: StepShape) -> float:
        return self._seconds(self._model.step_s(shape), shape) if shape.tokens > 0 else 0.0

    def decode_run_s(self, shape: StepShape, repeat: int) -> list[float]:
        if self._run is None:
            return [self.step_s(shape.later(step)) for step in range(repeat)]
        found = list(self._run(shape, repeat))
        if len(found) != repeat or found[0] != self._model.step_s(shape):
            what = f"decode_run_s and step_s differ for {shape}, or there are not {repeat} steps"
            raise InputError(what, file=self._file, hint="leave decode_run_s out: step_s is then asked for every step")
        return [self._seconds(seconds, shape) for seconds in found]

    def remarks(self, steps: StepCounts) -> Sequence[str]:
        told = getattr(self._model, "remarks", None)
        return () if told is None else tuple(told(steps))

    def _seconds(self, value: object, shape: StepShape) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < inf:
            return float(value)
        raise InputError(f"a step takes {value!r} s: {shape}", file=self._file, hint="finite seconds above 0")


def load_own_cost(
    name: str, parameters: Mapping[str, object], model: Model, gpu: Gpu, tensor_parallel: int, base: Path | None = None
) -> OwnCost:
    """Make the cost model that `path.py:Class` names, with its parameters.

    A class with a method `start` is given the model, the GPU and the number of GPUs first. Raises InputError where
    there is no such class, and for a parameter that is unknown, missing or out of its limits.
    """
    cls: Callable[..., Any] = named_class("cost model", name, __package__, base)
    path, _ = split_class(name)
    file = str(Path(base or ".") / path)
    if not callable(getattr(cls, "step_s", None)):
        raise InputError(f"{split_class(name)[1]} is no cost model", file=file, hint=_CONTRACT)
    check_given("cost model", name, parameters_of(cls), parameters)
    try:
        own = cls(**parameters)
        if callable(start := getattr(own, "start", None)):
            start(model, gpu, tensor_parallel)
    except Exception as error:  # whatever a user's class raises is the user's to mend
        raise InputError(f"cannot be made: {type(error).__name__}: {error}", file=file, hint=_CONTRACT) from error
    return OwnCost(own, file)
