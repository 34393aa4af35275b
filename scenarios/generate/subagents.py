"""Agents that an agent starts in place of a tool: trees of conversations in place of chains.

A call of agents is drawn for the step that waits for them. The agents are conversations like those of a class, drawn as
one is, with random streams of their own: another share or number of agents moves neither the agent's lengths nor other
agents. Their rows stand before the step that waits for them, so that what a row waits for lies before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np

from scenarios.generate.sessions import Bools, draw_counts
from scenarios.random_draws import stream
from scenarios.schema.classes import SessionConfig
from scenarios.schema.workload import ClassConfig
from simulator.request import PromptContent
from simulator.workload import Floats, Ints, Workload


class Draw(Protocol):
    """Draws the requests of arrivals at given times, and all that follow them (`scenarios.generate.classes`)."""

    def __call__(
        self, classes: Sequence[ClassConfig], max_tokens: int | None, seed: int, time_s: Floats, class_index: Ints
    ) -> Workload: ...


@dataclass(frozen=True, slots=True)
class _Started:
    """Agents of a class, conversations one after the other: `waiting` is the row that waits for each."""

    rows: Workload
    waiting: Ints

    @property
    def first(self) -> Ints:
        """The first row of each agent, which waits for nothing of the agent's own."""
        assert self.rows.after_row is not None
        return np.flatnonzero(self.rows.after_row < 0)

    @property
    def agent(self) -> Ints:
        """The agent of each row, from 0."""
        return np.repeat(np.arange(len(self.waiting)), np.diff(self.first, append=len(self.rows)))


def with_subagents(
    workload: Workload, after_tool: Bools, classes: Sequence[ClassConfig], seed: int, max_tokens: int | None, draw: Draw
) -> Workload:
    """The workload with the agents that its agents start; `after_tool` marks the steps that may wait for some."""
    parts = []
    delay_s = workload.delay_s
    assert delay_s is not None
    for index, entry in enumerate(classes):
        agents = None if entry.session is None else entry.session.subagents
        if agents is None:
            continue
        steps = np.flatnonzero(after_tool & (workload.class_index == index))
        steps = steps[stream(seed, entry.name, "calls of agents").random(len(steps)) < agents.share]
        counts = draw_counts(agents.count, stream(seed, entry.name, "agents"), len(steps))
        waiting = np.repeat(steps, counts)
        zeros = np.zeros(len(waiting), dtype=np.int64)
        rows = draw([_class_of(entry)], max_tokens, seed, workload.arrival_s[waiting], zeros)
        delay_s = delay_s.copy()
        delay_s[steps] = 0.0  # the agents take the tool's place
        parts.append(_Started(replace(rows, class_index=np.full(len(rows), index)), waiting))
    return _merged(replace(workload, delay_s=delay_s), [part for part in parts if len(part.rows)])


def _class_of(entry: ClassConfig) -> ClassConfig:
    """The class that the agents below those of a class would be, with its prefix and one turn of their steps."""
    session = entry.session
    assert session is not None
    agents = session.subagents
    assert agents is not None
    below = None if agents.depth == 1 else agents.model_copy(update={"depth": agents.depth - 1})
    update = {"turns": 1, "steps": agents.steps, "context": "accumulate", "subagents": below}
    own: SessionConfig = session.model_copy(update=update)
    prefix = entry.prefix
    if prefix is not None:
        prefix = prefix.model_copy(update={"name": prefix.name or entry.name})
    return entry.model_copy(
        update={"name": f"{entry.name}/agent", "input": agents.input, "session": own, "prefix": prefix, "lora": None}
    )


def _merged(workload: Workload, parts: Sequence[_Started]) -> Workload:
    """The rows of agents and of those that they start, in their order."""
    if not parts:
        return workload
    offsets = len(workload) + np.cumsum([0, *(len(part.rows) for part in parts)])
    place = [2 * np.arange(len(workload)) + 1, *(2 * part.waiting[part.agent] for part in parts)]
    order = np.argsort(np.concatenate(place), kind="stable")
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[order], rank[-1] = np.arange(len(order)), -1
    assert workload.after_row is not None
    after = [workload.after_row]
    others: list[list[int]] = [[] for _ in range(len(order))]
    for part, offset in zip(parts, offsets.tolist(), strict=False):
        first, own = part.first, part.rows.after_row
        assert own is not None
        started = workload.after_row[part.waiting]
        after.append(np.where(own < 0, started[part.agent], own + offset))
        last = np.append(first[1:], len(part.rows)) - 1  # all of an agent's rows come before its last
        for row, end in zip(part.waiting.tolist(), last.tolist(), strict=True):
            others[row].append(end + offset)
        for row, each in enumerate(part.rows.also_after or ()):
            others[row + offset] += [other + offset for other in each]
    wholes = [workload, *(_named(workload, part) for part in parts)]
    columns: dict[str, Any] = {}
    for name, column in workload.columns().items():
        found = [getattr(each, name) for each in wholes]
        if isinstance(column, np.ndarray):
            columns[name] = np.concatenate(found)[order]
        else:
            listed = list(chain.from_iterable(found))
            columns[name] = [listed[row] for row in order.tolist()]
    columns["after_row"] = rank[np.concatenate(after)[order]]
    columns["also_after"] = [tuple(sorted(rank[others[row]].tolist())) for row in order.tolist()]
    notes = (*workload.notes, *chain.from_iterable(part.rows.notes for part in parts))
    return replace(workload, **columns, notes=notes)


def _named(workload: Workload, part: _Started) -> Workload:
    """The agents' rows, named by the request that started them; their task and their adapter are that request's."""
    rows = part.rows
    assert rows.session_ids is not None
    assert workload.after_row is not None
    starts = workload.after_row[part.waiting]
    number = np.arange(len(starts)) - np.searchsorted(starts, starts) + 1
    named = [f"{workload.request_id(row)}/{each}" for row, each in zip(starts.tolist(), number.tolist(), strict=True)]
    own = [rows.session_ids[row] or "" for row in part.first.tolist()]
    agents = part.agent.tolist()

    def renamed(names: Sequence[str | None]) -> list[str]:
        pairs = zip(names, agents, strict=True)
        return [named[agent] + (name or "")[len(own[agent]) :] for name, agent in pairs]

    def of_start(column: Sequence[str | None] | None) -> list[str | None] | None:
        return None if column is None else [column[row] for row in starts[part.agent].tolist()]

    sessions = renamed(rows.session_ids)
    contents: dict[str, PromptContent] = {}  # one object a conversation
    for content, session in zip(rows.content or (), sessions, strict=True):
        if session not in contents:
            contents[session] = replace(content or PromptContent(), conversation=session)
    return replace(
        rows,
        request_ids=renamed(rows.request_ids or ()),
        session_ids=sessions,
        task_ids=of_start(workload.task_ids),
        lora=of_start(workload.lora),
        content=[contents[session] for session in sessions],
    )
