"""A policy that reads its plans from a list: for what no sane policy would do."""

from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.division import cdiv
from simulator.plan import Chunk, StepPlan, Traits, View

MOST_LINES = 5_000  # no test needs more: an engine that goes on asking would hang

Line = Callable[[View], StepPlan]


@dataclass(slots=True)
class Scripted:
    """One line a step, the last for ever; the lines begin when somebody waits."""

    lines: list[Line]
    max_num_seqs: int = 4
    traits: Traits = field(default_factory=Traits)
    said: int = 0

    def plan(self, view: View) -> StepPlan:
        if not self.said and not len(view.waiting):
            return StepPlan()
        line = self.lines[min(self.said, len(self.lines) - 1)]
        self.said += 1
        assert self.said < MOST_LINES, "asked for ever"
        return line(view)


def admit_all(view: View) -> StepPlan:
    """Everybody's whole prompt."""
    return StepPlan(prefill=tuple(Chunk(r, r.num_tokens_to_compute) for r in view.waiting))


def admit_one_token(view: View) -> StepPlan:
    """The first token of everybody's prompt."""
    return StepPlan(prefill=tuple(Chunk(r, 1) for r in view.waiting))


def go_on(view: View) -> StepPlan:
    """Everybody decodes, those at home first: prompts under way are completed."""
    return StepPlan(prefill=tuple(Chunk(r, r.num_tokens_to_compute) for r in view.prefilling))


def reserve_all(view: View) -> StepPlan:
    """Everybody's whole prompt, with room for everything."""
    return StepPlan(prefill=tuple(Chunk(r, r.num_tokens, r.input_tokens + r.max_tokens) for r in view.waiting))


def serve(view: View) -> StepPlan:
    """A simple policy that finishes everything one by one: what a script may end with."""
    if view.prefilling:
        return go_on(view)
    if view.running or not len(view.waiting):
        return StepPlan()
    head = view.waiting.head
    if head.is_swapped:
        return StepPlan(resume=(head,))
    assert cdiv(head.num_tokens, view.block_size) <= view.num_free_blocks
    return StepPlan(prefill=(Chunk(head, head.num_tokens),))
