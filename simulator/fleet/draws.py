"""Random numbers of a router: few calls of numpy, the same numbers however they are asked for."""

from dataclasses import dataclass, field

import numpy as np

_PIECE = 4096  # drawn at a time


class Draws:
    """Uniform random choices from one stream."""

    __slots__ = ("_generator", "_next", "_uniform")

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._uniform: list[float] = []
        self._next = 0

    def below(self, count: int) -> int:
        """A whole number from 0 to before `count`, each as likely as the others."""
        return int(self.uniform() * count)

    def uniform(self) -> float:
        """A number from 0 to before 1."""
        if self._next == len(self._uniform):
            self._uniform = self._generator.random(_PIECE).tolist()
            self._next = 0
        drawn = self._uniform[self._next]
        self._next += 1
        return drawn

    def several(self, wanted: int, count: int) -> list[int]:
        """`wanted` different whole numbers from 0 to before `count`, in random order; all where there are no more."""
        if wanted < count // 2:
            found: list[int] = []
            while len(found) < wanted:
                drawn = self.below(count)
                if drawn not in found:
                    found.append(drawn)
            return found
        left = list(range(count))
        return [left.pop(self.below(len(left)) if len(left) > 1 else 0) for _ in range(min(wanted, count))]


@dataclass(slots=True)
class Drawing:
    """A router that draws random numbers."""

    _draws: Draws = field(init=False, repr=False)

    def start(self, draws: Draws) -> None:
        """The random numbers of the run."""
        self._draws = draws
