"""The length and the priority of a call's answer, taken from the scenario's own requests."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from scenarios.assembly.workloads import build_workload
from scenarios.schema.scenario import Scenario
from scenarios.streams import stream
from simulator.client import uniform

_POOL = 2048  # requests drawn of a closed loop


class Lengths:
    """Draws the lengths of answers, before any cap, from those of a class or of all requests.

    Equal seeds and keys make equal lengths.
    """

    def __init__(self, scenario: Scenario) -> None:
        workload = build_workload(scenario)
        parts = [workload, *(loop.draw(_POOL) for loop in workload.loops)]
        self.classes = tuple(dict.fromkeys(name for part in parts for name in part.class_names))
        self._priorities = {
            name: int(part.priority[part.class_index == index][:1].sum())
            for part in reversed(parts)
            for index, name in enumerate(part.class_names)
        }
        self._of_all = np.sort(np.concatenate([part.output_tokens for part in parts]))
        of_class = {name: [part for part in parts if name in part.class_names] for name in self.classes}
        self._of_class = {
            name: np.sort(np.concatenate([p.output_tokens[p.class_index == p.class_names.index(name)] for p in own]))
            for name, own in of_class.items()
        }
        self._stream = int(stream(scenario.seed, "", "answers").integers(2**63))

    def priority(self, class_name: str | None) -> int:
        """Return the priority of the first request of a class; 0 for no class."""
        return 0 if class_name is None else self._priorities[class_name]

    def draw(self, key: int, class_name: str | None) -> int:
        """Return the length of an answer in tokens, at least 1."""
        of_class = () if class_name is None else self._of_class[class_name]
        lengths = of_class if len(of_class) else self._of_all
        return max(1, int(lengths[int(uniform(self._stream, key) * len(lengths))]))


def key_of(*what: object) -> int:
    """Return a key that belongs to these values."""
    return int.from_bytes(sha256(repr(what).encode("utf-8", "surrogatepass")).digest()[:8], "little")
