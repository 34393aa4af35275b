"""A metric: its key, its unit, which way is better, what values are possible, how it is computed and written."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from simulator.metrics.measured_sample import Sample

# Write a share in per cent.


def percent(share: float | None, digits: int | None = None, *, signed: bool = False) -> str:
    """A share as text: 93 %, +1.2 %. A dash stands for none.

    Without `digits` it is a whole number from 1 % on, and has one figure below that.
    """
    if share is None or not math.isfinite(share):
        return "-"
    value = 100 * share
    if digits is None and 0 < abs(value) < 1:
        return f"{value:+.1g} %" if signed else f"{value:.1g} %"
    return f"{value:{'+' if signed else ''},.{digits or 0}f} %"


Value = float | int | bool | None  # None stands for what is undefined

FRACTION, FLAG, MS, REQUESTS = "fraction", "flag", "ms", "requests"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of summary.json.

    `unit` is that of the value; `FRACTION` is a share from 0 to 1 and `FLAG` yes or no. `better` is +1 where more is
    better, -1 where less is, 0 where neither. `definition` and `remark` are sentences for people, `title` stands above
    a column. `of` works it out from a sample; None where the value needs more than a run's records, such as a price.
    `by_run` and `by_class` say whether it is a metric of a run, of a class, or of both. With `is_rare` a run that has
    no value of it does not name it.
    """

    key: str
    title: str
    unit: str
    definition: str
    of: Callable[[Sample], Value] | None
    better: int = 0
    remark: str = ""
    by_run: bool = True
    by_class: bool = False
    is_rare: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value possible: nothing that is measured here is negative."""
        return (0.0, 1.0) if self.unit in (FRACTION, FLAG) else (0.0, math.inf)
