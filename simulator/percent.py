"""Write a share in per cent."""

import math


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
