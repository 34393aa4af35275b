"""Where two schedulers part: one step's decisions compared, and the first difference in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PLANNED = {  # our key -> theirs; in the order in which a plan follows from what came before
    "preempted": "preempted",
    "scheduled": "scheduled",
    "spec": "spec",
    "admitted": "admitted",
    "running": "running",
    "waiting": "waiting",
    "num_free_blocks": "free",
}
_WORDS = {
    "preempted": "preempts {}",
    "scheduled": "computes {}",
    "order": "computes in the order {}",
    "spec": "verifies {}",
    "admitted": "finds in its prefix cache {}",
    "running": "has running {}",
    "waiting": "leaves waiting {}",
    "num_free_blocks": "has {} free blocks",
    "finished": "finishes {}",
    "num_free_blocks_end": "has {} free blocks when the step is over",
}
_TOKENS = ("scheduled", "spec", "admitted")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference: the step (of its replica), when it was planned, and what each side decided of `key`.

    Of a mapping by request only the requests that differ; `order` is that in which requests take their share.
    """

    step: int
    t_s: float
    key: str
    theirs: Any
    ours: Any
    replica: int = 0

    def entry(self) -> dict[str, object]:
        """The difference as `--json` prints it."""
        return {"step": self.step, "t_s": self.t_s, "key": self.key, "theirs": self.theirs, "ours": self.ours}

    def words(self, title: str) -> str:
        """The difference in a sentence; `title` names the engine."""
        where = f"step {self.step:,} at {round(self.t_s, 6)} s" + (
            f" of replica {self.replica}" if self.replica else ""
        )
        said = _WORDS[self.key]
        theirs, ours = said.format(_shown(self.key, self.theirs)), said.format(_shown(self.key, self.ours))
        return f"first difference in {where}: {title} {theirs}; batchlab {ours}"


def after_plan(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Difference | None:
    """The first difference between a step's plan of ours and one of theirs; None if they are equal."""
    found = {**theirs, "preempted": [request_id for request_id, _ in theirs["preempted"]]}
    for key, name in _PLANNED.items():
        if name not in found or key not in ours:
            continue  # SGLang has its running requests in several places; drafts are not everywhere
        a, b = ours[key], found[name]
        if a != b:
            if isinstance(a, Mapping):
                different = [request_id for request_id in {**a, **b} if a.get(request_id) != b.get(request_id)]
                a, b = [{name: side[name] for name in different if name in side} for side in (a, b)]
            return _difference(ours, key, b, a)
        if key == "scheduled" and list(a) != list(b):
            return _difference(ours, "order", list(b), list(a))
    return None


def after_results(settled: Sequence[Mapping[str, Any]], theirs: Mapping[str, Any]) -> Difference | None:
    """The first difference in what steps left behind when their results were there.

    A step that waits for results computes nothing, and leaves what the one before it did.
    """
    for ours, finished in zip(settled, theirs["finished"], strict=True):
        if sorted(ours["finished"]) != sorted(finished):
            return _difference(ours, "finished", finished, ours["finished"])
    last = next((each for each in reversed(settled) if each["scheduled"]), None)
    if last is not None and last["num_free_blocks_end"] != theirs["free_before"]:
        return _difference(last, "num_free_blocks_end", theirs["free_before"], last["num_free_blocks_end"])
    return None


def _difference(ours: Mapping[str, Any], key: str, theirs: Any, own: Any) -> Difference:
    return Difference(ours["step"], ours.get("t_schedule_s", ours["t_start_s"]), key, theirs, own)


def _shown(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        of = "drafts" if key == "spec" else "tokens"
        listed = [f"{tokens:,} {of} of {name}" for name, tokens in value.items()]
    elif isinstance(value, list):
        listed = [str(name) for name in value]
    else:
        return f"{value:,}"
    more = f" and {len(listed) - _SHOWN:,} more" if len(listed) > _SHOWN else ""
    return (", ".join(listed[:_SHOWN]) + more) if listed else "nothing" if key in _TOKENS else "none"
