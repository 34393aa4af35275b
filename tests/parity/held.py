"""Our decisions held against recorded ones of a real scheduler."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Step = Mapping[str, Any]

COLUMNS = (
    "scheduled", "preempted", "finished", "admitted", "waiting", "running", "num_free_blocks", "num_free_blocks_end",
)  # fmt: skip
UNORDERED = ("finished", "running", "loading", "sent", "received")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a gzipped file of JSON Lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def working(steps: Iterable[Step]) -> list[Step]:
    """The steps without those that schedule, finish and preempt nothing."""
    return [step for step in steps if step["scheduled"] or step["finished"] or step["preempted"]]


def first_difference(
    ours: Sequence[Step],
    theirs: Sequence[Step],
    keys: Callable[[Step, Step], Iterable[str]],
    times: Sequence[str] = ("t_end",),
    unordered: Sequence[str] = UNORDERED,
) -> str | None:
    """Where the working steps part, by the keys that are asked for of two steps; None if they never do."""
    ours, theirs = working(ours), working(theirs)
    for number, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        for key in keys(a, b):
            if (sorted(a[key]) != sorted(b[key])) if key in unordered else (a.get(key) != b[key]):
                return f"step {number}, {key}: ours {a.get(key)}, theirs {b[key]}"
        if list(a["scheduled"]) != list(b["scheduled"]):
            return f"step {number}, order: ours {list(a['scheduled'])}, theirs {list(b['scheduled'])}"
        for time in times:
            if abs(a[time] - b[time]) > 1e-6:
                return f"step {number}, {time}: ours {a[time]} s, theirs {b[time]} s"
    return None if len(ours) == len(theirs) else f"{len(ours)} steps, theirs {len(theirs)}"


def differences(items: Iterable[T], difference: Callable[[T], str | None]) -> Iterator[str]:
    """The cases that are decided otherwise, and how; one that breaks counts too, as a changed rule may break all."""
    for number, item in enumerate(items):
        try:
            found = difference(item)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        if found is not None:
            yield f"case {number}: {found}"
