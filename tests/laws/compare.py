"""Records compared to the last bit."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from simulator.results.records import GapColumns, Records, RequestColumns, RequeueColumns, RowColumns

Columns = RequestColumns | RowColumns | GapColumns | RequeueColumns


def differences(a: Records, b: Records) -> list[str]:
    """The columns in which two records differ by so much as a bit."""
    found = []
    for name in ("requests", "rows", "gaps", "requeues"):
        left: Columns = getattr(a, name)
        right: Columns = getattr(b, name)
        for field in fields(left):
            if getattr(left, field.name).tobytes() != getattr(right, field.name).tobytes():
                found.append(f"{name}.{field.name}: {getattr(left, field.name)} {getattr(right, field.name)}")
    for name in ("step_end_s", "step_used_blocks"):
        if not np.array_equal(getattr(a, name), getattr(b, name)):
            found.append(f"{name}: {getattr(a, name)} {getattr(b, name)}")
    if a.reject_reasons != b.reject_reasons:
        found.append("reject_reasons")
    return found
