"""Runs compared: records to the last bit, decisions step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from scenarios.check.experiment import Breach
from simulator.results.records import Records


def differences(a: Records, b: Records) -> list[str]:
    """List the columns in which two records differ by so much as a bit."""
    found = []
    for name in ("requests", "rows", "gaps", "requeues", "calls", "lives", "transfers", "drafts"):
        left, right = getattr(a, name), getattr(b, name)
        if left is None or right is None:
            found += [name] if left is not right else []
            continue
        for field in fields(left):
            if getattr(left, field.name).tobytes() != getattr(right, field.name).tobytes():
                found.append(f"{name}.{field.name}: {getattr(left, field.name)} {getattr(right, field.name)}")
    for name in ("step_end_s", "step_used_blocks"):
        if not np.array_equal(getattr(a, name), getattr(b, name)):
            found.append(f"{name}: {getattr(a, name)} {getattr(b, name)}")
    if a.reject_reasons != b.reject_reasons:
        found.append("reject_reasons")
    return found


def first_difference(
    one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]], told: tuple[str, str]
) -> Breach | None:
    """Find the first step at which two logs of decisions differ, and in what; `told` names the two logs."""
    for left, right in zip(one, two, strict=False):
        if left == right and list(left) == list(right):
            continue
        key = next((key for key in left if left[key] != right.get(key)), "")
        what = f"{key} is {left.get(key)}{told[0]}, {right.get(key)}{told[1]}"
        return Breach.at(left, what)
    if len(one) == len(two):
        return None
    more = max(one, two, key=len)[min(len(one), len(two))]
    return Breach.at(more, f"{len(one)} steps{told[0]}, {len(two)}{told[1]}")
